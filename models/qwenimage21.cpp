#include "models/qwenimage21.h"

#include <algorithm>

#include "core/error.h"
#include "core/ops.h"
#include "models/argument_checks.h"
#include "models/attention_layers.h"
#include "models/config_reader.h"
#include "models/image_shapes.h"

namespace shardproof {
namespace {

constexpr double kTheta = 10000.0;
constexpr double kTimestepFactor = 1000.0;
constexpr std::int64_t kTimestepWidth = 256;
constexpr std::int64_t kTokensPerSlot = 4;
constexpr auto kNoBias = Linear::Bias::absent;

const Name kImageShapes("img_shapes");
const Name kImageMask("img_mask");
const Name kTextMask("encoder_hidden_states_mask");
const Name kAttentionKwargs("attention_kwargs");
const Name kCache("kv_cache");
const Name kCacheMode("kv_cache_mode");
const Name kModulation("modulation");
const Name kRotary("rotary_emb");
// [batch, tokens] int64: 0 for tokens of the target image, 1 for all others; absent where all take their own row.
const Name kTargetTokens("target_token_mask");

constexpr std::int64_t kNoImage = -1;

// How the joint sequence is put together: what each token is, in order.
struct JointLayout {
  struct Token {
    std::int64_t image = kNoImage;  // number of its image
    std::int64_t row = 0;           // of the text, or of the latent tokens
  };
  std::vector<Token> tokens;
  std::int64_t target = 0;  // number of the last image
};

// Frame, height and width of every token: text moves on by one on all axes; an image stands at one frame, its rows and
// columns around the middle, and moves on by the larger of its sides.
std::vector<std::vector<double>> positions_of(const JointLayout& layout, const std::vector<ImageShape>& images) {
  std::vector<std::vector<double>> positions(3);
  const auto push = [&](std::int64_t frame, std::int64_t row, std::int64_t column) {
    positions[0].push_back(static_cast<double>(frame));
    positions[1].push_back(static_cast<double>(row));
    positions[2].push_back(static_cast<double>(column));
  };
  std::int64_t next = 0;
  for (std::size_t i = 0; i < layout.tokens.size();) {
    if (layout.tokens[i].image == kNoImage) {
      push(next, next, next);
      ++next;
      ++i;
      continue;
    }
    const ImageShape& image = images[static_cast<std::size_t>(layout.tokens[i].image)];
    for (const std::int64_t row : centred_positions(image.height)) {
      for (const std::int64_t column : centred_positions(image.width)) push(next, row, column);
    }
    next += std::max(image.height, image.width);
    i += static_cast<std::size_t>(image.tokens());
  }
  return positions;
}

// Positions [tokens, 3] on the host -> [tokens, head_dim] = [cos | sin], in the wide type.
class QwenImage21PosEmbed final : public Module {
 public:
  QwenImage21PosEmbed(const QwenImage21Config& config, const ModelContext& context)
      : Module("QwenImage21EmbedRope"), context_(context), widths_(config.axes_dims_rope) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::ids, ArgumentKind::coordinate}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& ids = arguments.tensor(argument::ids);
    std::vector<AngleTable> parts;
    for (std::size_t axis = 0; axis < widths_.size(); ++axis) {
      const std::vector<double> positions = ops::to_doubles(ids.narrow(1, static_cast<std::int64_t>(axis), 1));
      parts.push_back(tables::rotary_angles32(positions, widths_[axis], kTheta, context_.table_precision));
    }
    return cosine_and_sine(*context_.device, tables::side_by_side(parts), wide_dtype(context_.dtype));
  }

 private:
  ModelContext context_;
  std::vector<std::int64_t> widths_;
};

// RMS norm whose weight is stored less one.
class QwenImage21RmsNorm final : public TensorModule {
 public:
  QwenImage21RmsNorm(std::int64_t width, double eps) : TensorModule("QwenImage21RMSNorm"), eps_(eps) {
    declare_parameter("weight", {width});
  }

 private:
  Tensor compute(const Tensor& x) const override { return ops::rms_norm(x, ops::add(parameter(0), 1.0), eps_); }
  double eps_;
};

