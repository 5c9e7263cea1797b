#include "models/ltx2.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/file.h"
#include "core/ops.h"
#include "models/argument_checks.h"
#include "models/attention_layers.h"
#include "models/config_reader.h"

namespace shardproof {
namespace {

constexpr double kAttentionEps = 1e-6;
constexpr double kHeadEps = 1e-6;
// Added to the logits of keys that a mask drops.
constexpr double kMasked = -10000.0;

const Name kAudioHiddenStates("audio_hidden_states");
const Name kAudioText("audio_encoder_hidden_states");
const Name kAudioTimestep("audio_timestep");
const Name kSigma("sigma");
const Name kAudioSigma("audio_sigma");
const Name kTextMask("encoder_attention_mask");
const Name kAudioTextMask("audio_encoder_attention_mask");
const Name kFrames("num_frames");
const Name kHeight("height");
const Name kWidth("width");
const Name kFramesPerSecond("fps");
const Name kAudioFrames("audio_num_frames");
const Name kVideoCoordinates("video_coords");
const Name kAudioCoordinates("audio_coords");
const Name kIsolate("isolate_modalities");
const Name kPerturbedBlocks("spatio_temporal_guidance_blocks");
const Name kPerturbationMask("perturbation_mask");
const Name kCrossTimestep("use_cross_timestep");
const Name kAttentionKwargs("attention_kwargs");
const Name kVideoSelfMask("video_self_attention_mask");
const Name kKeyframesMask("video_keyframes_mask");

const Name kTembAudio("temb_audio");
const Name kTembCross("temb_ca_scale_shift");
const Name kTembAudioCross("temb_ca_audio_scale_shift");
const Name kTembCrossGate("temb_ca_gate");
const Name kTembAudioCrossGate("temb_ca_audio_gate");
const Name kTembPrompt("temb_prompt");
const Name kTembAudioPrompt("temb_prompt_audio");
const Name kVideoRotary("video_rotary_emb");
const Name kAudioRotary("audio_rotary_emb");
const Name kCrossVideoRotary("ca_video_rotary_emb");
const Name kCrossAudioRotary("ca_audio_rotary_emb");
const Name kSelfMask("self_attention_mask");
const Name kUseAudioToVideo("use_a2v_cross_attention");
const Name kUseVideoToAudio("use_v2a_cross_attention");

const Name kQueryRotary("query_rotary_emb");
const Name kKeyRotary("key_rotary_emb");
const Name kCoordinates("coords");

// ---- coordinates: midpoints of what a token covers, rounded after every operation where Float is float

// Rows of seconds, and rows and columns of pixels, one a token; frame by frame and row by row.
template <class Float>
std::vector<double> video_midpoints(const Ltx2Config& config, const Extents& grid, double fps) {
  const auto bound = [&](std::int64_t n, std::size_t axis) {
    const Float scale = static_cast<Float>(config.vae_scale_factors[axis]);
    const Float value = static_cast<Float>(n) * scale;
    if (axis > 0) return value;
    const Float shifted = value + static_cast<Float>(config.causal_offset) - scale;
    return std::max(Float(0), shifted) / static_cast<Float>(fps);
  };
  std::vector<double> midpoints;
  for (std::int64_t f = 0; f < grid[0]; ++f) {
    for (std::int64_t y = 0; y < grid[1]; ++y) {
      for (std::int64_t x = 0; x < grid[2]; ++x) {
        const Extents token{f, y, x};
        for (std::size_t axis = 0; axis < token.size(); ++axis)
          midpoints.push_back((bound(token[axis], axis) + bound(token[axis] + 1, axis)) / Float(2));
      }
    }
  }
  return midpoints;
}

// Seconds, one a token.
template <class Float>
std::vector<double> audio_midpoints(const Ltx2Config& config, std::int64_t frames) {
  const auto seconds = [&](std::int64_t n) {
    const Float factor = static_cast<Float>(config.audio_scale_factor);
    const Float mel = static_cast<Float>(n) * factor + static_cast<Float>(config.causal_offset) - factor;
    return std::max(Float(0), mel) * static_cast<Float>(config.audio_hop_length) /
           static_cast<Float>(config.audio_sampling_rate);
  };
  std::vector<double> midpoints;
  for (std::int64_t n = 0; n < frames; ++n) midpoints.push_back((seconds(n) + seconds(n + 1)) / Float(2));
  return midpoints;
}

struct RopeOptions {
  std::vector<std::int64_t> max_positions;  // one an axis
  std::int64_t width = 0;
  std::int64_t heads = 0;
};

// Host coordinates [tokens, axes] -> {cosine, sine} in the wide type: [1, tokens, width] with each value standing
// twice, or, split over heads, [1, heads, tokens, head_dim / 2].
class Ltx2RotaryPosEmbed final : public Module {
 public:
  Ltx2RotaryPosEmbed(const Ltx2Config& config, const ModelContext& context, RopeOptions options)
      : Module("LTX2AudioVideoRotaryPosEmbed"),
        context_(context),
        options_(std::move(options)),
        theta_(config.rope_theta),
        frequencies_(config.rope_double_precision ? FrequencyPrecision::float64 : FrequencyPrecision::of_table),
        is_split_(config.has_split_rope()) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{kCoordinates, ArgumentKind::coordinate}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    std::vector<double> fractions = ops::to_doubles(arguments.tensor(kCoordinates));
    const std::size_t axes = options_.max_positions.size();
    for (std::size_t i = 0; i < fractions.size(); ++i) {
      const auto max = static_cast<double>(options_.max_positions[i % axes]);
      fractions[i] = context_.table_precision == TablePrecision::float32
                         ? static_cast<double>(static_cast<float>(fractions[i]) / static_cast<float>(max))
                         : fractions[i] / max;
    }
    const AngleTable table = tables::fraction_angles(fractions, static_cast<std::int64_t>(axes), options_.width / 2,
                                                     theta_, context_.table_precision, frequencies_);
    const DType dtype = wide_dtype(context_.dtype);
    const int repeat = is_split_ ? 1 : 2;
    return Outputs(std::vector<Tensor>{arranged(tables::cosine_on(*context_.device, table, dtype, repeat)),
                                       arranged(tables::sine_on(*context_.device, table, dtype, repeat))});
  }

