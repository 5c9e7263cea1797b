#include "models/ltx.h"

#include <array>
#include <utility>

#include "core/error.h"
#include "core/ops.h"
#include "models/argument_checks.h"
#include "models/attention_layers.h"
#include "models/config_reader.h"
#include "models/layers.h"

namespace shardproof {
namespace {

constexpr double kTheta = 10000.0;
constexpr double kAttentionNormEps = 1e-5;
constexpr double kOutputNormEps = 1e-6;
constexpr std::int64_t kModulations = 6;
constexpr std::int64_t kAxes = 3;
// What coordinates of (frame, height, width) are fractions of.
constexpr std::array<double, kAxes> kBases{20.0, 2048.0, 2048.0};
// Added to the logits of keys that a mask drops.
constexpr double kDropped = -10000.0;

const Name kTextMask("encoder_attention_mask");
const Name kFrames("num_frames");
const Name kHeight("height");
const Name kWidth("width");
const Name kScale("rope_interpolation_scale");
const Name kCoordinates("video_coords");
const Name kAttentionKwargs("attention_kwargs");

// Grid or coordinates -> {cosine, sine} [1 or batch, tokens, D], each value standing twice, in the wide type.
class LtxRotaryPosEmbed final : public Module {
 public:
  LtxRotaryPosEmbed(const LtxConfig& config, const ModelContext& context)
      : Module("LTXVideoRotaryPosEmbed"), config_(config), context_(context) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states},       {kFrames, ArgumentKind::setting}, {kHeight, ArgumentKind::setting},
        {kWidth, ArgumentKind::setting}, {kScale, ArgumentKind::setting},  {kCoordinates, ArgumentKind::coordinate}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor coordinates = arguments.optional_tensor(kCoordinates);
    const std::int64_t items = coordinates.defined() ? coordinates.size(0) : 1;
    const std::vector<double> fractions =
        coordinates.defined() ? fractions_of(coordinates) : fractions_of(grid_from(arguments), arguments.find(kScale));
    const AngleTable table =
        tables::fraction_angles(fractions, kAxes, config_.width() / 2, kTheta, context_.table_precision);
    const auto on_device = [&](const Tensor& rows) { return rows.view({items, table.rows / items, config_.width()}); };
    const DType dtype = wide_dtype(context_.dtype);
    return Outputs(std::vector<Tensor>{on_device(tables::cosine_on(*context_.device, table, dtype, 2)),
                                       on_device(tables::sine_on(*context_.device, table, dtype, 2))});
  }

 private:
  // x * factor / divisor with one rounding an operation in the table's precision.
  double scaled(double x, double factor, double divisor) const {
    if (context_.table_precision == TablePrecision::float64) return x * factor / divisor;
    return static_cast<double>(static_cast<float>(x) * static_cast<float>(factor) / static_cast<float>(divisor));
  }

  Extents grid_from(const Arguments& arguments) const {
    Extents grid{};
    const std::array<Name, 3> names{kFrames, kHeight, kWidth};
    for (std::size_t axis = 0; axis < grid.size(); ++axis) {
      const Value* value = arguments.find(names[axis]);
      const auto* count = value == nullptr ? nullptr : std::get_if<std::int64_t>(value);
      SHARDPROOF_CHECK(
          count != nullptr && *count >= 1, shape_error,
          "argument '{}' of module '{}' ({}) must be a whole number from 1 where '{}' is not given, got {}",
          names[axis].text(), path(), class_name(), kCoordinates.text(),
          count != nullptr ? std::to_string(*count) : std::string(value == nullptr ? "none" : value_kind_name(*value)));
      grid[axis] = *count;
    }
    check_grid(*this, grid);
    return grid;
  }

  std::array<double, kAxes> scale_from(const Value& value) const {
    std::array<double, kAxes> scale{};
    const auto* nested = std::get_if<NestedNumbers>(&value);
    const auto* list = nested == nullptr ? nullptr : std::get_if<std::vector<NestedNumbers>>(&nested->content);
    bool fits = list != nullptr && list->size() == scale.size();
    for (std::size_t axis = 0; fits && axis < scale.size(); ++axis) {
      const auto* number = std::get_if<double>(&(*list)[axis].content);
      fits = number != nullptr;
      if (fits) scale[axis] = *number;
    }
    SHARDPROOF_CHECK(fits, shape_error, "argument '{}' of module '{}' ({}) must be a list of three numbers, got {}",
                     kScale.text(), path(), class_name(), value_kind_name(value));
    return scale;
  }

