#include "models/helios.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/ops.h"
#include "models/argument_checks.h"
#include "models/attention_layers.h"
#include "models/config_reader.h"

namespace shardproof {
namespace {

const Name kRotary("rotary_emb");
const Name kCurrentTokens("original_context_length");
const Name kFrames("frame_indices");
const Name kHeight("height");
const Name kWidth("width");
const Name kWithText("is_return_encoder_hidden_states");
const Name kAttentionKwargs("attention_kwargs");
const Name kCurrentIndices("indices_hidden_states");

// A stream of history: how many frames, rows and columns of patches one of its tokens stands for.
struct HistoryStream {
  Name latents, indices, patch;
  std::int64_t pooled;
};

// In the order in which they are made; each goes in front of what there is.
const std::array<HistoryStream, 3> kStreams{{
    {"latents_history_short", "indices_latents_history_short", "patch_short", 1},
    {"latents_history_mid", "indices_latents_history_mid", "patch_mid", 2},
    {"latents_history_long", "indices_latents_history_long", "patch_long", 4},
}};

Tensor in_wide_type(const Tensor& x) { return ops::cast(x, wide_dtype(x.dtype())); }

std::int64_t integer(const Arguments& arguments, Name name) { return std::get<std::int64_t>(*arguments.find(name)); }

// The last entry of every axis of x [batch, channels, f, h, w] repeated until `multiples` divide f, h and w.
Tensor padded_by_repetition(Tensor x, const Extents& multiples) {
  for (int i = 0; i < 3; ++i) {
    const std::int64_t multiple = multiples[static_cast<std::size_t>(i)], size = x.size(2 + i);
    std::vector<Tensor> parts{x};
    for (std::int64_t n = size; n % multiple != 0; ++n) parts.push_back(x.narrow(2 + i, size - 1, 1));
    x = ops::concat(parts, 2 + i);
  }
  return x;
}

// The mean over cubes of n entries a side; what is missing to whole cubes repeats the last entry.
Tensor pooled(const Tensor& x, std::int64_t n) {
  if (n == 1) return x;
  const Tensor whole = padded_by_repetition(x, {n, n, n});
  const std::int64_t f = whole.size(2) / n, h = whole.size(3) / n, w = whole.size(4) / n;
  const Tensor cubes = whole.unflatten(4, w, n).unflatten(3, h, n).unflatten(2, f, n).permute({0, 1, 2, 4, 6, 3, 5, 7});
  return ops::mean(ops::reshape(cubes, {x.size(0), x.size(1), f, h, w, n * n * n}));
}

// Frame indices [batch, F] on the host and a grid of rows and columns -> [batch, 2 head_dim, F, height, width]:
// cosines, then sines, each standing twice. In the wide type.
class HeliosRotaryPosEmbed final : public Module {
 public:
  HeliosRotaryPosEmbed(const HeliosConfig& config, const ModelContext& context)
      : Module("HeliosRotaryPosEmbed"), context_(context), widths_(config.rope_dim), theta_(config.rope_theta) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {kFrames, ArgumentKind::coordinate}, {kHeight, ArgumentKind::setting}, {kWidth, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& indices = arguments.tensor(kFrames);
    const std::int64_t height = integer(arguments, kHeight), width = integer(arguments, kWidth);
    std::array<std::vector<double>, 3> positions;
    for (const double frame : ops::to_doubles(indices)) {
      for (std::int64_t y = 0; y < height; ++y) {
        for (std::int64_t x = 0; x < width; ++x) {
          positions[0].push_back(frame);
          positions[1].push_back(static_cast<double>(y));
          positions[2].push_back(static_cast<double>(x));
        }
      }
    }
    std::vector<AngleTable> parts;
    for (std::size_t axis = 0; axis < positions.size(); ++axis)
      parts.push_back(tables::rotary_angles32(positions[axis], widths_[axis], theta_, context_.table_precision));
    const AngleTable table = tables::side_by_side(parts);
    const DType dtype = wide_dtype(context_.dtype);
    const Tensor rows = ops::concat(
        {tables::cosine_on(*context_.device, table, dtype, 2), tables::sine_on(*context_.device, table, dtype, 2)}, -1);
    return ops::reshape(rows, {indices.size(0), indices.size(1), height, width, rows.size(1)}).permute({0, 4, 1, 2, 3});
  }