class QwenImage21TextProjection final : public TensorModule {
 public:
  explicit QwenImage21TextProjection(const QwenImage21Config& config)
      : TensorModule("QwenImage21TextProjection"),
        text_norm_(add_child<QwenImage21RmsNorm>("text_norm", config.context_in_dim, config.eps)),
        in_layer_(add_child<Linear>("in_layer", config.context_in_dim, config.width(), kNoBias)),
        act_(add_child<Activation>("act", "GELU", UnaryOp::gelu_tanh)),
        out_layer_(add_child<Linear>("out_layer", config.width(), config.width(), kNoBias)) {}

 private:
  Tensor compute(const Tensor& x) const override { return out_layer_(act_(in_layer_(text_norm_(x)))); }
  QwenImage21RmsNorm& text_norm_;
  Linear& in_layer_;
  Activation& act_;
  Linear& out_layer_;
};

class QwenImage21TimestepEmbedding final : public Module {
 public:
  QwenImage21TimestepEmbedding(const QwenImage21Config& config, const ModelContext& context)
      : Module("QwenImage21TimestepProjEmbeddings"),
        time_proj_(add_child<TimestepProjection>("time_proj", context, kTimestepWidth)),
        timestep_embedder_(add_child<TwoLayerMlp>("timestep_embedder", "TimestepEmbedding", kTimestepWidth,
                                                  config.width(), UnaryOp::silu, "act", kNoBias)) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::timestep, ArgumentKind::coordinate}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    return timestep_embedder_(
        time_proj_.call({{argument::timestep, arguments.tensor(argument::timestep)}}).tensors.front());
  }

 private:
  TimestepProjection& time_proj_;
  TwoLayerMlp& timestep_embedder_;
};

// Block-causal self-attention. Its mask has rows of queries over all keys of the sequence, which no rank could give of
// the keys of others: it runs on whole sequences only.
class QwenImage21Attention final : public ProjectedAttention {
 public:
  explicit QwenImage21Attention(const QwenImage21Config& config)
      : ProjectedAttention("QwenImage21Attention", {.width = config.width(),
                                                    .head_dim = config.attention_head_dim,
                                                    .norm_eps = config.eps,
                                                    .bias = kNoBias,
                                                    .rotary_source = "the image shapes and the text of module ''"}),
        projections_(add_projections({"norm_q", "norm_k", "to_q", "to_k", "to_v"})),
        to_out_(add_child<ModuleList>("to_out").append<Linear>(config.width(), config.width(), kNoBias)) {}

  std::string_view context_parallel_obstacle() const override {
    return "its mask is block causal and needs all queries and keys on one rank; the nearest legal configuration is "
           "one "
           "rank, or tensor parallelism";
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states}, {kRotary}, {argument::attention_mask, ArgumentKind::mask}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const QueryKeyValue all = project(projections_, arguments.tensor(argument::hidden_states));
    return to_out_(attend(all, arguments, kRotary,
                          {.values = arguments.tensor(argument::attention_mask), .query_axis = QueryAxis::local}));
  }

 private:
  Projections projections_;
  Linear& to_out_;
};

// out(SiLU(gate_layer x) * proj x).
class QwenImage21FeedForward final : public TensorModule {
 public:
  explicit QwenImage21FeedForward(const QwenImage21Config& config)
      : TensorModule("QwenImage21FeedForward"),
        proj_(add_child<Linear>("proj", config.width(), config.mlp_ratio * config.width(), kNoBias)),
        gate_layer_(add_child<Linear>("gate_layer", config.width(), config.mlp_ratio * config.width(), kNoBias)),
        activation_fn_(add_child<Activation>("activation_fn", "SiLU", UnaryOp::silu)),
        out_(add_child<Linear>("out", config.mlp_ratio * config.width(), config.width(), kNoBias)) {}

 private:
  Tensor compute(const Tensor& x) const override {
    return out_(ops::multiply(activation_fn_(gate_layer_(x)), proj_(x)));
  }
  Linear& proj_;
  Linear& gate_layer_;
  Activation& activation_fn_;
  Linear& out_;
};