  // Coordinates of the tokens, frame by frame and row by row; scaled and divided by their bases if there is a scale.
  std::vector<double> fractions_of(const Extents& grid, const Value* scale) const {
    const bool is_scaled = scale != nullptr && !is_none(*scale);
    const std::array<double, kAxes> factors = is_scaled ? scale_from(*scale) : std::array<double, kAxes>{};
    const std::array<std::int64_t, 3> patches{config_.patch_size_t, config_.patch_size, config_.patch_size};
    const auto fraction = [&](std::size_t axis, std::int64_t i) {
      const auto raw = static_cast<double>(i);
      if (!is_scaled) return raw;
      return scaled(scaled(raw, factors[axis], 1.0), static_cast<double>(patches[axis]), kBases[axis]);
    };
    std::vector<double> fractions;
    for (std::int64_t f = 0; f < grid[0]; ++f) {
      for (std::int64_t y = 0; y < grid[1]; ++y) {
        for (std::int64_t x = 0; x < grid[2]; ++x)
          fractions.insert(fractions.end(), {fraction(0, f), fraction(1, y), fraction(2, x)});
      }
    }
    return fractions;
  }

  // [batch, 3, tokens] -> three fractions a token.
  std::vector<double> fractions_of(const Tensor& coordinates) const {
    std::vector<double> fractions = ops::to_doubles(coordinates.permute({0, 2, 1}));
    for (std::size_t i = 0; i < fractions.size(); ++i) fractions[i] = scaled(fractions[i], 1.0, kBases[i % kAxes]);
    return fractions;
  }

  LtxConfig config_;
  ModelContext context_;
};

// Self-attention with rotary tables over the whole width, or attention to `encoder_hidden_states` under a mask. Either
// kind of keys is divided among the ranks.
class LtxAttention final : public AcrossHeadsAttention {
 public:
  LtxAttention(const LtxConfig& config, std::int64_t key_width)
      : AcrossHeadsAttention("LTXAttention", AcrossHeadsOptions{.query_width = config.width(),
                                                                .key_width = key_width,
                                                                .inner = config.width(),
                                                                .out_width = config.width(),
                                                                .head_dim = config.attention_head_dim,
                                                                .norm_eps = kAttentionNormEps,
                                                                .bias = Linear::Bias{config.attention_bias},
                                                                .out_bias = Linear::Bias{config.attention_out_bias}}) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {argument::attention_mask, ArgumentKind::mask},
                                              {argument::image_rotary_emb}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const Tensor context = arguments.optional_tensor(argument::encoder_hidden_states);
    const Tensor& source = context.defined() ? context : x;
    Tensor q = queries(x), k = keys(source);
    const std::vector<Tensor> rotary = arguments.tensor_list(argument::image_rotary_emb);
    if (!rotary.empty()) {
      q = turned(q, rotary);
      k = turned(k, rotary);
    }
    const Tensor all_heads = heads(q);
    const AttentionMask mask = mask_of(arguments.optional_tensor(argument::attention_mask), all_heads.size(2));
    return output(join_heads(attention(all_heads, heads(k), heads(values(source)), mask, {}, context_parallel()).out));
  }

 private:
  static Tensor turned(const Tensor& x, const std::vector<Tensor>& rotary) {
    return ops::rotary_interleaved(x.unsqueeze(2), rotary[0], rotary[1]).squeeze(2);
  }

  // [batch, 1, keys] is repeated for every head, as the original does it.
  static AttentionMask mask_of(const Tensor& values, std::int64_t heads) {
    if (!values.defined()) return {};
    return {.values = values.unsqueeze(1).expand({values.size(0), heads, 1, values.size(2)}),
            .head_axis = HeadAxis::all};
  }
};