 private:
  ModelContext context_;
  std::vector<std::int64_t> widths_;
  double theta_;
};

// (temb [batch, D], six modulations [batch, 6 D], the text; as it is given unless asked to project it).
class HeliosTimeTextEmbedding final : public Module {
 public:
  HeliosTimeTextEmbedding(const HeliosConfig& config, const ModelContext& context)
      : Module("HeliosTimeTextEmbedding"),
        timesteps_proj_(add_child<TimestepProjection>("timesteps_proj", context, config.freq_dim)),
        time_embedder_(add_child<TwoLayerMlp>("time_embedder", "TimestepEmbedding", config.freq_dim, config.width(),
                                              UnaryOp::silu, "act")),
        act_fn_(add_child<Activation>("act_fn", "SiLU", UnaryOp::silu)),
        time_proj_(add_child<Linear>("time_proj", config.width(), 6 * config.width())),
        text_embedder_(add_child<TwoLayerMlp>("text_embedder", "PixArtAlphaTextProjection", config.text_dim,
                                              config.width(), UnaryOp::gelu_tanh, "act_1")) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::timestep, ArgumentKind::coordinate},
                                              {argument::encoder_hidden_states},
                                              {kWithText, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor projected =
        timesteps_proj_.call({{argument::timestep, arguments.tensor(argument::timestep)}}).tensors.front();
    const Tensor temb = time_embedder_(projected);
    const Tensor& text = arguments.tensor(argument::encoder_hidden_states);
    const bool with_text = arguments.flag(kWithText, true);
    return Outputs(std::vector<Tensor>{temb, time_proj_(act_fn_(temb)), with_text ? text_embedder_(text) : text});
  }

 private:
  TimestepProjection& timesteps_proj_;
  TwoLayerMlp& time_embedder_;
  Activation& act_fn_;
  Linear& time_proj_;
  TwoLayerMlp& text_embedder_;
};

enum class Amplification : std::uint8_t { none, all_heads, per_head };

Amplification amplification_of(const HeliosConfig& config) {
  if (!config.is_amplify_history) return Amplification::none;
  return config.history_scale_mode == "scalar" ? Amplification::all_heads : Amplification::per_head;
}

// Self-attention (rotated, with the sequence divided among ranks) where no text is given, otherwise cross attention to
// the whole text, which every rank has.
class HeliosAttention final : public AcrossHeadsAttention {
 public:
  HeliosAttention(const HeliosConfig& config, Amplification amplification)
      : AcrossHeadsAttention("HeliosAttention", {.query_width = config.width(),
                                                 .key_width = config.width(),
                                                 .inner = config.width(),
                                                 .out_width = config.width(),
                                                 .head_dim = config.attention_head_dim,
                                                 .norm_eps = config.eps}),
        amplification_(amplification) {
    if (amplification == Amplification::none) return;
    declare_parameter("history_key_scale",
                      {amplification == Amplification::per_head ? config.num_attention_heads : std::int64_t{1}});
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {argument::attention_mask, ArgumentKind::mask},
                                              {kRotary},
                                              {kCurrentTokens, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const Tensor text = arguments.optional_tensor(argument::encoder_hidden_states);
    const Tensor& source = text.defined() ? text : x;
    Tensor q = heads(queries(x)), k = heads(keys(source));
    const Tensor rotary = arguments.optional_tensor(kRotary);
    if (rotary.defined()) {
      check_rotary_rows(*this, kRotary, rotary, q.size(1), "the output of module 'rope'");
      const std::vector<Tensor> tables = ops::chunk(rotary, 2, -1);
      q = ops::rotary_interleaved(q, tables[0], tables[1]);
      k = ops::rotary_interleaved(k, tables[0], tables[1]);
    }
    if (amplification_ != Amplification::none) k = amplified(k, integer(arguments, kCurrentTokens));
    const AttentionOptions placement{.keys = text.defined() ? Placement::replicated : Placement::split};
    return output(join_heads(attention(q, k, heads(values(source)), {}, placement, context_parallel()).out));
  }

 private:
  // Keys of history, which is all but the last `current` tokens of the whole sequence, times 1 + 9 sigmoid(scale).
  Tensor amplified(const Tensor& k, std::int64_t current) const {
    const SequencePart part = part_of_sequence(k.size(1), context_parallel());
    const std::int64_t history = std::clamp<std::int64_t>(part.total - current - part.start, 0, k.size(1));
    if (history == 0) return k;
    const Tensor scale = ops::add(ops::multiply(ops::sigmoid(parameter(0)), 9.0), 1.0).unsqueeze(-1);
    return ops::concat({ops::multiply(k.narrow(1, 0, history), scale), k.narrow(1, history, k.size(1) - history)}, 1);
  }

  Amplification amplification_;
};

// x with `added` on its last tokens.
Tensor add_at_end(const Tensor& x, const Tensor& added) {
  const std::int64_t before = x.size(1) - added.size(1);
  if (before == 0) return ops::add(x, added);
  return ops::concat({x.narrow(1, 0, before), ops::add(x.narrow(1, before, added.size(1)), added)}, 1);
}

// The stream stays whole on every rank; a plan divides what the three branches take and gathers what they return.
class HeliosTransformerBlock final : public Module {
 public:
  explicit HeliosTransformerBlock(const HeliosConfig& config)
      : Module("HeliosTransformerBlock"),
        only_current_attends_text_(config.guidance_cross_attn),
        norm1_(add_child<LayerNorm>("norm1", config.eps)),
        attn1_(add_child<HeliosAttention>("attn1", config, amplification_of(config))),
        attn2_(add_child<HeliosAttention>("attn2", config, Amplification::none)),
        norm2_(config.cross_attn_norm ? &add_child<AffineLayerNorm>("norm2", config.width(), config.eps) : nullptr),
        ffn_(add_child<FeedForward>("ffn", FeedForward::Options{.in_features = config.width(),
                                                                .inner = config.ffn_dim,
                                                                .out_features = config.width()})),
        norm3_(add_child<LayerNorm>("norm3", config.eps)) {
    declare_parameter("scale_shift_table", {1, 6, config.width()});
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::encoder_hidden_states},
                                              {argument::temb},
                                              {kRotary},
                                              {kCurrentTokens, ArgumentKind::setting}};
    return kArguments;
  }

