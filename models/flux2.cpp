#include "models/flux2.h"

#include "core/error.h"
#include "core/ops.h"
#include "models/argument_checks.h"
#include "models/attention_layers.h"
#include "models/config_reader.h"

namespace shardproof {
namespace {

constexpr double kTimestepFactor = 1000.0;
constexpr auto kNoBias = Linear::Bias::absent;

const Name kImageModulation("temb_mod_img");
const Name kTextModulation("temb_mod_txt");
const Name kModulation("temb_mod");

// temb = timestep_embedder(time_proj(t)) [+ guidance_embedder(time_proj(g))], the second only if the layer and g exist.
class Flux2TimestepGuidanceEmbeddings final : public Module {
 public:
  Flux2TimestepGuidanceEmbeddings(const Flux2Config& config, const ModelContext& context)
      : Module("Flux2TimestepGuidanceEmbeddings"),
        time_proj_(add_child<TimestepProjection>("time_proj", context, config.timestep_guidance_channels)),
        timestep_embedder_(add_embedder("timestep_embedder", config)),
        guidance_embedder_(config.guidance_embeds ? &add_embedder("guidance_embedder", config) : nullptr) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::timestep, ArgumentKind::coordinate},
                                              {argument::guidance, ArgumentKind::coordinate}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const auto project = [&](const Tensor& coordinates) {
      return time_proj_.call({{argument::timestep, coordinates}}).tensors.front();
    };
    const Tensor temb = timestep_embedder_(project(arguments.tensor(argument::timestep)));
    const Tensor guidance = arguments.optional_tensor(argument::guidance);
    if (guidance_embedder_ == nullptr || !guidance.defined()) return temb;
    return ops::add(temb, (*guidance_embedder_)(project(guidance)));
  }

 private:
  TwoLayerMlp& add_embedder(Name name, const Flux2Config& config) {
    return add_child<TwoLayerMlp>(name, "TimestepEmbedding", config.timestep_guidance_channels, config.width(),
                                  UnaryOp::silu, "act", kNoBias);
  }

  TimestepProjection& time_proj_;
  TwoLayerMlp& timestep_embedder_;
  TwoLayerMlp* guidance_embedder_;
};

// SiLU(first half) * second half.
class Flux2SwiGlu final : public TensorModule {
 public:
  Flux2SwiGlu() : TensorModule("Flux2SwiGLU"), gate_(add_child<Activation>("gate_fn", "SiLU", UnaryOp::silu)) {}

 private:
  Tensor compute(const Tensor& x) const override {
    const std::vector<Tensor> halves = ops::chunk(x, 2, -1);
    return ops::multiply(gate_(halves[0]), halves[1]);
  }
  Activation& gate_;
};

class Flux2FeedForward final : public TensorModule {
 public:
  explicit Flux2FeedForward(const Flux2Config& config)
      : TensorModule("Flux2FeedForward"),
        linear_in_(add_child<Linear>("linear_in", config.width(), 2 * config.mlp_width(), kNoBias,
                                     Linear::Blocks{.rows = {config.mlp_width(), config.mlp_width()}})),
        act_(add_child<Flux2SwiGlu>("act_fn")),
        linear_out_(add_child<Linear>("linear_out", config.mlp_width(), config.width(), kNoBias)) {}

 private:
  Tensor compute(const Tensor& x) const override { return linear_out_(act_(linear_in_(x))); }
  Linear& linear_in_;
  Flux2SwiGlu& act_;
  Linear& linear_out_;
};

AttentionLayerOptions attention_options(const Flux2Config& config) {
  return {.width = config.width(),
          .head_dim = config.attention_head_dim,
          .norm_eps = config.eps,
          .bias = kNoBias,
          .rotary_source = "arguments 'txt_ids' and 'img_ids' of module ''"};
}

// The sets (shift, scale, gate) of a modulation [batch, sets * 3 D], in this order.
std::vector<Tensor> modulation_chunks(const Tensor& modulation, int sets) {
  return ops::chunk(modulation, 3 * sets, -1);
}