class LtxTransformerBlock final : public Module {
 public:
  explicit LtxTransformerBlock(const LtxConfig& config)
      : Module("LTXVideoTransformerBlock"),
        norm1_(add_norm("norm1", config)),
        attn1_(add_child<LtxAttention>("attn1", config, config.width())),
        norm2_(add_norm("norm2", config)),
        attn2_(add_child<LtxAttention>("attn2", config, config.cross_attention_dim)),
        ff_(add_child<FeedForward>("ff", config.width())) {
    declare_parameter("scale_shift_table", {kModulations, config.width()});
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {argument::temb},
                                              {argument::image_rotary_emb},
                                              {kTextMask, ArgumentKind::mask}};
    return kArguments;
  }

  // temb [batch, 1 or tokens, 6, D]: shift, scale, gate of the self-attention and of the feed-forward. Cross attention
  // has neither norm nor gate.
  Outputs forward(Arguments& arguments) override {
    Tensor x = arguments.tensor(argument::hidden_states);
    const std::vector<Tensor> six = modulations_from_table(parameter(0), arguments.tensor(argument::temb));
    x = add_gated(x, six[2],
                  attn1_
                      .call({{argument::hidden_states, modulate(norm1_(x), six[1], six[0])},
                             {argument::image_rotary_emb, *arguments.find(argument::image_rotary_emb)}})
                      .tensors.front());
    Arguments cross{{argument::hidden_states, x},
                    {argument::encoder_hidden_states, arguments.tensor(argument::encoder_hidden_states)}};
    const Tensor mask = arguments.optional_tensor(kTextMask);
    if (mask.defined()) cross.set(argument::attention_mask, mask);
    x = ops::add(x, attn2_.call(std::move(cross)).tensors.front());
    return add_gated(x, six[5], ff_(modulate(norm2_(x), six[4], six[3])));
  }

 private:
  RmsNorm& add_norm(Name name, const LtxConfig& config) {
    return add_child<RmsNorm>(name, config.width(), config.norm_eps, RmsNorm::Weight{config.norm_elementwise_affine});
  }

  RmsNorm& norm1_;
  LtxAttention& attn1_;
  RmsNorm& norm2_;
  LtxAttention& attn2_;
  FeedForward& ff_;
};

class LtxVideoTransformer3DModel final : public Module {
 public:
  LtxVideoTransformer3DModel(const LtxConfig& config, const ModelContext& context)
      : Module("LTXVideoTransformer3DModel"),
        proj_in_(add_child<Linear>("proj_in", config.in_channels, config.width())),
        time_embed_(
            add_child<AdaLayerNormSingle>("time_embed", "AdaLayerNormSingle", context, config.width(), kModulations)),
        caption_projection_(add_child<TwoLayerMlp>("caption_projection", "PixArtAlphaTextProjection",
                                                   config.caption_channels, config.width(), UnaryOp::gelu_tanh,
                                                   "act_1")),
        rope_(add_child<LtxRotaryPosEmbed>("rope", config, context)),
        blocks_(add_child<ModuleList>("transformer_blocks")),
        norm_out_(add_child<LayerNorm>("norm_out", kOutputNormEps)),
        proj_out_(add_child<Linear>("proj_out", config.width(), config.out_channels)) {
    declare_parameter("scale_shift_table", {2, config.width()});
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<LtxTransformerBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states, ArgumentKind::value},
                                              {argument::encoder_hidden_states, ArgumentKind::value},
                                              {argument::timestep, ArgumentKind::coordinate},
                                              {kTextMask, ArgumentKind::mask},
                                              {kFrames, ArgumentKind::setting},
                                              {kHeight, ArgumentKind::setting},
                                              {kWidth, ArgumentKind::setting},
                                              {kScale, ArgumentKind::setting},
                                              {kCoordinates, ArgumentKind::coordinate},
                                              {kAttentionKwargs, ArgumentKind::setting},
                                              {argument::return_dict, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_settings(arguments);
    check_shapes(arguments);
    const Tensor& video = arguments.tensor(argument::hidden_states);
    const Value rotary = rotary_tables(arguments);
    Tensor x = proj_in_(video);
    const AdaLayerNormSingle::Embedded times = time_embed_.embed(arguments.tensor(argument::timestep));
    Arguments fixed{
        {argument::encoder_hidden_states, caption_projection_(arguments.tensor(argument::encoder_hidden_states))},
        {argument::temb, times.modulations},
        {argument::image_rotary_emb, rotary}};
    const Tensor mask = arguments.optional_tensor(kTextMask);
    if (mask.defined()) fixed.set(kTextMask, additive(ops::cast(mask, video.dtype())));
    for (const auto& block : blocks_.children()) {
      Arguments inner = fixed;
      inner.set(argument::hidden_states, x);
      x = block->call(std::move(inner)).tensors.front();
    }
    const Tensor& of_output = times.embedding;
    const Tensor embedded = of_output.unsqueeze(2).expand({of_output.size(0), of_output.size(1), 2, of_output.size(2)});
    const std::vector<Tensor> shift_and_scale = modulations_from_table(parameter(0), embedded);
    return proj_out_(modulate(norm_out_(x), shift_and_scale[1], shift_and_scale[0]));
  }

 private:
  // [batch, text], 1 = attend -> [batch, 1, text], to be added to logits.
  static Tensor additive(const Tensor& mask) {
    return ops::multiply(ops::add(ops::multiply(mask, -1.0), 1.0), kDropped).unsqueeze(1);
  }