  // temb: six modulations [batch, tokens|1, 6, D]. Norms, modulations and residuals are in the wide type, the parts
  // between in the model's own.
  Outputs forward(Arguments& arguments) override {
    Tensor x = arguments.tensor(argument::hidden_states);
    const DType dtype = x.dtype();
    const std::vector<Tensor> m =
        modulations_from_table(in_wide_type(parameter(0)), in_wide_type(arguments.tensor(argument::temb)));
    const auto modulated = [&](LayerNorm& norm, std::size_t first) {
      return ops::cast(modulate(norm(in_wide_type(x)), m[first + 1], m[first]), dtype);
    };
    const auto added = [&](std::size_t gate, const Tensor& branch) {
      return ops::cast(add_gated(in_wide_type(x), m[gate], in_wide_type(branch)), dtype);
    };
    x = added(2, checked(attn1_, x.size(1),
                         attn1_.call({{argument::hidden_states, modulated(norm1_, 0)},
                                      {kRotary, arguments.tensor(kRotary)},
                                      {kCurrentTokens, *arguments.find(kCurrentTokens)}})));

    const std::int64_t current = only_current_attends_text_ ? integer(arguments, kCurrentTokens) : x.size(1);
    const Tensor last = x.narrow(1, x.size(1) - current, current);
    const Tensor querying = norm2_ == nullptr ? last : ops::cast((*norm2_)(in_wide_type(last)), dtype);
    const Tensor& text = arguments.tensor(argument::encoder_hidden_states);
    x = add_at_end(
        x, checked(attn2_, current,
                   attn2_.call({{argument::hidden_states, querying}, {argument::encoder_hidden_states, text}})));

    return added(5, checked(ffn_, x.size(1), ffn_(modulated(norm3_, 3))));
  }

 private:
  // A plan that divides a branch and does not gather it leaves the stream and the branch with different tokens.
  static Tensor checked(const Module& branch, std::int64_t tokens, const Outputs& outputs) {
    const Tensor& x = outputs.tensors.front();
    SHARDPROOF_CHECK(x.size(1) == tokens, shape_error,
                     "output 0 of module '{}' ({}) is {}, but the stream that it is added to has {} tokens: the plan "
                     "divides argument 'hidden_states' of this module and does not gather its output",
                     branch.path(), branch.class_name(), x.text(), tokens);
    return x;
  }

  bool only_current_attends_text_;
  LayerNorm& norm1_;
  HeliosAttention& attn1_;
  HeliosAttention& attn2_;
  AffineLayerNorm* norm2_;
  FeedForward& ffn_;
  LayerNorm& norm3_;
};