 private:
  Tensor arranged(const Tensor& rows) const {
    if (!is_split_) return rows.unsqueeze(0);
    return split_heads(rows.unsqueeze(0), rows.size(1) / options_.heads).transpose(1, 2);
  }

  ModelContext context_;
  RopeOptions options_;
  double theta_;
  FrequencyPrecision frequencies_;
  bool is_split_;
};

// x [batch, tokens, inner], rotated by {cosine, sine} before or after its heads are told apart, as the tables are made.
Tensor rotated_heads(const Tensor& x, const std::vector<Tensor>& table, std::int64_t head_dim) {
  if (table.empty()) return split_heads(x, head_dim);
  if (table[0].rank() == 4)
    return ops::rotary_halves(split_heads(x, head_dim), table[0].transpose(1, 2), table[1].transpose(1, 2));
  return split_heads(ops::rotary_interleaved(x.unsqueeze(2), table[0], table[1]).squeeze(2), head_dim);
}

enum class Gates : bool { absent, present };

Gates gates_of(const Ltx2Modality& queries) { return queries.gated_attn ? Gates::present : Gates::absent; }

// Attention of one stream to itself, to a text, or to the other stream; all of them are divided among ranks.
class Ltx2Attention final : public AcrossHeadsAttention {
 public:
  Ltx2Attention(const AcrossHeadsOptions& options, Gates gates)
      : AcrossHeadsAttention("LTX2Attention", options),
        to_gate_logits_(gates == Gates::present ? &add_child<Linear>("to_gate_logits", options.query_width,
                                                                     options.inner / options.head_dim)
                                                : nullptr) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {argument::attention_mask, ArgumentKind::mask},
                                              {kQueryRotary},
                                              {kKeyRotary},
                                              {kPerturbationMask}};
    return kArguments;
  }

  // attention_mask: [batch, keys] with the keys of this rank, or [batch, queries, keys] with those of all ranks.
  // perturbation_mask [batch]: where it is 0, a token's values stand in for what it attends to.
  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const Tensor other = arguments.optional_tensor(argument::encoder_hidden_states);
    const Tensor& source = other.defined() ? other : x;
    const std::vector<Tensor> query_table = arguments.tensor_list(kQueryRotary);
    const std::vector<Tensor> key_table = arguments.tensor_list(kKeyRotary);
    const std::int64_t head_dim = options().head_dim;
    const Tensor q = rotated_heads(queries(x), query_table, head_dim);
    const Tensor k = rotated_heads(keys(source), key_table.empty() ? query_table : key_table, head_dim);
    const Tensor v = heads(values(source));
    AttentionMask mask{.values = arguments.optional_tensor(argument::attention_mask)};
    if (mask.defined() && mask.values.rank() == 3) {
      mask.key_axis = KeyAxis::global;
      mask.query_axis = QueryAxis::local;
    }
    Tensor out = attention(q, k, v, mask, {}, context_parallel()).out;
    const Tensor keep = arguments.optional_tensor(kPerturbationMask);
    if (keep.defined()) {
      const Tensor factor = keep.view({keep.size(0), 1, 1, 1});
      out = ops::add(v, ops::multiply(factor, ops::subtract(out, v)));
    }
    if (to_gate_logits_ != nullptr) {
      const Tensor gates = ops::multiply(ops::sigmoid((*to_gate_logits_)(x)), 2.0);
      out = ops::multiply(out, gates.unsqueeze(-1));
    }
    return output(join_heads(out));
  }

 private:
  Linear* to_gate_logits_;
};

// ---- blocks

AcrossHeadsOptions attention_options(const Ltx2Config& config, const Ltx2Modality& modality) {
  return {.query_width = modality.width(),
          .key_width = modality.width(),
          .inner = modality.width(),
          .out_width = modality.width(),
          .head_dim = modality.attention_head_dim,
          .norm_eps = kAttentionEps,
          .bias = config.attention_bias ? Linear::Bias::present : Linear::Bias::absent,
          .out_bias = config.attention_out_bias ? Linear::Bias::present : Linear::Bias::absent};
}

// From one stream to the other, in the heads of the audio.
AcrossHeadsOptions cross_options(const Ltx2Config& config, const Ltx2Modality& query, const Ltx2Modality& key) {
  AcrossHeadsOptions options = attention_options(config, config.audio);
  options.query_width = options.out_width = query.width();
  options.key_width = key.width();
  return options;
}

// The layers of a block that one stream has to itself.
struct Ltx2StreamLayers {
  RmsNorm* norm1 = nullptr;
  Ltx2Attention* attn1 = nullptr;
  RmsNorm* norm2 = nullptr;
  Ltx2Attention* attn2 = nullptr;
  RmsNorm* cross_norm = nullptr;
  RmsNorm* norm3 = nullptr;
  FeedForward* ff = nullptr;
  bool modulates_text = false;
};

struct Ltx2StreamNames {
  Name norm1, attn1, norm2, attn2, cross_norm, norm3, ff;
};

const Ltx2StreamNames kVideoNames{"norm1", "attn1", "norm2", "attn2", "audio_to_video_norm", "norm3", "ff"};
const Ltx2StreamNames kAudioNames{"audio_norm1",         "audio_attn1", "audio_norm2", "audio_attn2",
                                  "video_to_audio_norm", "audio_norm3", "audio_ff"};

