#include "models/qwenimage.h"

#include <algorithm>

#include "core/error.h"
#include "core/ops.h"
#include "models/argument_checks.h"
#include "models/attention_layers.h"
#include "models/config_reader.h"
#include "models/image_shapes.h"

namespace shardproof {
namespace {

constexpr double kNormEps = 1e-6;
constexpr double kTheta = 10000.0;
constexpr double kTimestepFactor = 1000.0;
constexpr std::int64_t kTimestepWidth = 256;
constexpr std::int64_t kAdditionalConditions = 2;
// Positions that the original's tables hold: -kTableLength .. kTableLength - 1.
constexpr std::int64_t kTableLength = 4096;

const Name kImageShapes("img_shapes");
const Name kTextMask("encoder_hidden_states_mask");
const Name kModulateIndex("modulate_index");
const Name kAdditionalCondition("additional_t_cond");
const Name kAttentionKwargs("attention_kwargs");
const Name kTextTokens("max_txt_seq_len");

// temb = timestep_embedder(time_proj(t)) [+ row of addition_t_embedding].
class QwenTimestepProjEmbeddings final : public Module {
 public:
  QwenTimestepProjEmbeddings(const QwenImageConfig& config, const ModelContext& context)
      : Module("QwenTimestepProjEmbeddings"),
        time_proj_(add_child<TimestepProjection>("time_proj", context, kTimestepWidth, kTimestepFactor)),
        timestep_embedder_(add_child<TwoLayerMlp>("timestep_embedder", "TimestepEmbedding", kTimestepWidth,
                                                  config.width(), UnaryOp::silu, "act")) {
    if (!config.use_additional_t_cond) return;
    addition_t_embedding_ = &add_child<Embedding>("addition_t_embedding", kAdditionalConditions, config.width());
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::timestep, ArgumentKind::coordinate},
                                              {kAdditionalCondition, ArgumentKind::index}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor projected =
        time_proj_.call({{argument::timestep, arguments.tensor(argument::timestep)}}).tensors.front();
    const Tensor temb = timestep_embedder_(projected);
    if (addition_t_embedding_ == nullptr) return temb;
    return ops::add(temb, (*addition_t_embedding_)(arguments.tensor(kAdditionalCondition)));
  }

