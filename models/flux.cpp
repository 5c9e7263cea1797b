#include "models/flux.h"

#include <numeric>

#include "core/error.h"
#include "core/ops.h"
#include "models/config_reader.h"
#include "models/layers.h"
#include "parallel/attention.h"

namespace shardproof {
namespace {

constexpr double kNormEps = 1e-6;
constexpr double kTheta = 10000.0;
constexpr double kTimestepFactor = 1000.0;
constexpr std::int64_t kTimestepWidth = 256;

// ids [tokens, axes] on the host -> cosine and sine [tokens, head_dim], each value standing twice. Table type: the wide
// type.
class FluxPosEmbed final : public Module {
 public:
  FluxPosEmbed(const ModelContext& context, std::vector<std::int64_t> axes)
      : Module("FluxPosEmbed"), context_(context), axes_(std::move(axes)) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::ids, ArgumentKind::coordinate}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& ids = arguments.tensor(argument::ids);
    SHARDPROOF_CHECK(ids.rank() == 2 && ids.size(1) == static_cast<std::int64_t>(axes_.size()), shape_error,
                     "ids {} must be [tokens, {}]", ids.text(), axes_.size());
    std::vector<AngleTable> parts;
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      const std::vector<double> positions = ops::to_doubles(ids.narrow(1, static_cast<std::int64_t>(axis), 1));
      parts.push_back(tables::rotary_angles64(positions, axes_[axis], kTheta, context_.table_precision));
    }
    const AngleTable table = tables::side_by_side(parts);
    const DType dtype = wide_dtype(context_.dtype);
    return Outputs(std::vector<Tensor>{tables::cosine_on(*context_.device, table, dtype, 2),
                                       tables::sine_on(*context_.device, table, dtype, 2)});
  }

 private:
  ModelContext context_;
  std::vector<std::int64_t> axes_;
};

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

// Joint attention over [text, image] (double blocks), or self-attention of one stream (single blocks, no output
// layers).
class FluxAttention final : public Module, public AttentionSlot {
 public:
  enum class Streams : std::uint8_t { one, two };
  FluxAttention(const FluxConfig& config, Streams streams)
      : Module("FluxAttention"), head_dim_(config.attention_head_dim) {
    const std::int64_t width = config.width();
    image_ = add_projections("norm_q", "norm_k", "to_q", "to_k", "to_v", width);
    if (streams == Streams::one) return;
    auto& to_out = add_child<ModuleList>("to_out");
    to_out_ = &to_out.append<Linear>(width, width);
    text_ = add_projections("norm_added_q", "norm_added_k", "add_q_proj", "add_k_proj", "add_v_proj", width);
    to_add_out_ = &add_child<Linear>("to_add_out", width, width);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states}, {argument::encoder_hidden_states}, {argument::image_rotary_emb}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    QueryKeyValue all = project(image_, arguments.tensor(argument::hidden_states));
    const Tensor text = arguments.optional_tensor(argument::encoder_hidden_states);
    const std::int64_t text_tokens = text.defined() ? text.size(1) : 0;
    if (text.defined()) {
      const QueryKeyValue from_text = project(text_, text);
      all = {ops::concat({from_text.q, all.q}, 1), ops::concat({from_text.k, all.k}, 1),
             ops::concat({from_text.v, all.v}, 1)};
    }
    const std::vector<Tensor> rotary = arguments.tensor_list(argument::image_rotary_emb);
    const Tensor q = ops::rotary_interleaved(all.q, rotary[0], rotary[1]);
    const Tensor k = ops::rotary_interleaved(all.k, rotary[0], rotary[1]);
    const Tensor out = join_heads(attention(q, k, all.v, {}, {}, context_parallel()).out);
    if (!text.defined()) return out;
    const Tensor text_out = out.narrow(1, 0, text_tokens);
    const Tensor image_out = out.narrow(1, text_tokens, out.size(1) - text_tokens);
    return Outputs(std::vector<Tensor>{(*to_out_)(image_out), (*to_add_out_)(text_out)});
  }

 private:
  struct Projections {
    RmsNorm* norm_q = nullptr;
    RmsNorm* norm_k = nullptr;
    Linear* q = nullptr;
    Linear* k = nullptr;
    Linear* v = nullptr;
  };
  struct QueryKeyValue {
    Tensor q, k, v;
  };

  Projections add_projections(Name norm_q, Name norm_k, Name q, Name k, Name v, std::int64_t width) {
    return {&add_child<RmsNorm>(norm_q, head_dim_, kNormEps), &add_child<RmsNorm>(norm_k, head_dim_, kNormEps),
            &add_child<Linear>(q, width, width), &add_child<Linear>(k, width, width),
            &add_child<Linear>(v, width, width)};
  }
  QueryKeyValue project(const Projections& projections, const Tensor& x) const {
    return {(*projections.norm_q)(split_heads((*projections.q)(x), head_dim_)),
            (*projections.norm_k)(split_heads((*projections.k)(x), head_dim_)),
            split_heads((*projections.v)(x), head_dim_)};
  }

  std::int64_t head_dim_;
  Projections image_;
  Projections text_;
  Linear* to_out_ = nullptr;
  Linear* to_add_out_ = nullptr;
};