// Where the arguments of one stream stand.
struct Ltx2StreamArguments {
  Name text, text_mask, rotary, self_mask, prompt;
};

const Ltx2StreamArguments kVideoArguments{argument::encoder_hidden_states, kTextMask, kVideoRotary, kSelfMask,
                                          kTembPrompt};
const Ltx2StreamArguments kAudioArguments{kAudioText, kAudioTextMask, kAudioRotary, "audio_self_attention_mask",
                                          kTembAudioPrompt};

class Ltx2TransformerBlock final : public Module {
 public:
  explicit Ltx2TransformerBlock(const Ltx2Config& config)
      : Module("LTX2VideoTransformerBlock"),
        video_(add_stream(config, config.video, kVideoNames)),
        audio_(add_stream(config, config.audio, kAudioNames)),
        audio_to_video_(add_child<Ltx2Attention>(
            "audio_to_video_attn", cross_options(config, config.video, config.audio), gates_of(config.video))),
        video_to_audio_(add_child<Ltx2Attention>(
            "video_to_audio_attn", cross_options(config, config.audio, config.video), gates_of(config.audio))),
        modulates_prompts_(config.modulates_prompts()) {
    const std::int64_t width = config.video.width(), audio_width = config.audio.width();
    declare_parameter("scale_shift_table", {config.video.modulations(), width});
    declare_parameter("audio_scale_shift_table", {config.audio.modulations(), audio_width});
    declare_parameter("video_a2v_cross_attn_scale_shift_table", {5, width});
    declare_parameter("audio_a2v_cross_attn_scale_shift_table", {5, audio_width});
    if (!modulates_prompts_) return;
    declare_parameter("prompt_scale_shift_table", {2, width});
    declare_parameter("audio_prompt_scale_shift_table", {2, audio_width});
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {kAudioHiddenStates},
                                              {argument::encoder_hidden_states},
                                              {kAudioText},
                                              {argument::temb},
                                              {kTembAudio},
                                              {kTembCross},
                                              {kTembAudioCross},
                                              {kTembCrossGate},
                                              {kTembAudioCrossGate},
                                              {kTembPrompt},
                                              {kTembAudioPrompt},
                                              {kVideoRotary},
                                              {kAudioRotary},
                                              {kCrossVideoRotary},
                                              {kCrossAudioRotary},
                                              {kTextMask, ArgumentKind::mask},
                                              {kAudioTextMask, ArgumentKind::mask},
                                              {kSelfMask, ArgumentKind::mask},
                                              {kUseAudioToVideo, ArgumentKind::setting},
                                              {kUseVideoToAudio, ArgumentKind::setting},
                                              {kPerturbationMask}};
    return kArguments;
  }

  // Modulations are [batch, tokens|1, rows, D].
  Outputs forward(Arguments& arguments) override {
    const std::vector<Tensor> m = modulations_from_table(parameter(0), arguments.tensor(argument::temb));
    const std::vector<Tensor> ma = modulations_from_table(parameter(1), arguments.tensor(kTembAudio));
    Tensor x = attend_to_itself(video_, arguments.tensor(argument::hidden_states), m, arguments, kVideoArguments);
    Tensor z = attend_to_itself(audio_, arguments.tensor(kAudioHiddenStates), ma, arguments, kAudioArguments);
    x = attend_to_text(video_, x, m, arguments, kVideoArguments, 4);
    z = attend_to_text(audio_, z, ma, arguments, kAudioArguments, 5);
    attend_to_each_other(arguments, x, z);
    return Outputs(std::vector<Tensor>{feed(video_, x, m), feed(audio_, z, ma)});
  }

 private:
  Ltx2StreamLayers add_stream(const Ltx2Config& config, const Ltx2Modality& modality, const Ltx2StreamNames& names) {
    const std::int64_t width = modality.width();
    const auto norm = [&](Name name) {
      return &add_child<RmsNorm>(name, width, config.norm_eps,
                                 config.norm_elementwise_affine ? RmsNorm::Weight::present : RmsNorm::Weight::absent);
    };
    const auto attention = [&](Name name) {
      return &add_child<Ltx2Attention>(name, attention_options(config, modality), gates_of(modality));
    };
    constexpr std::int64_t kInnerFactor = 4;
    Ltx2StreamLayers layers;
    layers.norm1 = norm(names.norm1);
    layers.attn1 = attention(names.attn1);
    layers.norm2 = norm(names.norm2);
    layers.attn2 = attention(names.attn2);
    layers.cross_norm = norm(names.cross_norm);
    layers.norm3 = norm(names.norm3);
    layers.ff = &add_child<FeedForward>(
        names.ff, FeedForward::Options{.in_features = width,
                                       .inner = kInnerFactor * width,
                                       .out_features = width,
                                       .bias = modality.ff_bias ? Linear::Bias::present : Linear::Bias::absent});
    layers.modulates_text = modality.cross_attn_mod;
    return layers;
  }

  static Tensor attend_to_itself(const Ltx2StreamLayers& layers, const Tensor& x, const std::vector<Tensor>& m,
                                 const Arguments& arguments, const Ltx2StreamArguments& names) {
    Arguments inner{{argument::hidden_states, modulate((*layers.norm1)(x), m[1], m[0])},
                    {kQueryRotary, *arguments.find(names.rotary)}};
    const Tensor mask = arguments.optional_tensor(names.self_mask);
    if (mask.defined()) inner.set(argument::attention_mask, mask);
    const Tensor keep = arguments.optional_tensor(kPerturbationMask);
    if (keep.defined()) inner.set(kPerturbationMask, keep);
    return add_gated(x, m[2], layers.attn1->call(std::move(inner)).tensors.front());
  }

  // `prompt_table` is the number of the parameter that modulates the text.
  Tensor attend_to_text(const Ltx2StreamLayers& layers, const Tensor& x, const std::vector<Tensor>& m,
                        const Arguments& arguments, const Ltx2StreamArguments& names, std::size_t prompt_table) const {
    Tensor query = (*layers.norm2)(x), text = arguments.tensor(names.text);
    if (layers.modulates_text) query = modulate(query, m[7], m[6]);
    if (modulates_prompts_) {
      const Tensor table = parameter(prompt_table), temb = arguments.optional_tensor(names.prompt);
      const std::vector<Tensor> of_prompt =
          temb.defined() ? modulations_from_table(table, temb) : ops::chunk(table, 2, 0);
      text = ops::add(ops::multiply(text, ops::add(of_prompt[1], 1.0)), of_prompt[0]);
    }
    Arguments inner{{argument::hidden_states, query}, {argument::encoder_hidden_states, text}};
    const Tensor mask = arguments.optional_tensor(names.text_mask);
    if (mask.defined()) inner.set(argument::attention_mask, mask);
    const Tensor attended = layers.attn2->call(std::move(inner)).tensors.front();
    return layers.modulates_text ? add_gated(x, m[8], attended) : ops::add(x, attended);
  }

  // Both directions see the streams as they are before either is changed.
  void attend_to_each_other(const Arguments& arguments, Tensor& x, Tensor& z) {
    const bool to_video = arguments.flag(kUseAudioToVideo, true), to_audio = arguments.flag(kUseVideoToAudio, true);
    if (!to_video && !to_audio) return;
    const Tensor n = (*video_.cross_norm)(x), na = (*audio_.cross_norm)(z);
    const Tensor table = parameter(2), audio_table = parameter(3);
    // Rows: scale and shift towards the video, scale and shift towards the audio, gate.
    const std::vector<Tensor> v = modulations_from_table(table.narrow(0, 0, 4), arguments.tensor(kTembCross));
    const std::vector<Tensor> a =
        modulations_from_table(audio_table.narrow(0, 0, 4), arguments.tensor(kTembAudioCross));
    const Value& video_rotary = *arguments.find(kCrossVideoRotary);
    const Value& audio_rotary = *arguments.find(kCrossAudioRotary);
    if (to_video) {
      const Tensor attended = audio_to_video_
                                  .call({{argument::hidden_states, modulate(n, v[0], v[1])},
                                         {argument::encoder_hidden_states, modulate(na, a[0], a[1])},
                                         {kQueryRotary, video_rotary},
                                         {kKeyRotary, audio_rotary}})
                                  .tensors.front();
      x = add_gated(x, modulations_from_table(table.narrow(0, 4, 1), arguments.tensor(kTembCrossGate))[0], attended);
    }
    if (to_audio) {
      const Tensor attended = video_to_audio_
                                  .call({{argument::hidden_states, modulate(na, a[2], a[3])},
                                         {argument::encoder_hidden_states, modulate(n, v[2], v[3])},
                                         {kQueryRotary, audio_rotary},
                                         {kKeyRotary, video_rotary}})
                                  .tensors.front();
      z = add_gated(z, modulations_from_table(audio_table.narrow(0, 4, 1), arguments.tensor(kTembAudioCrossGate))[0],
                    attended);
    }
  }

  static Tensor feed(const Ltx2StreamLayers& layers, const Tensor& x, const std::vector<Tensor>& m) {
    return add_gated(x, m[5], (*layers.ff)(modulate((*layers.norm3)(x), m[4], m[3])));
  }

  Ltx2StreamLayers video_;
  Ltx2StreamLayers audio_;
  Ltx2Attention& audio_to_video_;
  Ltx2Attention& video_to_audio_;
  bool modulates_prompts_;
};