// Modulated by two sets of either stream; returns (text, image).
class Flux2TransformerBlock final : public Module {
 public:
  explicit Flux2TransformerBlock(const Flux2Config& config)
      : Module("Flux2TransformerBlock"),
        norm1_(add_child<LayerNorm>("norm1", config.eps)),
        norm1_context_(add_child<LayerNorm>("norm1_context", config.eps)),
        attn_(add_child<JointAttention>("attn", "Flux2Attention", attention_options(config))),
        norm2_(add_child<LayerNorm>("norm2", config.eps)),
        ff_(add_child<Flux2FeedForward>("ff", config)),
        norm2_context_(add_child<LayerNorm>("norm2_context", config.eps)),
        ff_context_(add_child<Flux2FeedForward>("ff_context", config)) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states},    {argument::encoder_hidden_states},
        {kImageModulation},           {kTextModulation},
        {argument::image_rotary_emb}, {argument::joint_attention_kwargs, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& image = arguments.tensor(argument::hidden_states);
    const Tensor& text = arguments.tensor(argument::encoder_hidden_states);
    const std::vector<Tensor> of_image = modulation_chunks(arguments.tensor(kImageModulation), 2);
    const std::vector<Tensor> of_text = modulation_chunks(arguments.tensor(kTextModulation), 2);
    const Outputs attended =
        attn_.call({{argument::hidden_states, modulate(norm1_(image), of_image[1], of_image[0])},
                    {argument::encoder_hidden_states, modulate(norm1_context_(text), of_text[1], of_text[0])},
                    {argument::image_rotary_emb, *arguments.find(argument::image_rotary_emb)}});
    const Tensor new_image = add_branches(image, attended.tensors[0], of_image, norm2_, ff_);
    const Tensor new_text = add_branches(text, attended.tensors[1], of_text, norm2_context_, ff_context_);
    return Outputs(std::vector<Tensor>{ops::clamp_to_float16(new_text), new_image});
  }

 private:
  static Tensor add_branches(const Tensor& x, const Tensor& attended, const std::vector<Tensor>& modulation,
                             LayerNorm& norm, Flux2FeedForward& ff) {
    const Tensor after_attention = add_gated(x, modulation[2], attended);
    return add_gated(after_attention, modulation[5], ff(modulate(norm(after_attention), modulation[4], modulation[3])));
  }

  LayerNorm& norm1_;
  LayerNorm& norm1_context_;
  JointAttention& attn_;
  LayerNorm& norm2_;
  Flux2FeedForward& ff_;
  LayerNorm& norm2_context_;
  Flux2FeedForward& ff_context_;
};

// Attention and feed-forward side by side: one projection to queries, keys, values and the feed-forward's halves, one
// from both results.
class Flux2ParallelSelfAttention final : public ProjectedAttention {
 public:
  explicit Flux2ParallelSelfAttention(const Flux2Config& config)
      : ProjectedAttention("Flux2ParallelSelfAttention", attention_options(config)),
        attention_columns_(3 * config.width()),
        all_columns_(3 * config.width() + 2 * config.mlp_width()),
        in_(add_child<Linear>("to_qkv_mlp_proj", config.width(), all_columns_, kNoBias,
                              Linear::Blocks{.rows = {config.width(), config.width(), config.width(),
                                                      config.mlp_width(), config.mlp_width()}})),
        act_(add_child<Flux2SwiGlu>("mlp_act_fn")),
        norm_q_(add_child<RmsNorm>("norm_q", config.attention_head_dim, config.eps)),
        norm_k_(add_child<RmsNorm>("norm_k", config.attention_head_dim, config.eps)),
        out_(add_child<Linear>("to_out", config.width() + config.mlp_width(), config.width(), kNoBias,
                               Linear::Blocks{.columns = {config.width(), config.mlp_width()}})) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states}, {argument::image_rotary_emb}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor projected = in_(arguments.tensor(argument::hidden_states));
    // By ratio, so that a rank which holds a part of every block of columns splits its own.
    const std::int64_t columns = projected.size(-1);
    const std::int64_t split = columns * attention_columns_ / all_columns_;
    const std::vector<Tensor> chunks = ops::chunk(projected.narrow(-1, 0, split), 3, -1);
    const QueryKeyValue all{norm_q_(split_heads(chunks[0], options().head_dim)),
                            norm_k_(split_heads(chunks[1], options().head_dim)),
                            split_heads(chunks[2], options().head_dim)};
    const Tensor attended = attend(all, arguments, argument::image_rotary_emb, {});
    return out_(ops::concat({attended, act_(projected.narrow(-1, split, columns - split))}, -1));
  }

 private:
  std::int64_t attention_columns_;
  std::int64_t all_columns_;
  Linear& in_;
  Flux2SwiGlu& act_;
  RmsNorm& norm_q_;
  RmsNorm& norm_k_;
  Linear& out_;
};

// Works on the joint stream [text, image].
class Flux2SingleTransformerBlock final : public Module {
 public:
  explicit Flux2SingleTransformerBlock(const Flux2Config& config)
      : Module("Flux2SingleTransformerBlock"),
        norm_(add_child<LayerNorm>("norm", config.eps)),
        attn_(add_child<Flux2ParallelSelfAttention>("attn", config)) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {kModulation},
                                              {argument::image_rotary_emb},
                                              {argument::joint_attention_kwargs, ArgumentKind::setting},
                                              {"split_hidden_states", ArgumentKind::setting},
                                              {"text_seq_len", ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& joint = arguments.tensor(argument::hidden_states);
    const std::vector<Tensor> modulation = modulation_chunks(arguments.tensor(kModulation), 1);
    const Tensor attended = attn_
                                .call({{argument::hidden_states, modulate(norm_(joint), modulation[1], modulation[0])},
                                       {argument::image_rotary_emb, *arguments.find(argument::image_rotary_emb)}})
                                .tensors.front();
    return ops::clamp_to_float16(add_gated(joint, modulation[2], attended));
  }