// The last tokens, normalised and modulated by table + temb.
class HeliosOutputNorm final : public Module {
 public:
  explicit HeliosOutputNorm(const HeliosConfig& config)
      : Module("HeliosOutputNorm"), norm_(add_child<LayerNorm>("norm", config.eps)) {
    declare_parameter("scale_shift_table", {1, 2, config.width()});
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states}, {argument::temb}, {kCurrentTokens, ArgumentKind::setting}};
    return kArguments;
  }

  // temb [batch, D].
  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const std::int64_t current = integer(arguments, kCurrentTokens);
    const Tensor temb = arguments.tensor(argument::temb).unsqueeze(1).unsqueeze(1);
    const std::vector<Tensor> m = modulations_from_table(in_wide_type(parameter(0)), in_wide_type(temb));
    const Tensor last = in_wide_type(x.narrow(1, x.size(1) - current, current));
    return ops::cast(modulate(norm_(last), m[1], m[0]), x.dtype());
  }

 private:
  LayerNorm& norm_;
};

// Tokens with their rotary table [batch, tokens, 2 head_dim].
struct Stream {
  Tensor tokens, table;
};

class HeliosTransformer3DModel final : public Module {
 public:
  HeliosTransformer3DModel(const HeliosConfig& config, const ModelContext& context)
      : Module("HeliosTransformer3DModel"),
        config_(config),
        context_(context),
        rope_(add_child<HeliosRotaryPosEmbed>("rope", config, context)),
        patch_embedding_(add_patches("patch_embedding", 1)),
        condition_embedder_(add_child<HeliosTimeTextEmbedding>("condition_embedder", config, context)),
        blocks_(add_child<ModuleList>("blocks")),
        norm_out_(add_child<HeliosOutputNorm>("norm_out", config)),
        proj_out_(add_child<Linear>(
            "proj_out", config.width(),
            config.out_channels * config.patch_size[0] * config.patch_size[1] * config.patch_size[2])) {
    for (std::size_t i = 0; config.has_multi_term_memory_patch && i < kStreams.size(); ++i)
      history_patches_[i] = &add_patches(kStreams[i].patch, kStreams[i].pooled);
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<HeliosTransformerBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::timestep, ArgumentKind::coordinate},
                                              {argument::encoder_hidden_states},
                                              {kCurrentIndices, ArgumentKind::coordinate},
                                              {kStreams[0].indices, ArgumentKind::coordinate},
                                              {kStreams[1].indices, ArgumentKind::coordinate},
                                              {kStreams[2].indices, ArgumentKind::coordinate},
                                              {kStreams[0].latents},
                                              {kStreams[1].latents},
                                              {kStreams[2].latents},
                                              {argument::return_dict, ArgumentKind::setting},
                                              {kAttentionKwargs, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_arguments(arguments);
    const Tensor patches = patch_embedding_(arguments.tensor(argument::hidden_states));
    const Extents grid{patches.size(2), patches.size(3), patches.size(4)};
    const std::int64_t current = grid[0] * grid[1] * grid[2];
    const Stream all = whole_sequence(arguments, patches, grid);
    const std::int64_t history = all.tokens.size(1) - current;

    const Conditions conditions = embed_conditions(arguments, history, current);
    Tensor x = all.tokens;
    for (const auto& block : blocks_.children()) {
      x = block
              ->call({{argument::hidden_states, x},
                      {argument::encoder_hidden_states, conditions.text},
                      {argument::temb, conditions.modulations},
                      {kRotary, all.table},
                      {kCurrentTokens, current}})
              .tensors.front();
    }
    const Tensor last =
        norm_out_.call({{argument::hidden_states, x}, {argument::temb, conditions.temb}, {kCurrentTokens, current}})
            .tensors.front();
    return grid_of_patches(proj_out_(last), grid, config_.patch_size);
  }

 private:
  struct Conditions {
    Tensor temb;         // [batch, D]
    Tensor modulations;  // [batch, tokens|1, 6, D]
    Tensor text;         // [batch, text, D]
  };

  PatchEmbedding& add_patches(Name name, std::int64_t pooled) {
    const Extents& patch = config_.patch_size;
    return add_child<PatchEmbedding>(name, config_.in_channels, config_.width(),
                                     Extents{pooled * patch[0], pooled * patch[1], pooled * patch[2]});
  }

  static bool has_stream(const Arguments& arguments, const HistoryStream& stream) {
    return arguments.optional_tensor(stream.latents).defined() && arguments.optional_tensor(stream.indices).defined();
  }