// ---- the model

class Ltx2Transformer3DModel final : public Module {
 public:
  Ltx2Transformer3DModel(const Ltx2Config& config, const ModelContext& context)
      : Module("LTX2VideoTransformer3DModel"),
        config_(config),
        context_(context),
        rope_(add_rope("rope", config.video, {config.video.pos_embed_max_pos, config.base_height, config.base_width})),
        audio_rope_(add_rope("audio_rope", config.audio, {config.audio.pos_embed_max_pos})),
        cross_rope_(add_cross_rope("cross_attn_rope")),
        cross_audio_rope_(add_cross_rope("cross_attn_audio_rope")),
        video_(add_stream(config.video, "")),
        audio_(add_stream(config.audio, "audio_")),
        cross_(add_embedding("av_cross_attn_video_scale_shift", config.video, 4)),
        cross_gate_(add_embedding("av_cross_attn_video_a2v_gate", config.video, 1)),
        audio_cross_(add_embedding("av_cross_attn_audio_scale_shift", config.audio, 4)),
        audio_cross_gate_(add_embedding("av_cross_attn_audio_v2a_gate", config.audio, 1)),
        blocks_(add_child<ModuleList>("transformer_blocks")) {
    declare_parameter("scale_shift_table", {2, config.video.width()});
    declare_parameter("audio_scale_shift_table", {2, config.audio.width()});
    if (config.use_keyframes_abs_pos_embedding)
      declare_parameter("keyframes_abs_pos_embedding", {1, config.video.width()});
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<Ltx2TransformerBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {kAudioHiddenStates},
                                              {argument::encoder_hidden_states},
                                              {kAudioText},
                                              {argument::timestep, ArgumentKind::coordinate},
                                              {kAudioTimestep, ArgumentKind::coordinate},
                                              {kSigma, ArgumentKind::coordinate},
                                              {kAudioSigma, ArgumentKind::coordinate},
                                              {kTextMask, ArgumentKind::mask},
                                              {kAudioTextMask, ArgumentKind::mask},
                                              {kFrames, ArgumentKind::setting},
                                              {kHeight, ArgumentKind::setting},
                                              {kWidth, ArgumentKind::setting},
                                              {kFramesPerSecond, ArgumentKind::setting},
                                              {kAudioFrames, ArgumentKind::setting},
                                              {kVideoCoordinates, ArgumentKind::coordinate},
                                              {kAudioCoordinates, ArgumentKind::coordinate},
                                              {kIsolate, ArgumentKind::setting},
                                              {kPerturbedBlocks, ArgumentKind::setting},
                                              {kPerturbationMask},
                                              {kCrossTimestep, ArgumentKind::setting},
                                              {kAttentionKwargs, ArgumentKind::setting},
                                              {kVideoSelfMask, ArgumentKind::mask},
                                              {kKeyframesMask, ArgumentKind::coordinate},
                                              {argument::return_dict, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_settings(arguments);
    check_shapes(arguments);
    Arguments fixed;
    add_tables(arguments, fixed);
    Tensor x = with_keyframes(video_.proj_in(arguments.tensor(argument::hidden_states)), arguments);
    Tensor z = audio_.proj_in(arguments.tensor(kAudioHiddenStates));
    const Embedded timesteps = add_conditions(arguments, fixed);
    fixed.set(argument::encoder_hidden_states, video_.text(arguments.tensor(argument::encoder_hidden_states)));
    fixed.set(kAudioText, audio_.text(arguments.tensor(kAudioText)));
    add_masks(arguments, fixed);
    const std::vector<bool> is_perturbed = perturbed_blocks(arguments);
    for (std::size_t i = 0; i < blocks_.children().size(); ++i) {
      Arguments inner = fixed;
      inner.set(argument::hidden_states, x);
      inner.set(kAudioHiddenStates, z);
      if (is_perturbed[i]) inner.set(kPerturbationMask, perturbation_mask(arguments, x.size(0)));
      const Outputs streams = blocks_.children()[i]->call(std::move(inner));
      x = streams.tensors[0];
      z = streams.tensors[1];
    }
    return Outputs(std::vector<Tensor>{video_.head(x, parameter(0), timesteps.video),
                                       audio_.head(z, parameter(1), timesteps.audio)});
  }

 private:
  // [batch, tokens|1, D] of the timesteps of either stream.
  struct Embedded {
    Tensor video, audio;
  };

  // The layers of the model that one stream has to itself.
  struct Stream {
    Linear* proj_in_layer = nullptr;
    TwoLayerMlp* caption_projection = nullptr;
    AdaLayerNormSingle* time_embed = nullptr;
    AdaLayerNormSingle* prompt_adaln = nullptr;
    LayerNorm* norm_out = nullptr;
    Linear* proj_out = nullptr;

    Tensor proj_in(const Tensor& x) const { return (*proj_in_layer)(x); }
    Tensor text(const Tensor& x) const { return caption_projection != nullptr ? (*caption_projection)(x) : x; }
    Tensor head(const Tensor& x, const Tensor& table, const Tensor& embedding) const {
      const Tensor twice = embedding.unsqueeze(2).expand({embedding.size(0), embedding.size(1), 2, embedding.size(2)});
      const std::vector<Tensor> m = modulations_from_table(table, twice);
      return (*proj_out)(modulate((*norm_out)(x), m[1], m[0]));
    }
  };

  Ltx2RotaryPosEmbed& add_rope(Name name, const Ltx2Modality& modality, std::vector<std::int64_t> max_positions) {
    return add_child<Ltx2RotaryPosEmbed>(
        name, config_, context_, RopeOptions{std::move(max_positions), modality.width(), modality.num_attention_heads});
  }

  // Over time alone.
  Ltx2RotaryPosEmbed& add_cross_rope(Name name) {
    const std::int64_t max = std::max(config_.video.pos_embed_max_pos, config_.audio.pos_embed_max_pos);
    return add_rope(name, config_.audio, {max});
  }

  AdaLayerNormSingle& add_embedding(Name name, const Ltx2Modality& modality, std::int64_t sets) {
    return add_child<AdaLayerNormSingle>(name, "LTX2AdaLayerNormSingle", context_, modality.width(), sets);
  }

  Stream add_stream(const Ltx2Modality& modality, const std::string& prefix) {
    const auto named = [&](std::string_view name) { return Name(prefix + std::string(name)); };
    Stream stream;
    stream.proj_in_layer = &add_child<Linear>(named("proj_in"), modality.in_channels, modality.width());
    if (config_.use_prompt_embeddings) {
      stream.caption_projection =
          &add_child<TwoLayerMlp>(named("caption_projection"), "PixArtAlphaTextProjection", config_.caption_channels,
                                  modality.width(), UnaryOp::gelu_tanh, "act_1");
    }
    stream.time_embed = &add_embedding(named("time_embed"), modality, modality.modulations());
    if (config_.modulates_prompts() && config_.use_prompt_adaln_single)
      stream.prompt_adaln = &add_embedding(named("prompt_adaln"), modality, 2);
    stream.norm_out = &add_child<LayerNorm>(named("norm_out"), kHeadEps);
    stream.proj_out = &add_child<Linear>(named("proj_out"), modality.width(), modality.out_channels);
    return stream;
  }

  void check_settings(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    checks.must_be_none(kAttentionKwargs, "adapters are not offered");
    for (const Name name : {kVideoCoordinates, kAudioCoordinates})
      checks.must_be_none(name, "coordinates are made of the numbers of frames, rows and columns");
    checks.must_return_a_tuple();
  }

  // Sizes that must agree whatever part of the tokens a rank has.
  void check_shapes(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    const Tensor& video = checks.sequence(argument::hidden_states, "[batch, video tokens, in_channels]");
    const std::int64_t batch = video.size(0);
    const Tensor& audio = checks.sequence(kAudioHiddenStates, batch,
                                          "[batch, audio tokens, audio_in_channels] with the batch of hidden_states");
    check_text(checks, arguments, argument::encoder_hidden_states, kTextMask, batch);
    check_text(checks, arguments, kAudioText, kAudioTextMask, batch);
    check_times(checks, arguments, argument::timestep, argument::hidden_states, video);
    const bool has_audio_times = arguments.optional_tensor(kAudioTimestep).defined();
    check_times(checks, arguments, has_audio_times ? kAudioTimestep : argument::timestep, kAudioHiddenStates, audio);
    for (const Name name : {kSigma, kAudioSigma}) {
      const Tensor sigma = arguments.optional_tensor(name);
      checks.shape(name, sigma, !sigma.defined() || sigma.shape() == Shape{batch}, "[batch] of hidden_states");
    }
    const Tensor keyframes = arguments.optional_tensor(kKeyframesMask);
    checks.shape(kKeyframesMask, keyframes, !keyframes.defined() || keyframes.shape() == Shape{batch, video.size(1), 1},
                 "[batch, video tokens, 1] of hidden_states");
    const Tensor self_mask = arguments.optional_tensor(kVideoSelfMask);
    checks.shape(kVideoSelfMask, self_mask,
                 !self_mask.defined() || (self_mask.rank() == 3 && self_mask.size(1) == video.size(1)),
                 "[batch, video tokens, all video tokens] of hidden_states");
    const Tensor keep = arguments.optional_tensor(kPerturbationMask);
    SHARDPROOF_REFUSE_UNLESS(!keep.defined() || keep.shape() == Shape{batch}, unsupported_error,
                             "argument '{}' of {} is {}; masks of tokens are not offered, expected [batch] of "
                             "hidden_states",
                             kPerturbationMask.text(), class_name(), keep.text());
  }

  static void check_text(const ArgumentChecks& checks, const Arguments& arguments, Name name, Name mask_name,
                         std::int64_t batch) {
    const Tensor& text =
        checks.sequence(name, batch, "[batch, text tokens, caption_channels] with the batch of hidden_states");
    const Tensor mask = arguments.optional_tensor(mask_name);
    checks.shape(mask_name, mask, !mask.defined() || mask.shape() == Shape{batch, text.size(1)},
                 "[batch, text tokens] of its text");
  }

  // Timesteps `name` of a stream: one an item, or one for each of its tokens.
  void check_times(const ArgumentChecks& checks, const Arguments& arguments, Name name, Name stream,
                   const Tensor& tokens) const {
    checks.per_item_or_token(name, tokens.size(0));
    const Tensor& times = arguments.tensor(name);
    SHARDPROOF_CHECK(
        times.rank() == 1 || times.size(1) == tokens.size(1), shape_error,
        "argument '{}' of module '' ({}) has {} tokens, but argument '{}' has {}: the plan divides one and "
        "not the other, or they were given so",
        name.text(), class_name(), times.size(1), stream.text(), tokens.size(1));
  }

  Tensor with_keyframes(const Tensor& x, const Arguments& arguments) const {
    const Tensor mask = arguments.optional_tensor(kKeyframesMask);
    if (!mask.defined() || !config_.use_keyframes_abs_pos_embedding) return x;
    std::vector<double> is_keyframe = ops::to_doubles(mask);
    for (double& value : is_keyframe) value = value > 0.0 ? 1.0 : 0.0;
    const Tensor factor = ops::from_doubles(*context_.device, is_keyframe, mask.shape(), x.dtype());
    return ops::add(x, ops::multiply(factor, parameter(2)));
  }

  std::int64_t count(const Arguments& arguments, Name name) const {
    const Value* value = arguments.find(name);
    const auto* number = value == nullptr ? nullptr : std::get_if<std::int64_t>(value);
    SHARDPROOF_CHECK(number != nullptr && *number >= 1, state_error,
                     "argument '{}' of {} must be a whole number above zero, got {}", name.text(), class_name(),
                     number != nullptr  ? std::to_string(*number)
                     : value == nullptr ? "nothing"
                                        : value_kind_name(*value));
    return *number;
  }

  double frames_per_second(const Arguments& arguments) const {
    constexpr double kDefault = 24.0;
    const Value* value = arguments.find(kFramesPerSecond);
    if (value == nullptr || is_none(*value)) return kDefault;
    const auto* whole = std::get_if<std::int64_t>(value);
    const auto* number = std::get_if<double>(value);
    const double fps = whole != nullptr ? static_cast<double>(*whole) : number != nullptr ? *number : 0.0;
    SHARDPROOF_CHECK(fps > 0.0, state_error, "argument '{}' of {} must be a number above zero, got {}",
                     kFramesPerSecond.text(), class_name(),
                     whole != nullptr || number != nullptr ? std::to_string(fps) : value_kind_name(*value));
    return fps;
  }

  void add_tables(const Arguments& arguments, Arguments& fixed) {
    const bool is_float32 = context_.table_precision == TablePrecision::float32;
    const Extents grid{count(arguments, kFrames), count(arguments, kHeight), count(arguments, kWidth)};
    const std::int64_t frames = count(arguments, kAudioFrames);
    check_grid(rope_, grid);
    check_grid(audio_rope_, {frames, 1, 1});
    const double fps = frames_per_second(arguments);
    const std::vector<double> video =
        is_float32 ? video_midpoints<float>(config_, grid, fps) : video_midpoints<double>(config_, grid, fps);
    const std::vector<double> audio =
        is_float32 ? audio_midpoints<float>(config_, frames) : audio_midpoints<double>(config_, frames);
    Device& host = arguments.tensor(argument::timestep).device();
    const Tensor of_video = ops::from_doubles(host, video, {grid[0] * grid[1] * grid[2], 3}, kFloat64);
    const Tensor of_audio = ops::from_doubles(host, audio, {frames, 1}, kFloat64);
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const Tensor& z = arguments.tensor(kAudioHiddenStates);
    fixed.set(kVideoRotary, table(rope_, of_video, argument::hidden_states, x));
    fixed.set(kAudioRotary, table(audio_rope_, of_audio, kAudioHiddenStates, z));
    fixed.set(kCrossVideoRotary, table(cross_rope_, of_video.narrow(1, 0, 1), argument::hidden_states, x));
    fixed.set(kCrossAudioRotary, table(cross_audio_rope_, of_audio, kAudioHiddenStates, z));
  }

  // The tokens of a stream and of its table must be the same, whatever a plan makes of either.
  std::vector<Tensor> table(Ltx2RotaryPosEmbed& rope, const Tensor& coordinates, Name stream, const Tensor& tokens) {
    std::vector<Tensor> tables = rope.call({{kCoordinates, coordinates}}).tensors;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      SHARDPROOF_CHECK(tables[i].size(-2) == tokens.size(1), shape_error,
                       "output {} of module '{}' ({}) has {} tokens, but argument '{}' of module '' ({}) has {}: the "
                       "plan divides one and not the other, or the numbers of frames, rows and columns do not give its "
                       "tokens",
                       i, rope.path(), rope.class_name(), tables[i].size(-2), stream.text(), class_name(),
                       tokens.size(1));
    }
    return tables;
  }