  void check_settings(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    checks.must_be_none(kAttentionKwargs, "adapters are not offered");
    checks.must_return_a_tuple();
  }

  void check_shapes(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    const Tensor& video = checks.sequence(argument::hidden_states, "[batch, tokens, in_channels]");
    const std::int64_t batch = video.size(0);
    const Tensor& text = checks.sequence(argument::encoder_hidden_states, batch,
                                         "[batch, text tokens, caption_channels] with the batch of hidden_states");
    const Tensor mask = arguments.optional_tensor(kTextMask);
    checks.shape(kTextMask, mask, !mask.defined() || mask.shape() == Shape{batch, text.size(1)},
                 "[batch, text tokens] of encoder_hidden_states");
    checks.per_item_or_token(argument::timestep, batch);
    const Tensor& timestep = arguments.tensor(argument::timestep);
    SHARDPROOF_CHECK(timestep.rank() == 1 || timestep.size(1) == video.size(1), shape_error,
                     "argument 'timestep' of module '{}' ({}) has {} tokens, but hidden_states has {}; both must be "
                     "whole, or divided alike",
                     path(), class_name(), timestep.size(1), video.size(1));
    const Tensor coordinates = arguments.optional_tensor(kCoordinates);
    const bool fits = !coordinates.defined() ||
                      (coordinates.rank() == 3 && coordinates.size(0) == batch && coordinates.size(1) == kAxes);
    checks.shape(kCoordinates, coordinates, fits, "[batch, 3, tokens] with the batch of hidden_states");
  }

  std::vector<Tensor> rotary_tables(const Arguments& arguments) {
    const Tensor& video = arguments.tensor(argument::hidden_states);
    Arguments inner{{argument::hidden_states, video}};
    for (const Name name : {kFrames, kHeight, kWidth, kScale, kCoordinates}) {
      if (const Value* value = arguments.find(name)) inner.set(name, *value);
    }
    std::vector<Tensor> tables = rope_.call(std::move(inner)).tensors;
    SHARDPROOF_CHECK(tables.front().size(1) == video.size(1), shape_error,
                     "{}: 'num_frames', 'height' and 'width', or 'video_coords', make a rotary table of {} tokens, but "
                     "hidden_states has {}",
                     class_name(), tables.front().size(1), video.size(1));
    return tables;
  }

  Linear& proj_in_;
  AdaLayerNormSingle& time_embed_;
  TwoLayerMlp& caption_projection_;
  LtxRotaryPosEmbed& rope_;
  ModuleList& blocks_;
  LayerNorm& norm_out_;
  Linear& proj_out_;
};

}  // namespace

LtxConfig ltx_config_from_json(const Json& json) {
  ConfigReader reader(json);
  LtxConfig config;
  reader.read("in_channels", config.in_channels, 1);
  reader.read("out_channels", config.out_channels, 1);
  reader.read("patch_size", config.patch_size, 1);
  reader.read("patch_size_t", config.patch_size_t, 1);
  reader.read("num_attention_heads", config.num_attention_heads, 1);
  reader.read("attention_head_dim", config.attention_head_dim, 1);
  reader.read("cross_attention_dim", config.cross_attention_dim, 1);
  reader.read("num_layers", config.num_layers, 0, ConfigReader::kLargestLayers);
  reader.read_only("activation_fn", "gelu-approximate");
  reader.read_only("qk_norm", "rms_norm_across_heads");
  reader.read("norm_elementwise_affine", config.norm_elementwise_affine);
  reader.read_positive("norm_eps", config.norm_eps);
  reader.read("caption_channels", config.caption_channels, 1);
  reader.read("attention_bias", config.attention_bias);
  reader.read("attention_out_bias", config.attention_out_bias);
  reader.finish();
  SHARDPROOF_CHECK(config.cross_attention_dim == config.width(), config_error,
                   "{}: key 'cross_attention_dim' is {}, but the projected text has the model's width {}; they must be "
                   "equal",
                   json.where(), config.cross_attention_dim, config.width());
  SHARDPROOF_CHECK(config.width() % 2 == 0, config_error,
                   "{}: keys 'num_attention_heads' {} and 'attention_head_dim' {} make an odd width, which has no "
                   "rotary pairs",
                   json.where(), config.num_attention_heads, config.attention_head_dim);
  return config;
}

std::unique_ptr<Module> make_ltx(const LtxConfig& config, const ModelContext& context) {
  return std::make_unique<LtxVideoTransformer3DModel>(config, context);
}

}  // namespace shardproof