  void check_arguments(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    checks.must_be_none(kAttentionKwargs, "adapters are not offered");
    const Tensor& video = arguments.tensor(argument::hidden_states);
    checks.shape(argument::hidden_states, video, video.rank() == 5, "[batch, in_channels, frames, height, width]");
    const std::int64_t batch = video.size(0);
    checks.sequence(argument::encoder_hidden_states, batch,
                    "[batch, text tokens, text_dim] with the batch of hidden_states");
    const Tensor& timestep = arguments.tensor(argument::timestep);
    checks.shape(argument::timestep, timestep, timestep.shape() == Shape{batch}, "[batch] of hidden_states");
    for (const HistoryStream& stream : kStreams) {
      if (!has_stream(arguments, stream)) continue;
      SHARDPROOF_CHECK(config_.has_multi_term_memory_patch, unsupported_error,
                       "argument '{}' of {} must be none: the configuration has no has_multi_term_memory_patch",
                       stream.latents.text(), class_name());
      SHARDPROOF_CHECK(has_stream(arguments, kStreams[0]), shape_error,
                       "argument '{}' of {} needs '{}' and '{}', whose grid its positions come from",
                       stream.latents.text(), class_name(), kStreams[0].latents.text(), kStreams[0].indices.text());
      const Tensor& latents = arguments.tensor(stream.latents);
      checks.shape(stream.latents, latents, latents.rank() == 5 && latents.size(0) == batch,
                   "[batch, in_channels, frames, height, width] with the batch of hidden_states");
    }
  }

  // [long, middle, short, current].
  Stream whole_sequence(const Arguments& arguments, const Tensor& patches, const Extents& grid) {
    std::vector<Tensor> tokens{tokens_of_grid(patches)}, tables{current_table(arguments, patches.size(0), grid)};
    Extents positions{};
    for (std::size_t i = 0; i < kStreams.size(); ++i) {
      const HistoryStream& stream = kStreams[i];
      if (!has_stream(arguments, stream)) continue;
      const std::int64_t n = stream.pooled;
      Tensor latents = arguments.tensor(stream.latents);
      if (n > 1) latents = padded_by_repetition(latents, {n, 2 * n, 2 * n});
      const Tensor embedded = (*history_patches_[i])(latents);
      // Positions of all streams lie on the grid of the short one.
      if (i == 0) positions = {embedded.size(2), embedded.size(3), embedded.size(4)};
      tokens.insert(tokens.begin(), tokens_of_grid(embedded));
      tables.insert(tables.begin(), table(arguments, stream.indices, positions, n, tokens.front().size(1)));
    }
    return {ops::concat(tokens, 1), ops::concat(tables, 1)};
  }

  Tensor current_table(const Arguments& arguments, std::int64_t batch, const Extents& grid) {
    if (arguments.optional_tensor(kCurrentIndices).defined())
      return table(arguments, kCurrentIndices, grid, 1, grid[0] * grid[1] * grid[2]);
    std::vector<double> frames;
    for (std::int64_t item = 0; item < batch; ++item) {
      for (std::int64_t frame = 0; frame < grid[0]; ++frame) frames.push_back(static_cast<double>(frame));
    }
    Arguments counted = arguments;
    Device& host = arguments.tensor(argument::timestep).device();
    counted.set(kCurrentIndices, ops::from_doubles(host, frames, {batch, grid[0]}, kFloat64));
    return table(counted, kCurrentIndices, grid, 1, grid[0] * grid[1] * grid[2]);
  }

  // [batch, tokens, 2 head_dim] of the frame indices `name` over the rows and columns of `grid`, pooled by n.
  Tensor table(const Arguments& arguments, Name name, const Extents& grid, std::int64_t n, std::int64_t tokens) {
    const std::int64_t batch = arguments.tensor(argument::timestep).size(0);
    const Tensor& indices = arguments.tensor(name);
    const bool fits = indices.rank() == 2 && indices.size(0) == batch;
    ArgumentChecks(class_name(), arguments)
        .shape(name, indices, fits, "[batch, frames] with the batch of hidden_states");
    const Tensor cubes =
        pooled(rope_.call({{kFrames, indices}, {kHeight, grid[1]}, {kWidth, grid[2]}}).tensors.front(), n);
    const Tensor rows = tokens_of_grid(cubes);
    SHARDPROOF_CHECK(rows.size(1) == tokens, shape_error,
                     "argument '{}' of {} is {}, which over {} rows and {} columns gives {} positions for {} tokens",
                     name.text(), class_name(), indices.text(), grid[1], grid[2], rows.size(1), tokens);
    return rows;
  }