// Row b for tokens of the target, the last row for the others; [batch, 1, n] where there is no index.
Tensor target_rows(const Tensor& rows, const Tensor& index) {
  if (!index.defined()) return rows.unsqueeze(1);
  const std::int64_t batch = index.size(0);
  return rows_per_token(rows.narrow(0, 0, batch), rows.narrow(0, batch, 1), index);
}

Tensor scaled(const Tensor& x, const Tensor& scale) { return ops::multiply(x, ops::add(scale, 1.0)); }

class QwenImage21TransformerBlock final : public Module {
 public:
  explicit QwenImage21TransformerBlock(const QwenImage21Config& config)
      : Module("QwenImage21TransformerBlock"),
        img_norm1_(add_child<LayerNorm>("img_norm1", config.eps)),
        attn_(add_child<QwenImage21Attention>("attn", config)),
        img_norm2_(add_child<LayerNorm>("img_norm2", config.eps)),
        img_mlp_(add_child<QwenImage21FeedForward>("img_mlp", config)) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {kModulation},
                                              {kRotary},
                                              {argument::attention_mask, ArgumentKind::mask},
                                              {kTargetTokens, ArgumentKind::index},
                                              {"layer_cache", ArgumentKind::setting},
                                              {kCacheMode, ArgumentKind::setting},
                                              {"cache_write_slice", ArgumentKind::setting},
                                              {"segments", ArgumentKind::setting},
                                              {"key_valid", ArgumentKind::mask}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    // scale1, gate1, scale2, gate2
    const std::vector<Tensor> modulation =
        ops::chunk(target_rows(arguments.tensor(kModulation), arguments.optional_tensor(kTargetTokens)), 4, -1);
    const Outputs attended = attn_.call({{argument::hidden_states, scaled(img_norm1_(x), modulation[0])},
                                         {kRotary, *arguments.find(kRotary)},
                                         {argument::attention_mask, arguments.tensor(argument::attention_mask)}});
    const Tensor after_attention = add_gated(x, ops::tanh(modulation[1]), attended.tensors.front());
    const Tensor mlp = img_mlp_(scaled(img_norm2_(after_attention), modulation[2]));
    return ops::clamp_to_float16(add_gated(after_attention, ops::tanh(modulation[3]), mlp));
  }

 private:
  LayerNorm& img_norm1_;
  QwenImage21Attention& attn_;
  LayerNorm& img_norm2_;
  QwenImage21FeedForward& img_mlp_;
};

// LN(x)(1 + scale) with the scale of each token's row.
class QwenImage21AdaLayerNormOut final : public Module {
 public:
  explicit QwenImage21AdaLayerNormOut(const QwenImage21Config& config)
      : Module("QwenImage21AdaLayerNormOut"),
        silu_(add_child<Activation>("silu", "SiLU", UnaryOp::silu)),
        linear_(add_child<Linear>("linear", config.width(), config.width(), kNoBias)),
        norm_(add_child<LayerNorm>("norm", config.eps)) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states}, {argument::temb}, {kTargetTokens, ArgumentKind::index}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor rows = linear_(silu_(arguments.tensor(argument::temb)));
    return scaled(norm_(arguments.tensor(argument::hidden_states)),
                  target_rows(rows, arguments.optional_tensor(kTargetTokens)));
  }

 private:
  Activation& silu_;
  Linear& linear_;
  LayerNorm& norm_;
};