 private:
  LayerNorm& norm_;
  Flux2ParallelSelfAttention& attn_;
};

const Name kCache("kv_cache");
const Name kCacheMode("kv_cache_mode");
const Name kReferenceTokens("num_ref_tokens");
const Name kReferenceTimestep("ref_fixed_timestep");

class Flux2Transformer2DModel final : public Module {
 public:
  Flux2Transformer2DModel(const Flux2Config& config, const ModelContext& context)
      : Module("Flux2Transformer2DModel"),
        context_(context),
        pos_embed_(
            add_child<AxesPosEmbed>("pos_embed", "Flux2PosEmbed", context, config.axes_dims_rope, config.rope_theta)),
        time_guidance_embed_(add_child<Flux2TimestepGuidanceEmbeddings>("time_guidance_embed", config, context)),
        image_modulation_(add_modulation("double_stream_modulation_img", config, 2)),
        text_modulation_(add_modulation("double_stream_modulation_txt", config, 2)),
        single_modulation_(add_modulation("single_stream_modulation", config, 1)),
        x_embedder_(add_child<Linear>("x_embedder", config.in_channels, config.width(), kNoBias)),
        context_embedder_(add_child<Linear>("context_embedder", config.joint_attention_dim, config.width(), kNoBias)),
        blocks_(add_child<ModuleList>("transformer_blocks")),
        single_blocks_(add_child<ModuleList>("single_transformer_blocks")),
        norm_out_(add_child<AdaLayerNormContinuous>("norm_out", config.width(), config.eps, kNoBias)),
        proj_out_(add_child<Linear>("proj_out", config.width(),
                                    config.patch_size * config.patch_size * config.out_channels, kNoBias)) {
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<Flux2TransformerBlock>(config);
    for (std::int64_t i = 0; i < config.num_single_layers; ++i)
      single_blocks_.append<Flux2SingleTransformerBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states, ArgumentKind::value},
                                              {argument::encoder_hidden_states, ArgumentKind::value},
                                              {argument::timestep, ArgumentKind::coordinate},
                                              {argument::img_ids, ArgumentKind::coordinate},
                                              {argument::txt_ids, ArgumentKind::coordinate},
                                              {argument::guidance, ArgumentKind::coordinate},
                                              {argument::joint_attention_kwargs, ArgumentKind::setting},
                                              {argument::return_dict, ArgumentKind::setting},
                                              {kCache, ArgumentKind::setting},
                                              {kCacheMode, ArgumentKind::setting},
                                              {kReferenceTokens, ArgumentKind::setting},
                                              {kReferenceTimestep, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_settings(arguments);
    check_shapes(arguments);
    const Tensor temb = embed_time(arguments);
    const Tensor image_modulation = image_modulation_(temb);
    const Tensor text_modulation = text_modulation_(temb);
    const Tensor single_modulation = single_modulation_(temb);
    Tensor image = x_embedder_(arguments.tensor(argument::hidden_states));
    Tensor text = context_embedder_(arguments.tensor(argument::encoder_hidden_states));
    const std::int64_t text_tokens = text.size(1);
    const Value rotary = joint_table(arguments);
    for (const auto& block : blocks_.children()) {
      const Outputs streams = block->call({{argument::hidden_states, image},
                                           {argument::encoder_hidden_states, text},
                                           {kImageModulation, image_modulation},
                                           {kTextModulation, text_modulation},
                                           {argument::image_rotary_emb, rotary}});
      text = streams.tensors[0];
      image = streams.tensors[1];
    }
    Tensor joint = ops::concat({text, image}, 1);
    for (const auto& block : single_blocks_.children()) {
      joint = block
                  ->call({{argument::hidden_states, joint},
                          {kModulation, single_modulation},
                          {argument::image_rotary_emb, rotary}})
                  .tensors.front();
    }
    image = joint.narrow(1, text_tokens, joint.size(1) - text_tokens);
    return proj_out_(norm_out_.call({{argument::hidden_states, image}, {argument::temb, temb}}).tensors.front());
  }

 private:
  SiluLinear& add_modulation(Name name, const Flux2Config& config, std::int64_t sets) {
    const SiluLinear::Names names{"Flux2Modulation", "act_fn", "linear"};
    return add_child<SiluLinear>(name, names, config.width(), 3 * sets * config.width(), kNoBias);
  }