std::span<const ArgumentSpec> block_arguments() {
  static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                            {argument::encoder_hidden_states},
                                            {argument::temb},
                                            {argument::image_rotary_emb},
                                            {"joint_attention_kwargs", ArgumentKind::setting}};
  return kArguments;
}

// Returns (text, image).
class FluxTransformerBlock final : public Module {
 public:
  explicit FluxTransformerBlock(const FluxConfig& config)
      : Module("FluxTransformerBlock"),
        norm1_(add_child<AdaLayerNormZero>("norm1", config.width(), AdaLayerNormZero::Chunks::six)),
        norm1_context_(add_child<AdaLayerNormZero>("norm1_context", config.width(), AdaLayerNormZero::Chunks::six)),
        attn_(add_child<FluxAttention>("attn", config, FluxAttention::Streams::two)),
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
  FluxAttention& attn_;
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
        proj_out_(add_child<Linear>("proj_out", 5 * config.width(), config.width())),
        attn_(add_child<FluxAttention>("attn", config, FluxAttention::Streams::one)) {}

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
  FluxAttention& attn_;
};

const Name kPooledProjections("pooled_projections");
const Name kImageIds("img_ids");
const Name kTextIds("txt_ids");
const Name kJointAttentionKwargs("joint_attention_kwargs");
const Name kControlnetSamples("controlnet_block_samples");
const Name kControlnetSingleSamples("controlnet_single_block_samples");
const Name kReturnDict("return_dict");
const Name kControlnetRepeat("controlnet_blocks_repeat");