  Conditions embed_conditions(const Arguments& arguments, std::int64_t history, std::int64_t current) {
    const Tensor& timestep = arguments.tensor(argument::timestep);
    const Tensor& text = arguments.tensor(argument::encoder_hidden_states);
    const std::int64_t batch = timestep.size(0), width = config_.width();
    const auto per_token = [&](const Outputs& embedded, std::int64_t tokens) {
      const Tensor& six = embedded.tensors[1];
      return six.view({six.size(0), 1, 6, width}).expand({batch, tokens, 6, width});
    };
    std::optional<Tensor> of_history;
    if (config_.zero_history_timestep && history > 0) {
      const Tensor zero = ops::zeros(timestep.device(), {1}, kFloat64);
      of_history =
          per_token(condition_embedder_.call(
                        {{argument::timestep, zero}, {argument::encoder_hidden_states, text}, {kWithText, false}}),
                    history);
    }
    const Outputs now =
        condition_embedder_.call({{argument::timestep, timestep}, {argument::encoder_hidden_states, text}});
    const Tensor modulations = of_history ? ops::concat({*of_history, per_token(now, current)}, 1) : per_token(now, 1);
    return {now.tensors[0], modulations, now.tensors[2]};
  }

  HeliosConfig config_;
  ModelContext context_;
  HeliosRotaryPosEmbed& rope_;
  PatchEmbedding& patch_embedding_;
  std::array<PatchEmbedding*, kStreams.size()> history_patches_{};
  HeliosTimeTextEmbedding& condition_embedder_;
  ModuleList& blocks_;
  HeliosOutputNorm& norm_out_;
  Linear& proj_out_;
};

void check_helios(const HeliosConfig& config, const Json& json) {
  const std::string where = json.where();
  const bool known_mode = config.history_scale_mode == "per_head" || config.history_scale_mode == "scalar";
  SHARDPROOF_CHECK(known_mode, config_error, "{}: key 'history_scale_mode' is '{}'; expected 'per_head' or 'scalar'",
                   where, printable(config.history_scale_mode));
  SHARDPROOF_CHECK(config.freq_dim % 2 == 0, config_error, "{}: key 'freq_dim' is {}; it must be even", where,
                   config.freq_dim);
}

}  // namespace

HeliosConfig helios_config_from_json(const Json& json) {
  ConfigReader reader(json);
  HeliosConfig config;
  reader.read("patch_size", config.patch_size, 1);
  reader.read("num_attention_heads", config.num_attention_heads, 1);
  reader.read("attention_head_dim", config.attention_head_dim, 1);
  reader.read("in_channels", config.in_channels, 1);
  reader.read("out_channels", config.out_channels, 1);
  reader.read("text_dim", config.text_dim, 1);
  reader.read("freq_dim", config.freq_dim, 2);
  reader.read("ffn_dim", config.ffn_dim, 1);
  reader.read("num_layers", config.num_layers, 0, ConfigReader::kLargestLayers);
  reader.read("cross_attn_norm", config.cross_attn_norm);
  reader.read_only("qk_norm", "rms_norm_across_heads");
  reader.read_positive("eps", config.eps);
  std::optional<std::int64_t> added_kv_proj_dim;
  reader.read("added_kv_proj_dim", added_kv_proj_dim, 1);
  reader.read("rope_dim", config.rope_dim, 1);
  reader.read_positive("rope_theta", config.rope_theta);
  reader.read("guidance_cross_attn", config.guidance_cross_attn);
  reader.read("zero_history_timestep", config.zero_history_timestep);
  reader.read("has_multi_term_memory_patch", config.has_multi_term_memory_patch);
  reader.read("is_amplify_history", config.is_amplify_history);
  reader.read("history_scale_mode", config.history_scale_mode);
  reader.finish();
  SHARDPROOF_CHECK(!added_kv_proj_dim, unsupported_error,
                   "{}: key 'added_kv_proj_dim' is {}; keys and values of an image are not offered, it must be null",
                   json.where(), added_kv_proj_dim.value_or(0));
  reader.check_rope_axes(config.rope_dim, config.attention_head_dim, "rope_dim");
  reader.check_three_axes(config.rope_dim, "rope_dim");
  check_helios(config, json);
  return config;
}

std::unique_ptr<Module> make_helios(const HeliosConfig& config, const ModelContext& context) {
  return std::make_unique<HeliosTransformer3DModel>(config, context);
}

}  // namespace shardproof