  void check_settings(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    checks.must_be_none(argument::joint_attention_kwargs, "adapters are not offered");
    checks.must_return_a_tuple();
    for (const Name name : {kCache, kCacheMode, kReferenceTokens, kReferenceTimestep}) {
      checks.must_be_off(name,
                         "key-value caches call attention outside context parallelism and are not offered; run the "
                         "whole sequence without a cache");
    }
  }

  // Sizes that must agree whatever part of the tokens a rank has; the rest shows in the layers that they meet.
  void check_shapes(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    const std::int64_t batch = checks.sequence(argument::hidden_states, "[batch, image tokens, in_channels]").size(0);
    checks.sequence(argument::encoder_hidden_states, batch,
                    "[batch, text tokens, joint_attention_dim] with the batch of hidden_states");
    for (const Name name : {argument::timestep, argument::guidance}) checks.per_item(name, batch);
    for (const Name name : {argument::img_ids, argument::txt_ids}) checks.position_ids(name);
  }

  Tensor embed_time(const Arguments& arguments) {
    Arguments inner;
    for (const Name name : {argument::timestep, argument::guidance}) {
      const Tensor coordinates = arguments.optional_tensor(name);
      if (!coordinates.defined()) continue;
      inner.set(name, scaled_coordinate_tensor(coordinates, kTimestepFactor, context_.table_precision));
    }
    return time_guidance_embed_.call(std::move(inner)).tensors.front();
  }

  // {cosine, sine} over [text, image].
  std::vector<Tensor> joint_table(const Arguments& arguments) {
    const auto table = [&](Name name) {
      return pos_embed_.call({{argument::ids, ids_without_batch(arguments.tensor(name))}}).tensors;
    };
    const std::vector<Tensor> image = table(argument::img_ids);
    const std::vector<Tensor> text = table(argument::txt_ids);
    return {ops::concat({text[0], image[0]}, 0), ops::concat({text[1], image[1]}, 0)};
  }

  ModelContext context_;
  AxesPosEmbed& pos_embed_;
  Flux2TimestepGuidanceEmbeddings& time_guidance_embed_;
  SiluLinear& image_modulation_;
  SiluLinear& text_modulation_;
  SiluLinear& single_modulation_;
  Linear& x_embedder_;
  Linear& context_embedder_;
  ModuleList& blocks_;
  ModuleList& single_blocks_;
  AdaLayerNormContinuous& norm_out_;
  Linear& proj_out_;
};

}  // namespace

Flux2Config flux2_config_from_json(const Json& json) {
  ConfigReader reader(json);
  Flux2Config config;
  reader.read("patch_size", config.patch_size, 1);
  reader.read("in_channels", config.in_channels, 1);
  config.out_channels = config.in_channels;
  reader.read("out_channels", config.out_channels, 1);
  reader.read("num_layers", config.num_layers, 0, ConfigReader::kLargestLayers);
  reader.read("num_single_layers", config.num_single_layers, 0, ConfigReader::kLargestLayers);
  reader.read("attention_head_dim", config.attention_head_dim, 1);
  reader.read("num_attention_heads", config.num_attention_heads, 1);
  reader.read("joint_attention_dim", config.joint_attention_dim, 1);
  reader.read("timestep_guidance_channels", config.timestep_guidance_channels, 2);
  reader.read_positive("mlp_ratio", config.mlp_ratio);
  reader.read("axes_dims_rope", config.axes_dims_rope, 1);
  reader.read_positive("rope_theta", config.rope_theta);
  reader.read_positive("eps", config.eps);
  reader.read("guidance_embeds", config.guidance_embeds);
  reader.finish();
  reader.check_rope_axes(config.axes_dims_rope, config.attention_head_dim);
  SHARDPROOF_CHECK(config.timestep_guidance_channels % 2 == 0, config_error,
                   "{}: key 'timestep_guidance_channels' is {}; it must be even", json.where(),
                   config.timestep_guidance_channels);
  const double mlp_width = static_cast<double>(config.width()) * config.mlp_ratio;
  SHARDPROOF_CHECK(mlp_width >= 1.0 && mlp_width <= static_cast<double>(ConfigReader::kLargestSize), config_error,
                   "{}: key 'mlp_ratio' is {}, which of width {} gives {} columns; expected 1 to {}", json.where(),
                   config.mlp_ratio, config.width(), mlp_width, ConfigReader::kLargestSize);
  return config;
}

std::unique_ptr<Module> make_flux2(const Flux2Config& config, const ModelContext& context) {
  return std::make_unique<Flux2Transformer2DModel>(config, context);
}

}  // namespace shardproof