class QwenImage21Transformer2DModel final : public Module {
 public:
  QwenImage21Transformer2DModel(const QwenImage21Config& config, const ModelContext& context)
      : Module("QwenImage21Transformer2DModel"),
        config_(config),
        context_(context),
        pos_embed_(add_child<QwenImage21PosEmbed>("pos_embed", config, context)),
        time_text_embed_(add_child<QwenImage21TimestepEmbedding>("time_text_embed", config, context)),
        txt_in_(add_child<QwenImage21TextProjection>("txt_in", config)),
        img_in_(add_child<Linear>("img_in", config.in_channels * config.patch_size * config.patch_size, config.width(),
                                  kNoBias)),
        modulation_(add_child<SiluLinear>("modulation", SiluLinear::Names{"Sequential", "0", "1"}, config.width(),
                                          4 * config.width(), kNoBias)),
        blocks_(add_child<ModuleList>("transformer_blocks")),
        norm_out_(add_child<QwenImage21AdaLayerNormOut>("norm_out", config)),
        proj_out_(add_child<Linear>("proj_out", config.width(),
                                    config.patch_size * config.patch_size * config.out_channels, kNoBias)) {
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<QwenImage21TransformerBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states, ArgumentKind::value},
                                              {argument::encoder_hidden_states, ArgumentKind::value},
                                              {argument::timestep, ArgumentKind::coordinate},
                                              {kImageShapes, ArgumentKind::setting},
                                              {kImageMask, ArgumentKind::mask},
                                              {kTextMask, ArgumentKind::mask},
                                              {kAttentionKwargs, ArgumentKind::setting},
                                              {kCache, ArgumentKind::setting},
                                              {kCacheMode, ArgumentKind::setting},
                                              {argument::return_dict, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_settings(arguments);
    const std::vector<ImageShape> images = check_shapes(arguments);
    const JointLayout layout = layout_of(arguments, images);
    const Tensor image = img_in_(arguments.tensor(argument::hidden_states));
    const Tensor text = txt_in_(arguments.tensor(argument::encoder_hidden_states));
    Tensor joint = joint_sequence(layout, text, image);
    const Value rotary = rotary_tables(positions_of(layout, images), arguments.tensor(argument::timestep).device());
    const Tensor temb = embed_time(arguments);
    const Tensor index = config_.causal_condition ? target_tokens(layout, joint.size(0)) : Tensor();
    Arguments fixed{{kModulation, modulation_(temb)},
                    {kRotary, rotary},
                    {argument::attention_mask, attention_mask(layout, arguments)}};
    if (index.defined()) fixed.set(kTargetTokens, index);
    for (const auto& block : blocks_.children()) {
      Arguments inner = fixed;
      inner.set(argument::hidden_states, joint);
      joint = block->call(std::move(inner)).tensors.front();
    }
    Arguments last{{argument::hidden_states, joint}, {argument::temb, temb}};
    if (index.defined()) last.set(kTargetTokens, index);
    return proj_out_(norm_out_.call(std::move(last)).tensors.front());
  }

 private:
  void check_settings(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    checks.must_be_none(kAttentionKwargs, "adapters are not offered");
    for (const Name name : {kCache, kCacheMode}) {
      checks.must_be_off(name, "key-value caches are not offered; run the whole sequence without a cache");
    }
  }

  // The images, of which all samples have the same.
  std::vector<ImageShape> check_shapes(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    const Tensor& image = checks.sequence(argument::hidden_states, "[batch, image tokens, in_channels]");
    const std::int64_t batch = image.size(0);
    const Tensor& text = checks.sequence(argument::encoder_hidden_states, batch,
                                         "[batch, text tokens, context_in_dim] with the batch of hidden_states");
    const Tensor& timestep = arguments.tensor(argument::timestep);
    checks.shape(argument::timestep, timestep, timestep.shape() == Shape{batch}, "[batch] of hidden_states");
    const Tensor text_mask = arguments.optional_tensor(kTextMask);
    checks.shape(kTextMask, text_mask, !text_mask.defined() || text_mask.shape() == Shape{batch, text.size(1)},
                 "[batch, text tokens] of encoder_hidden_states");
    const Tensor& slots = arguments.tensor(kImageMask);
    checks.shape(kImageMask, slots, slots.rank() == 2 && slots.size(0) == batch,
                 "[batch, slots] with the batch of hidden_states");
    const ImageShapes shapes = image_shapes_from(arguments, kImageShapes, class_name(), batch, image.size(1));
    for (const std::vector<ImageShape>& images : shapes) {
      SHARDPROOF_CHECK(images == shapes.front(), shape_error,
                       "argument '{}' of {}: all samples must have the same images", kImageShapes.text(), class_name());
    }
    for (const ImageShape& one : shapes.front()) {
      SHARDPROOF_CHECK(one.frames == 1 && one.tokens() % kTokensPerSlot == 0, shape_error,
                       "argument '{}' of {}: an image of [{}, {}, {}]; expected one frame and a multiple of {} tokens",
                       kImageShapes.text(), class_name(), one.frames, one.height, one.width, kTokensPerSlot);
    }
    return shapes.front();
  }

