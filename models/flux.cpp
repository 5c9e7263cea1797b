#include "models/flux.h"

#include "core/error.h"
#include "core/ops.h"
#include "models/argument_checks.h"
#include "models/attention_layers.h"
#include "models/config_reader.h"

namespace shardproof {
namespace {

constexpr double kNormEps = 1e-6;
constexpr double kTheta = 10000.0;
constexpr double kTimestepFactor = 1000.0;
constexpr std::int64_t kTimestepWidth = 256;

// temb = timestep_embedder(time_proj(t)) [+ guidance_embedder(time_proj(g))] + text_embedder(pooled).
class FluxTimeTextEmbed final : public Module {
 public:
  FluxTimeTextEmbed(const FluxConfig& config, const ModelContext& context)
      : Module(config.guidance_embeds ? "CombinedTimestepGuidanceTextProjEmbeddings"
                                      : "CombinedTimestepTextProjEmbeddings"),
        time_proj_(add_child<TimestepProjection>("time_proj", context, kTimestepWidth)),
        timestep_embedder_(add_child<TwoLayerMlp>("timestep_embedder", "TimestepEmbedding", kTimestepWidth,
                                                  config.width(), UnaryOp::silu, "act")) {
    if (config.guidance_embeds) {
      guidance_embedder_ = &add_child<TwoLayerMlp>("guidance_embedder", "TimestepEmbedding", kTimestepWidth,
                                                   config.width(), UnaryOp::silu, "act");
    }
    text_embedder_ = &add_child<TwoLayerMlp>("text_embedder", "PixArtAlphaTextProjection", config.pooled_projection_dim,
                                             config.width(), UnaryOp::silu, "act_1");
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::timestep, ArgumentKind::coordinate},
                                              {argument::guidance, ArgumentKind::coordinate},
                                              {argument::pooled_projection, ArgumentKind::value}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const auto project = [&](Name name) {
      return time_proj_.call({{argument::timestep, arguments.tensor(name)}}).tensors.front();
    };
    Tensor temb = timestep_embedder_(project(argument::timestep));
    if (guidance_embedder_ != nullptr) temb = ops::add(temb, (*guidance_embedder_)(project(argument::guidance)));
    return ops::add(temb, (*text_embedder_)(arguments.tensor(argument::pooled_projection)));
  }

 private:
  TimestepProjection& time_proj_;
  TwoLayerMlp& timestep_embedder_;
  TwoLayerMlp* guidance_embedder_ = nullptr;
  TwoLayerMlp* text_embedder_ = nullptr;
};

AttentionLayerOptions attention_options(const FluxConfig& config) {
  return {.width = config.width(),
          .head_dim = config.attention_head_dim,
          .norm_eps = kNormEps,
          .rotary_source = "arguments 'txt_ids' and 'img_ids' of module ''"};
}

// Self-attention of the single blocks, without an output layer.
class FluxSingleAttention final : public ProjectedAttention {
 public:
  explicit FluxSingleAttention(const FluxConfig& config)
      : ProjectedAttention("FluxAttention", attention_options(config)),
        projections_(add_projections({"norm_q", "norm_k", "to_q", "to_k", "to_v"})) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states}, {argument::image_rotary_emb}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const QueryKeyValue all = project(projections_, arguments.tensor(argument::hidden_states));
    return attend(all, arguments, argument::image_rotary_emb, {});
  }

 private:
  Projections projections_;
};

std::span<const ArgumentSpec> block_arguments() {
  static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                            {argument::encoder_hidden_states},
                                            {argument::temb},
                                            {argument::image_rotary_emb},
                                            {argument::joint_attention_kwargs, ArgumentKind::setting}};
  return kArguments;
}