 private:
  TimestepProjection& time_proj_;
  TwoLayerMlp& timestep_embedder_;
  Embedding* addition_t_embedding_ = nullptr;
};

// Positions of the images and the text on three axes -> the tables (image, text), each [tokens, head_dim] = [cos |
// sin]. In the wide type.
class QwenEmbedRope final : public Module {
 public:
  QwenEmbedRope(const QwenImageConfig& config, const ModelContext& context)
      : Module(config.use_layer3d_rope ? "QwenEmbedLayer3DRope" : "QwenEmbedRope"),
        context_(context),
        widths_(config.axes_dims_rope),
        last_image_is_condition_(config.use_layer3d_rope) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{kImageShapes, ArgumentKind::setting},
                                              {kTextTokens, ArgumentKind::setting}};
    return kArguments;
  }

  // img_shapes: the images of one sample.
  Outputs forward(Arguments& arguments) override {
    const auto text_tokens = std::get<std::int64_t>(*arguments.find(kTextTokens));
    const auto& nested = std::get<NestedNumbers>(*arguments.find(kImageShapes));
    const Value one_sample = NestedNumbers{std::vector<NestedNumbers>{nested}};
    return of(image_shapes_in(one_sample, kImageShapes, class_name()).front(), text_tokens);
  }

 private:
  using Axes = std::vector<std::vector<double>>;

  Outputs of(const std::vector<ImageShape>& images, std::int64_t text_tokens) const {
    Axes image(3);
    std::int64_t text_start = last_image_is_condition_ ? static_cast<std::int64_t>(images.size()) - 1 : 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
      const bool is_condition = last_image_is_condition_ && i + 1 == images.size();
      append_image(images[i], is_condition ? -1 : static_cast<std::int64_t>(i), is_condition, image);
      text_start = std::max({text_start, images[i].height / 2, images[i].width / 2});
    }
    check_in_table("text", text_start + text_tokens);
    std::vector<double> text;
    for (std::int64_t j = 0; j < text_tokens; ++j) text.push_back(static_cast<double>(text_start + j));
    return Outputs(std::vector<Tensor>{table(image), table({text, text, text})});
  }

  // Frames from `first_frame` on, or all at it; rows and columns around the middle.
  void append_image(const ImageShape& image, std::int64_t first_frame, bool one_frame, Axes& positions) const {
    check_in_table("an image", std::max({first_frame + image.frames, (image.height + 1) / 2, (image.width + 1) / 2}));
    for (std::int64_t frame = 0; frame < image.frames; ++frame) {
      for (const std::int64_t row : centred_positions(image.height)) {
        for (const std::int64_t column : centred_positions(image.width)) {
          positions[0].push_back(static_cast<double>(first_frame + (one_frame ? 0 : frame)));
          positions[1].push_back(static_cast<double>(row));
          positions[2].push_back(static_cast<double>(column));
        }
      }
    }
  }

  void check_in_table(std::string_view what, std::int64_t end) const {
    SHARDPROOF_CHECK(end <= kTableLength, shape_error,
                     "{}: {} reaches position {}, but the tables end at {}; use fewer tokens", class_name(), what,
                     end - 1, kTableLength - 1);
  }

  Tensor table(const Axes& positions) const {
    std::vector<AngleTable> parts;
    for (std::size_t axis = 0; axis < widths_.size(); ++axis) {
      parts.push_back(tables::rotary_angles32(positions[axis], widths_[axis], kTheta, context_.table_precision));
    }
    return cosine_and_sine(*context_.device, tables::side_by_side(parts), wide_dtype(context_.dtype));
  }

  ModelContext context_;
  std::vector<std::int64_t> widths_;
  bool last_image_is_condition_;
};

// Each half of a modulation for every token or for all: shift, scale, gate.
struct Modulation {
  Tensor shift, scale, gate;
};

Modulation modulation_from(const Tensor& half) {
  const std::vector<Tensor> chunks = ops::chunk(half, 3, -1);
  return {chunks[0], chunks[1], chunks[2]};
}