  // Walks the slots of the first sample, which all samples must share: an image slot takes the next four latent tokens,
  // another one the text row of its own number.
  JointLayout layout_of(const Arguments& arguments, const std::vector<ImageShape>& images) const {
    const Tensor& slots = arguments.tensor(kImageMask);
    const std::int64_t text_tokens = arguments.tensor(argument::encoder_hidden_states).size(1);
    const std::vector<double> marks = ops::to_doubles(ops::cast(slots, kBool));
    const auto width = static_cast<std::size_t>(slots.size(1));
    for (std::size_t i = width; i < marks.size(); ++i) {
      SHARDPROOF_CHECK(marks[i] == marks[i % width], shape_error,
                       "argument '{}' of {}: slot {} differs between samples 0 and {}; all samples must be alike",
                       kImageMask.text(), class_name(), i % width, i / width);
    }
    JointLayout layout{.tokens = {}, .target = static_cast<std::int64_t>(images.size()) - 1};
    std::int64_t latent = 0, image = 0, left_of_image = images.front().tokens();
    for (std::size_t slot = 0; slot < width; ++slot) {
      const bool is_image = marks[slot] != 0.0;
      check_slot(slot, is_image, image, left_of_image, images, text_tokens);
      if (!is_image) {
        layout.tokens.push_back({kNoImage, static_cast<std::int64_t>(slot)});
        continue;
      }
      for (std::int64_t i = 0; i < kTokensPerSlot; ++i) layout.tokens.push_back({image, latent++});
      left_of_image -= kTokensPerSlot;
      if (left_of_image > 0) continue;
      ++image;
      if (image <= layout.target) left_of_image = images[static_cast<std::size_t>(image)].tokens();
    }
    SHARDPROOF_CHECK(image > layout.target, shape_error,
                     "argument '{}' of {} has {} latent tokens in its image slots; expected those of all {} images",
                     kImageMask.text(), class_name(), latent, images.size());
    return layout;
  }

  void check_slot(std::size_t slot, bool is_image, std::int64_t image, std::int64_t left_of_image,
                  const std::vector<ImageShape>& images, std::int64_t text_tokens) const {
    const auto fail_at = [&](std::string_view problem) {
      fail(ErrorKind::shape_error, "argument '{}' of {}: slot {} {}", kImageMask.text(), class_name(), slot, problem);
    };
    const bool has_image = image < static_cast<std::int64_t>(images.size());
    if (is_image && !has_image) fail_at("is an image slot, but all images of img_shapes stand before it");
    if (is_image) return;
    if (has_image && left_of_image != images[static_cast<std::size_t>(image)].tokens())
      fail_at("is text inside an image; the slots of an image must follow each other");
    if (static_cast<std::int64_t>(slot) >= text_tokens) fail_at("is text, but encoder_hidden_states ends before it");
  }

  static Tensor joint_sequence(const JointLayout& layout, const Tensor& text, const Tensor& image) {
    std::vector<Tensor> runs;
    for (std::size_t begin = 0; begin < layout.tokens.size();) {
      const JointLayout::Token& first = layout.tokens[begin];
      std::size_t end = begin + 1;
      while (end < layout.tokens.size() && (layout.tokens[end].image == kNoImage) == (first.image == kNoImage)) ++end;
      const Tensor& source = first.image == kNoImage ? text : image;
      runs.push_back(source.narrow(1, first.row, static_cast<std::int64_t>(end - begin)));
      begin = end;
    }
    return ops::concat(runs, 1);
  }

  std::vector<Tensor> rotary_tables(const std::vector<std::vector<double>>& positions, Device& host) {
    const auto tokens = static_cast<std::int64_t>(positions.front().size());
    std::vector<double> ids;
    for (std::size_t token = 0; token < positions.front().size(); ++token) {
      for (const std::vector<double>& axis : positions) ids.push_back(axis[token]);
    }
    const Tensor host_ids = ops::from_doubles(host, ids, {tokens, 3}, kFloat64);
    return doubled_tables(pos_embed_.call({{argument::ids, host_ids}}).tensors.front());
  }