// Returns (text, image).
class FluxTransformerBlock final : public Module {
 public:
  explicit FluxTransformerBlock(const FluxConfig& config)
      : Module("FluxTransformerBlock"),
        norm1_(add_child<AdaLayerNormZero>("norm1", config.width(), AdaLayerNormZero::Chunks::six)),
        norm1_context_(add_child<AdaLayerNormZero>("norm1_context", config.width(), AdaLayerNormZero::Chunks::six)),
        attn_(add_child<JointAttention>("attn", "FluxAttention", attention_options(config))),
        norm2_(add_child<LayerNorm>("norm2", kNormEps)),
        ff_(add_child<FeedForward>("ff", config.width())),
        norm2_context_(add_child<LayerNorm>("norm2_context", kNormEps)),
        ff_context_(add_child<FeedForward>("ff_context", config.width())) {}

  std::span<const ArgumentSpec> forward_arguments() const override { return block_arguments(); }

  Outputs forward(Arguments& arguments) override {
    const Tensor& image = arguments.tensor(argument::hidden_states);
    const Tensor& text = arguments.tensor(argument::encoder_hidden_states);
    const Tensor& temb = arguments.tensor(argument::temb);
    const auto normed = [&](AdaLayerNormZero& norm, const Tensor& x) {
      return norm.call({{argument::hidden_states, x}, {argument::temb, temb}}).tensors;
    };
    const std::vector<Tensor> of_image = normed(norm1_, image);
    const std::vector<Tensor> of_text = normed(norm1_context_, text);
    const Outputs attended = attn_.call({{argument::hidden_states, of_image[0]},
                                         {argument::encoder_hidden_states, of_text[0]},
                                         {argument::image_rotary_emb, *arguments.find(argument::image_rotary_emb)}});
    const Tensor new_image = add_branches(image, attended.tensors[0], of_image, norm2_, ff_);
    const Tensor new_text = add_branches(text, attended.tensors[1], of_text, norm2_context_, ff_context_);
    return Outputs(std::vector<Tensor>{ops::clamp_to_float16(new_text), new_image});
  }

 private:
  // `modulation` holds [normed x, gate_msa, shift_mlp, scale_mlp, gate_mlp].
  static Tensor add_branches(const Tensor& x, const Tensor& attended, const std::vector<Tensor>& modulation,
                             LayerNorm& norm, FeedForward& ff) {
    const Tensor after_attention = add_gated(x, modulation[1], attended);
    const Tensor normed = modulate(norm(after_attention), modulation[3], modulation[2]);
    return add_gated(after_attention, modulation[4], ff(normed));
  }

  AdaLayerNormZero& norm1_;
  AdaLayerNormZero& norm1_context_;
  JointAttention& attn_;
  LayerNorm& norm2_;
  FeedForward& ff_;
  LayerNorm& norm2_context_;
  FeedForward& ff_context_;
};

// Works on [text, image] as one stream; returns (text, image).
class FluxSingleTransformerBlock final : public Module {
 public:
  explicit FluxSingleTransformerBlock(const FluxConfig& config)
      : Module("FluxSingleTransformerBlock"),
        norm_(add_child<AdaLayerNormZero>("norm", config.width(), AdaLayerNormZero::Chunks::three)),
        proj_mlp_(add_child<Linear>("proj_mlp", config.width(), 4 * config.width())),
        act_mlp_(add_child<Activation>("act_mlp", "GELU", UnaryOp::gelu_tanh)),
        proj_out_(add_child<Linear>("proj_out", 5 * config.width(), config.width(), Linear::Bias::present,
                                    Linear::Blocks{.columns = {config.width(), 4 * config.width()}})),
        attn_(add_child<FluxSingleAttention>("attn", config)) {}

  std::span<const ArgumentSpec> forward_arguments() const override { return block_arguments(); }

  Outputs forward(Arguments& arguments) override {
    const Tensor& text = arguments.tensor(argument::encoder_hidden_states);
    const std::int64_t text_tokens = text.size(1);
    const Tensor joint = ops::concat({text, arguments.tensor(argument::hidden_states)}, 1);
    const std::vector<Tensor> normed =
        norm_.call({{argument::hidden_states, joint}, {argument::temb, arguments.tensor(argument::temb)}}).tensors;
    const Tensor mlp = act_mlp_(proj_mlp_(normed[0]));
    const Tensor attended = attn_
                                .call({{argument::hidden_states, normed[0]},
                                       {argument::image_rotary_emb, *arguments.find(argument::image_rotary_emb)}})
                                .tensors.front();
    const Tensor result =
        ops::clamp_to_float16(add_gated(joint, normed[1], proj_out_(ops::concat({attended, mlp}, -1))));
    return Outputs(std::vector<Tensor>{result.narrow(1, 0, text_tokens),
                                       result.narrow(1, text_tokens, result.size(1) - text_tokens)});
  }