class FluxTransformer2DModel final : public Module {
 public:
  FluxTransformer2DModel(const FluxConfig& config, const ModelContext& context)
      : Module("FluxTransformer2DModel"),
        config_(config),
        context_(context),
        pos_embed_(add_child<FluxPosEmbed>("pos_embed", context, config.axes_dims_rope)),
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
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states, ArgumentKind::value}, {argument::encoder_hidden_states, ArgumentKind::value},
        {kPooledProjections, ArgumentKind::value},      {argument::timestep, ArgumentKind::coordinate},
        {kImageIds, ArgumentKind::coordinate},          {kTextIds, ArgumentKind::coordinate},
        {argument::guidance, ArgumentKind::coordinate}, {kJointAttentionKwargs, ArgumentKind::setting},
        {kControlnetSamples, ArgumentKind::value},      {kControlnetSingleSamples, ArgumentKind::value},
        {kReturnDict, ArgumentKind::setting},           {kControlnetRepeat, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_settings(arguments);
    check_shapes(arguments);
    Tensor image = x_embedder_(arguments.tensor(argument::hidden_states));
    const Tensor temb = embed_time(arguments);
    Tensor text = context_embedder_(arguments.tensor(argument::encoder_hidden_states));
    const Tensor ids = ops::concat({ids_of(arguments, kTextIds), ids_of(arguments, kImageIds)}, 0);
    const Value rotary = pos_embed_.call({{argument::ids, ids}}).tensors;
    const auto run = [&](Module& block) {
      const Outputs streams = block.call({{argument::hidden_states, image},
                                          {argument::encoder_hidden_states, text},
                                          {argument::temb, temb},
                                          {argument::image_rotary_emb, rotary}});
      text = streams.tensors[0];
      image = streams.tensors[1];
    };
    const std::vector<Tensor> samples = arguments.tensor_list(kControlnetSamples);
    const bool repeat = arguments.flag(kControlnetRepeat, false);
    for (std::size_t i = 0; i < blocks_.children().size(); ++i) {
      run(*blocks_.children()[i]);
      image = add_sample(image, samples, i, blocks_.children().size(), repeat);
    }
    const std::vector<Tensor> single_samples = arguments.tensor_list(kControlnetSingleSamples);
    for (std::size_t i = 0; i < single_blocks_.children().size(); ++i) {
      run(*single_blocks_.children()[i]);
      image = add_sample(image, single_samples, i, single_blocks_.children().size(), false);
    }
    const Tensor normed = norm_out_.call({{argument::hidden_states, image}, {argument::temb, temb}}).tensors.front();
    return proj_out_(normed);
  }

 private:
  void check_settings(const Arguments& arguments) const {
    const Value* kwargs = arguments.find(kJointAttentionKwargs);
    SHARDPROOF_CHECK(
        kwargs == nullptr || is_none(*kwargs), unsupported_error,
        "argument 'joint_attention_kwargs' of FluxTransformer2DModel must be none, got {}; adapters are not offered",
        kwargs == nullptr ? "" : value_kind_name(*kwargs));
    SHARDPROOF_CHECK(!arguments.flag(kReturnDict, false), unsupported_error,
                     "argument 'return_dict' of FluxTransformer2DModel must be false");
    const Value* guidance = arguments.find(argument::guidance);
    const bool given = guidance != nullptr && !is_none(*guidance);
    SHARDPROOF_CHECK(given == config_.guidance_embeds, shape_error,
                     "argument 'guidance' of FluxTransformer2DModel must be {} (guidance_embeds is {})",
                     config_.guidance_embeds ? "given" : "none", config_.guidance_embeds);
  }

  // Sizes that must agree whatever part of the tokens a rank has; the rest shows in the layers that they meet.
  static void check_shapes(const Arguments& arguments) {
    const Tensor& image = arguments.tensor(argument::hidden_states);
    const auto check = [](const Tensor& tensor, Name name, bool fits, std::string_view expected) {
      SHARDPROOF_CHECK(fits, shape_error, "argument '{}' of FluxTransformer2DModel is {}; expected {}", name.text(),
                       tensor.text(), expected);
    };
    check(image, argument::hidden_states, image.rank() == 3, "[batch, image tokens, in_channels]");
    const std::int64_t batch = image.size(0);
    const Tensor& text = arguments.tensor(argument::encoder_hidden_states);
    check(text, argument::encoder_hidden_states, text.rank() == 3 && text.size(0) == batch,
          "[batch, text tokens, joint_attention_dim] with the batch of hidden_states");
    const Tensor& pooled = arguments.tensor(kPooledProjections);
    check(pooled, kPooledProjections, pooled.rank() == 2 && pooled.size(0) == batch,
          "[batch, pooled_projection_dim] with the batch of hidden_states");
    for (const Name name : {argument::timestep, argument::guidance}) {
      const Tensor coordinates = arguments.optional_tensor(name);
      const bool fits = !coordinates.defined() ||
                        (coordinates.rank() == 1 && (coordinates.size(0) == batch || coordinates.size(0) == 1));
      check(coordinates, name, fits, "[batch] with the batch of hidden_states");
    }
    for (const Name name : {kImageIds, kTextIds}) {
      const Tensor& ids = arguments.tensor(name);
      const bool fits = ids.rank() == 2 || (ids.rank() == 3 && ids.size(0) > 0);
      check(ids, name, fits, "[tokens, axes], or [batch, tokens, axes] with one entry for all");
    }
  }

  Tensor embed_time(const Arguments& arguments) {
    const auto scaled = [&](Name name) {
      const Tensor& coordinates = arguments.tensor(name);
      const std::vector<double> values = scaled_coordinates(coordinates, kTimestepFactor, context_.table_precision);
      return ops::from_doubles(coordinates.device(), values, coordinates.shape(), kFloat64);
    };
    Arguments inner{{argument::timestep, scaled(argument::timestep)}};
    if (config_.guidance_embeds) inner.set(argument::guidance, scaled(argument::guidance));
    inner.set(argument::pooled_projection, arguments.tensor(kPooledProjections));
    return time_text_embed_.call(std::move(inner)).tensors.front();
  }

  // Ids with a batch axis are an old form: the first entry stands for all.
  static Tensor ids_of(const Arguments& arguments, Name name) {
    const Tensor& ids = arguments.tensor(name);
    return ids.rank() == 3 ? ids.narrow(0, 0, 1).squeeze(0) : ids;
  }

  // ControlNet: sample i / ceil(blocks / samples) after block i, or i mod samples with `repeat`.
  static Tensor add_sample(const Tensor& image, const std::vector<Tensor>& samples, std::size_t block,
                           std::size_t blocks, bool repeat) {
    if (samples.empty()) return image;
    const std::size_t interval = (blocks + samples.size() - 1) / samples.size();
    return ops::add(image, samples[repeat ? block % samples.size() : block / interval]);
  }

  FluxConfig config_;
  ModelContext context_;
  FluxPosEmbed& pos_embed_;
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
  const std::int64_t sum = std::accumulate(config.axes_dims_rope.begin(), config.axes_dims_rope.end(), std::int64_t{0});
  SHARDPROOF_CHECK(sum == config.attention_head_dim, config_error,
                   "{}: axes_dims_rope adds up to {}, but attention_head_dim is {}; they must be equal", json.where(),
                   sum, config.attention_head_dim);
  for (const std::int64_t axis : config.axes_dims_rope) {
    SHARDPROOF_CHECK(axis % 2 == 0, config_error, "{}: axes_dims_rope contains {}; every entry must be even",
                     json.where(), axis);
  }
  return config;
}

std::unique_ptr<Module> make_flux(const FluxConfig& config, const ModelContext& context) {
  return std::make_unique<FluxTransformer2DModel>(config, context);
}

}  // namespace shardproof