  // Rows for the given timesteps, and with causal_condition one for zero.
  Tensor embed_time(const Arguments& arguments) {
    const Tensor& timestep = arguments.tensor(argument::timestep);
    const Tensor times = scaled_coordinate_tensor(timestep, kTimestepFactor, context_.table_precision);
    const Tensor zero = ops::zeros(timestep.device(), {1}, kFloat64);
    const Tensor all = config_.causal_condition ? ops::concat({times, zero}, 0) : times;
    return time_text_embed_.call({{argument::timestep, all}}).tensors.front();
  }

  Tensor target_tokens(const JointLayout& layout, std::int64_t batch) const {
    std::vector<double> index;
    for (const JointLayout::Token& token : layout.tokens) index.push_back(token.image == layout.target ? 0.0 : 1.0);
    const auto tokens = static_cast<std::int64_t>(index.size());
    return ops::from_doubles(*context_.device, index, {1, tokens}, kInt64).expand({batch, tokens});
  }

  // [batch|1, 1, tokens, tokens]: keys up to the query, those of the query's image, and no text that the text mask
  // drops.
  Tensor attention_mask(const JointLayout& layout, const Arguments& arguments) const {
    const Tensor text_mask = arguments.optional_tensor(kTextMask);
    const std::vector<double> valid =
        text_mask.defined() ? ops::to_doubles(ops::cast(text_mask, kBool)) : std::vector<double>();
    const std::int64_t batch = text_mask.defined() ? text_mask.size(0) : 1;
    const auto tokens = static_cast<std::int64_t>(layout.tokens.size());
    std::vector<double> allowed;
    allowed.reserve(static_cast<std::size_t>(batch * tokens * tokens));
    for (std::int64_t item = 0; item < batch; ++item) {
      for (std::size_t q = 0; q < layout.tokens.size(); ++q) {
        for (std::size_t k = 0; k < layout.tokens.size(); ++k) {
          const JointLayout::Token& key = layout.tokens[k];
          const bool same_image = key.image != kNoImage && key.image == layout.tokens[q].image;
          const bool is_dropped = key.image == kNoImage && text_mask.defined() &&
                                  valid[static_cast<std::size_t>(item * text_mask.size(1) + key.row)] == 0.0;
          allowed.push_back((q >= k || same_image) && !is_dropped ? 1.0 : 0.0);
        }
      }
    }
    return ops::from_doubles(*context_.device, allowed, {batch, 1, tokens, tokens}, kBool);
  }

  QwenImage21Config config_;
  ModelContext context_;
  QwenImage21PosEmbed& pos_embed_;
  QwenImage21TimestepEmbedding& time_text_embed_;
  QwenImage21TextProjection& txt_in_;
  Linear& img_in_;
  SiluLinear& modulation_;
  ModuleList& blocks_;
  QwenImage21AdaLayerNormOut& norm_out_;
  Linear& proj_out_;
};

}  // namespace

QwenImage21Config qwenimage21_config_from_json(const Json& json) {
  ConfigReader reader(json);
  QwenImage21Config config;
  reader.read("patch_size", config.patch_size, 1);
  reader.read("in_channels", config.in_channels, 1);
  const Json* out_channels = json.find("out_channels");
  if (out_channels != nullptr && out_channels->is_null()) config.out_channels = config.in_channels;
  reader.read("out_channels", config.out_channels, 1);
  reader.read("num_layers", config.num_layers, 0, ConfigReader::kLargestLayers);
  reader.read("attention_head_dim", config.attention_head_dim, 1);
  reader.read("num_attention_heads", config.num_attention_heads, 1);
  reader.read("context_in_dim", config.context_in_dim, 1);
  reader.read("mlp_ratio", config.mlp_ratio, 1, 64);
  reader.read("axes_dims_rope", config.axes_dims_rope, 1);
  reader.read_positive("eps", config.eps);
  reader.read("causal_condition", config.causal_condition);
  reader.finish();
  reader.check_rope_axes(config.axes_dims_rope, config.attention_head_dim);
  reader.check_three_axes(config.axes_dims_rope);
  return config;
}

std::unique_ptr<Module> make_qwenimage21(const QwenImage21Config& config, const ModelContext& context) {
  return std::make_unique<QwenImage21Transformer2DModel>(config, context);
}

}  // namespace shardproof