 private:
  AdaLayerNormZero& norm_;
  Linear& proj_mlp_;
  Activation& act_mlp_;
  Linear& proj_out_;
  FluxSingleAttention& attn_;
};

const Name kPooledProjections("pooled_projections");
const Name kControlnetSingleSamples("controlnet_single_block_samples");
const Name kControlnetRepeat("controlnet_blocks_repeat");

class FluxTransformer2DModel final : public Module {
 public:
  FluxTransformer2DModel(const FluxConfig& config, const ModelContext& context)
      : Module("FluxTransformer2DModel"),
        config_(config),
        context_(context),
        pos_embed_(add_child<AxesPosEmbed>("pos_embed", "FluxPosEmbed", context, config.axes_dims_rope, kTheta)),
        time_text_embed_(add_child<FluxTimeTextEmbed>("time_text_embed", config, context)),
        context_embedder_(add_child<Linear>("context_embedder", config.joint_attention_dim, config.width())),
        x_embedder_(add_child<Linear>("x_embedder", config.in_channels, config.width())),
        blocks_(add_child<ModuleList>("transformer_blocks")),
        single_blocks_(add_child<ModuleList>("single_transformer_blocks")),
        norm_out_(add_child<AdaLayerNormContinuous>("norm_out", config.width(), kNormEps)),
        proj_out_(add_child<Linear>("proj_out", config.width(),
                                    config.patch_size * config.patch_size * config.out_channels)) {
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<FluxTransformerBlock>(config);
    for (std::int64_t i = 0; i < config.num_single_layers; ++i)
      single_blocks_.append<FluxSingleTransformerBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states, ArgumentKind::value},
                                              {argument::encoder_hidden_states, ArgumentKind::value},
                                              {kPooledProjections, ArgumentKind::value},
                                              {argument::timestep, ArgumentKind::coordinate},
                                              {argument::img_ids, ArgumentKind::coordinate},
                                              {argument::txt_ids, ArgumentKind::coordinate},
                                              {argument::guidance, ArgumentKind::coordinate},
                                              {argument::joint_attention_kwargs, ArgumentKind::setting},
                                              {argument::controlnet_block_samples, ArgumentKind::value},
                                              {kControlnetSingleSamples, ArgumentKind::value},
                                              {argument::return_dict, ArgumentKind::setting},
                                              {kControlnetRepeat, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_settings(arguments);
    check_shapes(arguments);
    Tensor image = x_embedder_(arguments.tensor(argument::hidden_states));
    const Tensor temb = embed_time(arguments);
    Tensor text = context_embedder_(arguments.tensor(argument::encoder_hidden_states));
    const Tensor ids = ops::concat({ids_without_batch(arguments.tensor(argument::txt_ids)),
                                    ids_without_batch(arguments.tensor(argument::img_ids))},
                                   0);
    const Value rotary = pos_embed_.call({{argument::ids, ids}}).tensors;
    const auto run = [&](Module& block) {
      const Outputs streams = block.call({{argument::hidden_states, image},
                                          {argument::encoder_hidden_states, text},
                                          {argument::temb, temb},
                                          {argument::image_rotary_emb, rotary}});
      text = streams.tensors[0];
      image = streams.tensors[1];
    };
    using Order = ControlNetSamples::Order;
    const ControlNetSamples samples(*this, arguments, argument::controlnet_block_samples, blocks_.children().size(),
                                    arguments.flag(kControlnetRepeat, false) ? Order::repeated : Order::stretched);
    for (std::size_t i = 0; i < blocks_.children().size(); ++i) {
      run(*blocks_.children()[i]);
      image = samples.add_after(i, image);
    }
    const ControlNetSamples single_samples(*this, arguments, kControlnetSingleSamples,
                                           single_blocks_.children().size());
    for (std::size_t i = 0; i < single_blocks_.children().size(); ++i) {
      run(*single_blocks_.children()[i]);
      image = single_samples.add_after(i, image);
    }
    const Tensor normed = norm_out_.call({{argument::hidden_states, image}, {argument::temb, temb}}).tensors.front();
    return proj_out_(normed);
  }