  // Modulations for the blocks; returns the embeddings that the heads need.
  Embedded add_conditions(const Arguments& arguments, Arguments& fixed) {
    const Tensor& timestep = arguments.tensor(argument::timestep);
    const Tensor given = arguments.optional_tensor(kAudioTimestep);
    const Tensor& audio_timestep = given.defined() ? given : timestep;
    const AdaLayerNormSingle::Embedded of_video = video_.time_embed->embed(timestep);
    const AdaLayerNormSingle::Embedded of_audio = audio_.time_embed->embed(audio_timestep);
    fixed.set(argument::temb, of_video.modulations);
    fixed.set(kTembAudio, of_audio.modulations);
    const auto sigma = [&](Name name) -> const Tensor& {
      return arguments.tensor(arguments.optional_tensor(name).defined() ? name : kSigma);
    };
    if (video_.prompt_adaln != nullptr) {
      fixed.set(kTembPrompt, video_.prompt_adaln->embed(sigma(kSigma)).modulations);
      fixed.set(kTembAudioPrompt, audio_.prompt_adaln->embed(sigma(kAudioSigma)).modulations);
    }
    const bool crosses = arguments.flag(kCrossTimestep, false);
    const Tensor& towards_video = crosses ? sigma(kAudioSigma) : timestep;
    const Tensor& towards_audio = crosses ? sigma(kSigma) : audio_timestep;
    const double ratio = static_cast<double>(config_.cross_attn_timestep_scale_multiplier) /
                         static_cast<double>(config_.timestep_scale_multiplier);
    const auto scaled = [&](const Tensor& times) {
      return scaled_coordinate_tensor(times, ratio, context_.table_precision);
    };
    fixed.set(kTembCross, cross_.embed(towards_video).modulations);
    fixed.set(kTembCrossGate, cross_gate_.embed(scaled(towards_video)).modulations);
    fixed.set(kTembAudioCross, audio_cross_.embed(towards_audio).modulations);
    fixed.set(kTembAudioCrossGate, audio_cross_gate_.embed(scaled(towards_audio)).modulations);
    return {of_video.embedding, of_audio.embedding};
  }