// Returns (text, image).
class QwenImageTransformerBlock final : public Module {
 public:
  explicit QwenImageTransformerBlock(const QwenImageConfig& config)
      : Module("QwenImageTransformerBlock"),
        img_mod_(add_modulation("img_mod", config.width())),
        img_norm1_(add_child<LayerNorm>("img_norm1", kNormEps)),
        attn_(
            add_child<JointAttention>("attn", "Attention",
                                      AttentionLayerOptions{.width = config.width(),
                                                            .head_dim = config.attention_head_dim,
                                                            .norm_eps = kNormEps,
                                                            .rotary_source = "the two outputs of module 'pos_embed'"})),
        img_norm2_(add_child<LayerNorm>("img_norm2", kNormEps)),
        img_mlp_(add_child<FeedForward>("img_mlp", config.width())),
        txt_mod_(add_modulation("txt_mod", config.width())),
        txt_norm1_(add_child<LayerNorm>("txt_norm1", kNormEps)),
        txt_norm2_(add_child<LayerNorm>("txt_norm2", kNormEps)),
        txt_mlp_(add_child<FeedForward>("txt_mlp", config.width())) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {kTextMask, ArgumentKind::mask},
                                              {argument::temb},
                                              {argument::image_rotary_emb},
                                              {argument::joint_attention_kwargs, ArgumentKind::setting},
                                              {kModulateIndex, ArgumentKind::index}};
    return kArguments;
  }

  // With a modulate_index, temb has twice the batch; the text takes its first half.
  Outputs forward(Arguments& arguments) override {
    const Tensor& image = arguments.tensor(argument::hidden_states);
    const Tensor& text = arguments.tensor(argument::encoder_hidden_states);
    const Tensor& temb = arguments.tensor(argument::temb);
    const Tensor index = arguments.optional_tensor(kModulateIndex);
    const Tensor of_image = img_mod_(temb);
    const Tensor of_text = txt_mod_(index.defined() ? temb.narrow(0, 0, temb.size(0) / 2) : temb);
    const std::vector<Tensor> image_halves = ops::chunk(index.defined() ? per_token(of_image, index) : of_image, 2, -1);
    const std::vector<Tensor> text_halves = ops::chunk(of_text, 2, -1);

    const Modulation image_first = modulation_from(image_halves[0]), text_first = modulation_from(text_halves[0]);
    Arguments joint{{argument::hidden_states, modulate(img_norm1_(image), image_first.scale, image_first.shift)},
                    {argument::encoder_hidden_states, modulate(txt_norm1_(text), text_first.scale, text_first.shift)},
                    {argument::image_rotary_emb, *arguments.find(argument::image_rotary_emb)}};
    const Tensor text_mask = arguments.optional_tensor(kTextMask);
    if (text_mask.defined()) joint.set(argument::attention_mask, joint_mask(text_mask, image.size(1)));
    const Outputs attended = attn_.call(std::move(joint));
    const Tensor new_image = add_mlp(add_gated(image, image_first.gate, attended.tensors[0]),
                                     modulation_from(image_halves[1]), img_norm2_, img_mlp_);
    const Tensor new_text = add_mlp(add_gated(text, text_first.gate, attended.tensors[1]),
                                    modulation_from(text_halves[1]), txt_norm2_, txt_mlp_);
    return Outputs(std::vector<Tensor>{ops::clamp_to_float16(new_text), ops::clamp_to_float16(new_image)});
  }

 private:
  SiluLinear& add_modulation(Name name, std::int64_t width) {
    return add_child<SiluLinear>(name, SiluLinear::Names{"Sequential", "0", "1"}, width, 6 * width);
  }

  // Row b of [2 batch, n] for the tokens of the first image, row b + batch for the others.
  static Tensor per_token(const Tensor& rows, const Tensor& index) {
    const std::int64_t batch = index.size(0);
    return rows_per_token(rows.narrow(0, 0, batch), rows.narrow(0, batch, batch), index);
  }

  // [batch, text + image]: every image token is attended.
  static Tensor joint_mask(const Tensor& text_mask, std::int64_t image_tokens) {
    const Tensor image = ops::full(text_mask.device(), {text_mask.size(0), image_tokens}, kBool, 1.0);
    return ops::concat({text_mask, image}, 1);
  }

  static Tensor add_mlp(const Tensor& x, const Modulation& modulation, LayerNorm& norm, FeedForward& mlp) {
    return add_gated(x, modulation.gate, mlp(modulate(norm(x), modulation.scale, modulation.shift)));
  }

  SiluLinear& img_mod_;
  LayerNorm& img_norm1_;
  JointAttention& attn_;
  LayerNorm& img_norm2_;
  FeedForward& img_mlp_;
  SiluLinear& txt_mod_;
  LayerNorm& txt_norm1_;
  LayerNorm& txt_norm2_;
  FeedForward& txt_mlp_;
};