 private:
  void check_settings(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    checks.must_be_none(argument::joint_attention_kwargs, "adapters are not offered");
    checks.must_return_a_tuple();
    const Value* guidance = arguments.find(argument::guidance);
    const bool given = guidance != nullptr && !is_none(*guidance);
    SHARDPROOF_CHECK(given == config_.guidance_embeds, shape_error,
                     "argument 'guidance' of FluxTransformer2DModel must be {} (guidance_embeds is {})",
                     config_.guidance_embeds ? "given" : "none", config_.guidance_embeds);
  }

  // Sizes that must agree whatever part of the tokens a rank has; the rest shows in the layers that they meet.
  void check_shapes(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    const std::int64_t batch = checks.sequence(argument::hidden_states, "[batch, image tokens, in_channels]").size(0);
    checks.sequence(argument::encoder_hidden_states, batch,
                    "[batch, text tokens, joint_attention_dim] with the batch of hidden_states");
    const Tensor& pooled = arguments.tensor(kPooledProjections);
    checks.shape(kPooledProjections, pooled, pooled.rank() == 2 && pooled.size(0) == batch,
                 "[batch, pooled_projection_dim] with the batch of hidden_states");
    for (const Name name : {argument::timestep, argument::guidance}) checks.per_item(name, batch);
    for (const Name name : {argument::img_ids, argument::txt_ids}) checks.position_ids(name);
  }

  Tensor embed_time(const Arguments& arguments) {
    const auto scaled = [&](Name name) {
      return scaled_coordinate_tensor(arguments.tensor(name), kTimestepFactor, context_.table_precision);
    };
    Arguments inner{{argument::timestep, scaled(argument::timestep)}};
    if (config_.guidance_embeds) inner.set(argument::guidance, scaled(argument::guidance));
    inner.set(argument::pooled_projection, arguments.tensor(kPooledProjections));
    return time_text_embed_.call(std::move(inner)).tensors.front();
  }

  FluxConfig config_;
  ModelContext context_;
  AxesPosEmbed& pos_embed_;
  FluxTimeTextEmbed& time_text_embed_;
  Linear& context_embedder_;
  Linear& x_embedder_;
  ModuleList& blocks_;
  ModuleList& single_blocks_;
  AdaLayerNormContinuous& norm_out_;
  Linear& proj_out_;
};

}  // namespace

FluxConfig flux_config_from_json(const Json& json) {
  ConfigReader reader(json);
  FluxConfig config;
  reader.read("patch_size", config.patch_size, 1);
  reader.read("in_channels", config.in_channels, 1);
  config.out_channels = config.in_channels;
  reader.read("out_channels", config.out_channels, 1);
  reader.read("num_layers", config.num_layers, 0, ConfigReader::kLargestLayers);
  reader.read("num_single_layers", config.num_single_layers, 0, ConfigReader::kLargestLayers);
  reader.read("attention_head_dim", config.attention_head_dim, 1);
  reader.read("num_attention_heads", config.num_attention_heads, 1);
  reader.read("joint_attention_dim", config.joint_attention_dim, 1);
  reader.read("pooled_projection_dim", config.pooled_projection_dim, 1);
  reader.read("guidance_embeds", config.guidance_embeds);
  reader.read("axes_dims_rope", config.axes_dims_rope, 1);
  reader.finish();
  reader.check_rope_axes(config.axes_dims_rope, config.attention_head_dim);
  return config;
}

std::unique_ptr<Module> make_flux(const FluxConfig& config, const ModelContext& context) {
  return std::make_unique<FluxTransformer2DModel>(config, context);
}

}  // namespace shardproof