  void add_masks(const Arguments& arguments, Arguments& fixed) const {
    const auto add = [&](Name from, Name to) {
      const Tensor mask = arguments.optional_tensor(from);
      if (!mask.defined()) return;
      const Tensor dropped = ops::add(ops::multiply(ops::cast(mask, context_.dtype), -1.0), 1.0);
      fixed.set(to, ops::multiply(dropped, kMasked));
    };
    add(kTextMask, kTextMask);
    add(kAudioTextMask, kAudioTextMask);
    add(kVideoSelfMask, kSelfMask);
    if (!arguments.flag(kIsolate, false)) return;
    fixed.set(kUseAudioToVideo, false);
    fixed.set(kUseVideoToAudio, false);
  }

  std::vector<bool> perturbed_blocks(const Arguments& arguments) const {
    std::vector<bool> result(blocks_.children().size(), false);
    const Value* value = arguments.find(kPerturbedBlocks);
    if (value == nullptr || is_none(*value)) return result;
    const auto* nested = std::get_if<NestedNumbers>(value);
    const auto* list = nested == nullptr ? nullptr : std::get_if<std::vector<NestedNumbers>>(&nested->content);
    SHARDPROOF_CHECK(list != nullptr, state_error, "argument '{}' of {} must be a list of block numbers, got {}",
                     kPerturbedBlocks.text(), class_name(), value_kind_name(*value));
    for (const NestedNumbers& item : *list) {
      const auto* number = std::get_if<double>(&item.content);
      const bool is_block = number != nullptr && *number >= 0.0 && *number < static_cast<double>(result.size()) &&
                            *number == static_cast<double>(static_cast<std::size_t>(*number));
      SHARDPROOF_CHECK(is_block, state_error, "argument '{}' of {} holds {}; blocks are numbered from 0 to {}",
                       kPerturbedBlocks.text(), class_name(), number != nullptr ? std::to_string(*number) : "a list",
                       static_cast<std::int64_t>(result.size()) - 1);
      if (config_.perturbed_attn) result[static_cast<std::size_t>(*number)] = true;
    }
    return result;
  }