class QwenImageTransformer2DModel final : public Module {
 public:
  QwenImageTransformer2DModel(const QwenImageConfig& config, const ModelContext& context)
      : Module("QwenImageTransformer2DModel"),
        config_(config),
        context_(context),
        pos_embed_(add_child<QwenEmbedRope>("pos_embed", config, context)),
        time_text_embed_(add_child<QwenTimestepProjEmbeddings>("time_text_embed", config, context)),
        txt_norm_(add_child<RmsNorm>("txt_norm", config.joint_attention_dim, kNormEps)),
        img_in_(add_child<Linear>("img_in", config.in_channels, config.width())),
        txt_in_(add_child<Linear>("txt_in", config.joint_attention_dim, config.width())),
        blocks_(add_child<ModuleList>("transformer_blocks")),
        norm_out_(add_child<AdaLayerNormContinuous>("norm_out", config.width(), kNormEps)),
        proj_out_(add_child<Linear>("proj_out", config.width(),
                                    config.patch_size * config.patch_size * config.out_channels)) {
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<QwenImageTransformerBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states, ArgumentKind::value},
                                              {argument::encoder_hidden_states, ArgumentKind::value},
                                              {kTextMask, ArgumentKind::mask},
                                              {argument::timestep, ArgumentKind::coordinate},
                                              {kImageShapes, ArgumentKind::setting},
                                              {argument::guidance, ArgumentKind::coordinate},
                                              {kAttentionKwargs, ArgumentKind::setting},
                                              {argument::controlnet_block_samples, ArgumentKind::value},
                                              {kAdditionalCondition, ArgumentKind::index},
                                              {argument::return_dict, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_settings(arguments);
    const ImageShapes shapes = check_shapes(arguments);
    Tensor image = img_in_(arguments.tensor(argument::hidden_states));
    Tensor text = txt_in_(txt_norm_(arguments.tensor(argument::encoder_hidden_states)));
    const Tensor temb = embed_time(arguments);
    Arguments fixed{{argument::temb, temb}, {argument::image_rotary_emb, joint_table(arguments, text.size(1))}};
    const Tensor mask = arguments.optional_tensor(kTextMask);
    if (mask.defined()) fixed.set(kTextMask, ops::cast(mask, kBool));
    if (config_.zero_cond_t) fixed.set(kModulateIndex, modulate_index(shapes));
    const ControlNetSamples samples(*this, arguments, argument::controlnet_block_samples, blocks_.children().size());
    for (std::size_t i = 0; i < blocks_.children().size(); ++i) {
      Arguments inner = fixed;
      inner.set(argument::hidden_states, image);
      inner.set(argument::encoder_hidden_states, text);
      const Outputs streams = blocks_.children()[i]->call(std::move(inner));
      text = streams.tensors[0];
      image = samples.add_after(i, streams.tensors[1]);
    }
    const Tensor of_output = config_.zero_cond_t ? temb.narrow(0, 0, temb.size(0) / 2) : temb;
    return proj_out_(norm_out_.call({{argument::hidden_states, image}, {argument::temb, of_output}}).tensors.front());
  }

 private:
  void check_settings(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    checks.must_be_none(kAttentionKwargs, "adapters are not offered");
    checks.must_be_none(argument::guidance, "the model has no guidance embedding");
  }

  ImageShapes check_shapes(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    const Tensor& image = checks.sequence(argument::hidden_states, "[batch, image tokens, in_channels]");
    const std::int64_t batch = image.size(0);
    const Tensor& text = checks.sequence(argument::encoder_hidden_states, batch,
                                         "[batch, text tokens, joint_attention_dim] with the batch of hidden_states");
    const Tensor mask = arguments.optional_tensor(kTextMask);
    const bool mask_fits = !mask.defined() || mask.shape() == Shape{batch, text.size(1)};
    checks.shape(kTextMask, mask, mask_fits, "[batch, text tokens] of encoder_hidden_states");
    const Tensor timestep = arguments.tensor(argument::timestep);
    checks.shape(argument::timestep, timestep, timestep.shape() == Shape{batch}, "[batch] of hidden_states");
    if (config_.use_additional_t_cond) {
      const Tensor& condition = arguments.tensor(kAdditionalCondition);
      checks.shape(kAdditionalCondition, condition, condition.shape() == Shape{batch}, "[batch] of hidden_states");
      SHARDPROOF_CHECK(!config_.zero_cond_t || batch == 1, shape_error,
                       "argument '{}' of {} with zero_cond_t is offered for one sample, not for {}",
                       kAdditionalCondition.text(), class_name(), batch);
    }
    return image_shapes_from(arguments, kImageShapes, class_name(), batch, image.size(1));
  }