  Tensor perturbation_mask(const Arguments& arguments, std::int64_t batch) const {
    const Tensor mask = arguments.optional_tensor(kPerturbationMask);
    return mask.defined() ? mask : ops::zeros(*context_.device, {batch}, context_.dtype);
  }

  Ltx2Config config_;
  ModelContext context_;
  Ltx2RotaryPosEmbed& rope_;
  Ltx2RotaryPosEmbed& audio_rope_;
  Ltx2RotaryPosEmbed& cross_rope_;
  Ltx2RotaryPosEmbed& cross_audio_rope_;
  Stream video_;
  Stream audio_;
  AdaLayerNormSingle& cross_;
  AdaLayerNormSingle& cross_gate_;
  AdaLayerNormSingle& audio_cross_;
  AdaLayerNormSingle& audio_cross_gate_;
  ModuleList& blocks_;
};

void read_modality(ConfigReader& reader, const std::string& prefix, Ltx2Modality& modality) {
  const auto named = [&](std::string_view name) { return prefix + std::string(name); };
  reader.read(named("in_channels"), modality.in_channels, 1);
  modality.out_channels = modality.in_channels;
  reader.read(named("out_channels"), modality.out_channels, 1);
  reader.read(named("num_attention_heads"), modality.num_attention_heads, 1);
  reader.read(named("attention_head_dim"), modality.attention_head_dim, 1);
  reader.read(named("cross_attention_dim"), modality.cross_attention_dim, 1);
  reader.read(named("pos_embed_max_pos"), modality.pos_embed_max_pos, 1);
  reader.read(named("gated_attn"), modality.gated_attn);
  reader.read(named("cross_attn_mod"), modality.cross_attn_mod);
  reader.read(named("ff_bias"), modality.ff_bias);
}