  // With zero_cond_t, rows for the given timesteps and then for zero.
  Tensor embed_time(const Arguments& arguments) {
    const Tensor& timestep = arguments.tensor(argument::timestep);
    const Tensor zero = ops::zeros(timestep.device(), timestep.shape(), timestep.dtype());
    Arguments inner{{argument::timestep, config_.zero_cond_t ? ops::concat({timestep, zero}, 0) : timestep}};
    if (config_.use_additional_t_cond) inner.set(kAdditionalCondition, arguments.tensor(kAdditionalCondition));
    return time_text_embed_.call(std::move(inner)).tensors.front();
  }

  // {cosine, sine} [text + image, head_dim], of the parts that this rank has.
  std::vector<Tensor> joint_table(const Arguments& arguments, std::int64_t text_tokens) {
    const auto& nested = std::get<NestedNumbers>(*arguments.find(kImageShapes));
    const NestedNumbers& first_sample = std::get<std::vector<NestedNumbers>>(nested.content).front();
    const std::vector<Tensor> halves =
        pos_embed_.call({{kImageShapes, first_sample}, {kTextTokens, text_tokens}}).tensors;
    return doubled_tables(ops::concat({halves[1], halves[0]}, 0));
  }

  // [batch, image tokens]: 0 for the first image of a sample, 1 for the others.
  Tensor modulate_index(const ImageShapes& shapes) const {
    std::vector<double> index;
    for (const std::vector<ImageShape>& images : shapes) {
      for (std::size_t i = 0; i < images.size(); ++i)
        index.insert(index.end(), static_cast<std::size_t>(images[i].tokens()), i == 0 ? 0.0 : 1.0);
    }
    const auto batch = static_cast<std::int64_t>(shapes.size());
    return ops::from_doubles(*context_.device, index, {batch, static_cast<std::int64_t>(index.size()) / batch}, kInt64);
  }

  QwenImageConfig config_;
  ModelContext context_;
  QwenEmbedRope& pos_embed_;
  QwenTimestepProjEmbeddings& time_text_embed_;
  RmsNorm& txt_norm_;
  Linear& img_in_;
  Linear& txt_in_;
  ModuleList& blocks_;
  AdaLayerNormContinuous& norm_out_;
  Linear& proj_out_;
};

}  // namespace

QwenImageConfig qwenimage_config_from_json(const Json& json) {
  ConfigReader reader(json);
  QwenImageConfig config;
  reader.read("patch_size", config.patch_size, 1);
  reader.read("in_channels", config.in_channels, 1);
  const Json* out_channels = json.find("out_channels");
  if (out_channels != nullptr && out_channels->is_null()) config.out_channels = config.in_channels;
  reader.read("out_channels", config.out_channels, 1);
  reader.read("num_layers", config.num_layers, 0, ConfigReader::kLargestLayers);
  reader.read("attention_head_dim", config.attention_head_dim, 1);
  reader.read("num_attention_heads", config.num_attention_heads, 1);
  reader.read("joint_attention_dim", config.joint_attention_dim, 1);
  reader.read("guidance_embeds", config.guidance_embeds);
  reader.read("axes_dims_rope", config.axes_dims_rope, 1);
  reader.read("zero_cond_t", config.zero_cond_t);
  reader.read("use_additional_t_cond", config.use_additional_t_cond);
  reader.read("use_layer3d_rope", config.use_layer3d_rope);
  reader.finish();
  reader.check_rope_axes(config.axes_dims_rope, config.attention_head_dim);
  reader.check_three_axes(config.axes_dims_rope);
  return config;
}

std::unique_ptr<Module> make_qwenimage(const QwenImageConfig& config, const ModelContext& context) {
  return std::make_unique<QwenImageTransformer2DModel>(config, context);
}

}  // namespace shardproof