void check_modality(const Json& json, const std::string& prefix, const Ltx2Modality& modality, std::int64_t axes) {
  SHARDPROOF_CHECK(modality.cross_attention_dim == modality.width(), config_error,
                   "{}: key '{}cross_attention_dim' is {}, but '{}num_attention_heads' times '{}attention_head_dim' is "
                   "{}; they must be equal",
                   json.where(), prefix, modality.cross_attention_dim, prefix, prefix, modality.width());
  SHARDPROOF_CHECK(modality.attention_head_dim % 2 == 0 && modality.width() >= 2 * axes, config_error,
                   "{}: key '{}attention_head_dim' is {}; it must be even, and {} heads of it must give {} rotary "
                   "pairs",
                   json.where(), prefix, modality.attention_head_dim, modality.num_attention_heads, axes);
}

void read_only_one(ConfigReader& reader, const Json& json, std::string_view field) {
  std::int64_t value = 1;
  reader.read(field, value, 1);
  SHARDPROOF_CHECK(value == 1, unsupported_error, "{}: key '{}' is {}; only 1 is offered", json.where(), field, value);
}

void check_ltx2(const Json& json, const Ltx2Config& config) {
  const std::string where = json.where();
  check_modality(json, "", config.video, 3);
  check_modality(json, "audio_", config.audio, 1);
  SHARDPROOF_CHECK(config.rope_type == "interleaved" || config.rope_type == "split", config_error,
                   "{}: key 'rope_type' is '{}'; expected 'interleaved' or 'split'", where,
                   printable(config.rope_type));
  SHARDPROOF_CHECK(!config.has_split_rope() || config.video.num_attention_heads == config.audio.num_attention_heads,
                   config_error,
                   "{}: key 'rope_type' is 'split', but 'num_attention_heads' is {} and 'audio_num_attention_heads' "
                   "{}; they must be "
                   "equal",
                   where, config.video.num_attention_heads, config.audio.num_attention_heads);
}

}  // namespace

Ltx2Config ltx2_config_from_json(const Json& json) {
  ConfigReader reader(json);
  Ltx2Config config;
  read_modality(reader, "", config.video);
  read_modality(reader, "audio_", config.audio);
  for (const char* field : {"patch_size", "patch_size_t", "audio_patch_size", "audio_patch_size_t"})
    read_only_one(reader, json, field);
  reader.read("vae_scale_factors", config.vae_scale_factors, 1);
  reader.read("base_height", config.base_height, 1);
  reader.read("base_width", config.base_width, 1);
  reader.read("audio_scale_factor", config.audio_scale_factor, 1);
  reader.read("audio_sampling_rate", config.audio_sampling_rate, 1);
  reader.read("audio_hop_length", config.audio_hop_length, 1);
  reader.read("num_layers", config.num_layers, 0, ConfigReader::kLargestLayers);
  reader.read_only("activation_fn", "gelu-approximate");
  reader.read_only("qk_norm", "rms_norm_across_heads");
  reader.read("norm_elementwise_affine", config.norm_elementwise_affine);
  reader.read_positive("norm_eps", config.norm_eps);
  reader.read("caption_channels", config.caption_channels, 1);
  reader.read("attention_bias", config.attention_bias);
  reader.read("attention_out_bias", config.attention_out_bias);
  reader.read_positive("rope_theta", config.rope_theta);
  reader.read("rope_double_precision", config.rope_double_precision);
  reader.read("causal_offset", config.causal_offset, 0);
  reader.read("timestep_scale_multiplier", config.timestep_scale_multiplier, 1);
  reader.read("cross_attn_timestep_scale_multiplier", config.cross_attn_timestep_scale_multiplier, 1);
  reader.read("rope_type", config.rope_type);
  reader.read("use_prompt_embeddings", config.use_prompt_embeddings);
  reader.read("perturbed_attn", config.perturbed_attn);
  reader.read("use_prompt_adaln_single", config.use_prompt_adaln_single);
  reader.read("use_keyframes_abs_pos_embedding", config.use_keyframes_abs_pos_embedding);
  reader.finish();
  check_ltx2(json, config);
  return config;
}

std::unique_ptr<Module> make_ltx2(const Ltx2Config& config, const ModelContext& context) {
  return std::make_unique<Ltx2Transformer3DModel>(config, context);
}

}  // namespace shardproof
