#include "models/minimax_h3.h"

#include <array>

#include "core/error.h"
#include "core/ops.h"
#include "models/argument_checks.h"
#include "models/attention_layers.h"
#include "models/config_reader.h"

namespace shardproof {
namespace {

constexpr auto kNoBias = Linear::Bias::absent;
constexpr std::int64_t kAxes = 3;
constexpr std::int64_t kKinds = 3;  // of rows: video, text, audio

const Name kAudioHiddenStates("audio_hidden_states");
const Name kTimestepIndices("timestep_indices");
const Name kTags("token_tags");
const Name kPositions("position_ids");
const Name kVideoIndices("video_indices");
const Name kAudioIndices("audio_indices");
const Name kTextIndices("text_indices");
const Name kAttentionKwargs("attention_kwargs");
const Name kModulationIndices("adaln_indices");
const Name kRotary("rotary_emb");

// Rows of x [n, ..] for every token: index int64 [tokens] -> [1, tokens, ..].
Tensor rows_of(const Tensor& x, const Tensor& index) {
  return ops::gather_rows(ops::contiguous(x), index).unsqueeze(0);
}

// Tokens of x [batch, tokens, C] in another order: index int64 [n] -> [batch, n, C].
Tensor tokens_of(const Tensor& x, const Tensor& index) {
  return ops::gather_rows(ops::contiguous(x.transpose(0, 1)), index).transpose(0, 1);
}

// The index `name` has an entry for every token of x, whatever a plan makes of either.
void check_covers(const Module& module, Name name, const Tensor& index, const Tensor& x) {
  SHARDPROOF_CHECK(
      index.size(0) == x.size(1), shape_error,
      "argument '{}' of module '{}' ({}) has {} rows, but argument 'hidden_states' has {} tokens: the plan "
      "divides one and not the other",
      name.text(), module.path(), module.class_name(), index.size(0), x.size(1));
}

// Host positions [tokens, 3] -> {cosine, sine} [tokens, 6 n], the n angles of each axis side by side and all of them
// twice. In the wide type.
class MiniMaxH3Rope final : public Module {
 public:
  MiniMaxH3Rope(const MiniMaxH3Config& config, const ModelContext& context)
      : Module("MiniMaxH3RotaryPosEmbed"),
        context_(context),
        frequencies_(config.rope_freq_dim),
        theta_(config.rope_theta) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{kPositions, ArgumentKind::coordinate}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& positions = arguments.tensor(kPositions);
    std::vector<AngleTable> parts;
    for (int axis = 0; axis < kAxes; ++axis) {
      parts.push_back(tables::rotary_angles32(ops::to_doubles(positions.narrow(1, axis, 1)), 2 * frequencies_, theta_,
                                              context_.table_precision));
    }
    const AngleTable table = tables::side_by_side(parts);
    const DType dtype = wide_dtype(context_.dtype);
    const auto twice = [](const Tensor& half) { return ops::concat({half, half}, -1); };
    return Outputs(std::vector<Tensor>{twice(tables::cosine_on(*context_.device, table, dtype, 1)),
                                       twice(tables::sine_on(*context_.device, table, dtype, 1))});
  }

 private:
  ModelContext context_;
  std::int64_t frequencies_;
  double theta_;
};

// Self-attention with a norm a head. With a table, over a sequence that the ranks divide, and the first channels of
// each head rotated; without, over one that every rank has whole.
class MiniMaxH3Attention final : public Module, public AttentionSlot {
 public:
  explicit MiniMaxH3Attention(const MiniMaxH3Config& config)
      : Module("MiniMaxH3Attention"),
        head_dim_(config.attention_head_dim),
        to_q_(add_projection("to_q", config)),
        to_k_(add_projection("to_k", config)),
        to_v_(add_projection("to_v", config)),
        norm_q_(add_child<RmsNorm>("norm_q", config.attention_head_dim, config.qk_norm_eps)),
        norm_k_(add_child<RmsNorm>("norm_k", config.attention_head_dim, config.qk_norm_eps)),
        to_out_(add_child<ModuleList>("to_out").append<Linear>(config.num_attention_heads * config.attention_head_dim,
                                                               config.hidden_size, kNoBias)) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states}, {kRotary}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const std::vector<Tensor> table = arguments.tensor_list(kRotary);
    if (!table.empty()) {
      check_rotary_rows(*this, kRotary, table[0], x.size(1), "the two outputs of module 'rope'");
    }
    const Tensor q = rotated(norm_q_(split_heads(to_q_(x), head_dim_)), table);
    const Tensor k = rotated(norm_k_(split_heads(to_k_(x), head_dim_)), table);
    const Placement placement = table.empty() ? Placement::replicated : Placement::split;
    const AttentionResult attended = attention(q, k, split_heads(to_v_(x), head_dim_), {},
                                               {.queries = placement, .keys = placement}, context_parallel());
    return to_out_(join_heads(attended.out));
  }

 private:
  Linear& add_projection(Name name, const MiniMaxH3Config& config) {
    return add_child<Linear>(name, config.hidden_size, config.num_attention_heads * config.attention_head_dim, kNoBias);
  }

  static Tensor rotated(const Tensor& x, const std::vector<Tensor>& table) {
    if (table.empty()) return x;
    const std::int64_t channels = table[0].size(1), rest = x.size(3) - channels;
    const Tensor turned = ops::rotary_halves(x.narrow(3, 0, channels), table[0].narrow(1, 0, channels / 2),
                                             table[1].narrow(1, 0, channels / 2));
    return rest == 0 ? turned : ops::concat({turned, x.narrow(3, channels, rest)}, 3);
  }

  std::int64_t head_dim_;
  Linear& to_q_;
  Linear& to_k_;
  Linear& to_v_;
  RmsNorm& norm_q_;
  RmsNorm& norm_k_;
  Linear& to_out_;
};

FeedForward::Options feed_forward_options(const MiniMaxH3Config& config) {
  return {.in_features = config.hidden_size,
          .inner = config.ffn_dim,
          .out_features = config.hidden_size,
          .kind = FeedForward::Kind::swiglu,
          .bias = kNoBias};
}

// Of the text alone, neither rotated nor modulated.
class MiniMaxH3RefinerBlock final : public TensorModule {
 public:
  explicit MiniMaxH3RefinerBlock(const MiniMaxH3Config& config)
      : TensorModule("MiniMaxH3TokenRefinerBlock"),
        norm1_(add_child<RmsNorm>("norm1", config.hidden_size, config.norm_eps)),
        attn_(add_child<MiniMaxH3Attention>("attn", config)),
        norm2_(add_child<RmsNorm>("norm2", config.hidden_size, config.norm_eps)),
        ff_(add_child<FeedForward>("ff", feed_forward_options(config))) {}

 private:
  Tensor compute(const Tensor& x) const override {
    const Tensor attended = ops::add(x, attn_.call({{argument::hidden_states, norm1_(x)}}).tensors.front());
    return ops::add(attended, ff_(norm2_(attended)));
  }

  RmsNorm& norm1_;
  MiniMaxH3Attention& attn_;
  RmsNorm& norm2_;
  FeedForward& ff_;
};

class MiniMaxH3TokenRefiner final : public TensorModule {
 public:
  explicit MiniMaxH3TokenRefiner(const MiniMaxH3Config& config)
      : TensorModule("MiniMaxH3TokenRefiner"),
        blocks_(add_child<ModuleList>("refiner_blocks")),
        final_norm_(add_child<RmsNorm>("final_norm", config.hidden_size, config.final_norm_eps)) {
    for (std::int64_t i = 0; i < config.num_refiner_layers; ++i) blocks_.append<MiniMaxH3RefinerBlock>(config);
  }

 private:
  Tensor compute(const Tensor& text) const override {
    Tensor x = text;
    for (const auto& block : blocks_.children()) x = block->call({{argument::hidden_states, x}}).tensors.front();
    return final_norm_(x);
  }

  ModuleList& blocks_;
  RmsNorm& final_norm_;
};

// temb [times, te] -> six modulations [3 times, C]: a row for each timestep and kind of token.
class MiniMaxH3Modulation final : public Module {
 public:
  explicit MiniMaxH3Modulation(const MiniMaxH3Config& config)
      : Module("MiniMaxH3AdaLayerNormProj"),
        width_(config.hidden_size),
        linear_(add_child<Linear>("linear", config.time_embed_dim, kKinds * kModulations * config.hidden_size)) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::temb}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor all = linear_(ops::silu(arguments.tensor(argument::temb)));
    return Outputs(ops::chunk(all.view({kKinds * all.size(0), kModulations * width_}), kModulations, -1));
  }

 private:
  static constexpr int kModulations = 6;
  std::int64_t width_;
  Linear& linear_;
};

class MiniMaxH3TransformerBlock final : public Module {
 public:
  explicit MiniMaxH3TransformerBlock(const MiniMaxH3Config& config)
      : Module("MiniMaxH3TransformerBlock"),
        adaln_proj_(add_child<MiniMaxH3Modulation>("adaln_proj", config)),
        norm1_(add_child<RmsNorm>("norm1", config.hidden_size, config.norm_eps)),
        attn_(add_child<MiniMaxH3Attention>("attn", config)),
        norm2_(add_child<RmsNorm>("norm2", config.hidden_size, config.norm_eps)),
        ff_(add_child<FeedForward>("ff", feed_forward_options(config))) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {argument::temb},
                                              {kModulationIndices, ArgumentKind::index},
                                              {kRotary},
                                              {argument::attention_mask, ArgumentKind::mask}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const Tensor& index = arguments.tensor(kModulationIndices);
    check_covers(*this, kModulationIndices, index, x);
    std::vector<Tensor> m = adaln_proj_.call({{argument::temb, arguments.tensor(argument::temb)}}).tensors;
    for (Tensor& rows : m) rows = rows_of(rows, index);
    const Tensor attended =
        attn_.call({{argument::hidden_states, modulate(norm1_(x), m[1], m[0])}, {kRotary, *arguments.find(kRotary)}})
            .tensors.front();
    const Tensor y = add_gated(x, m[2], attended);
    return add_gated(y, m[5], ff_(modulate(norm2_(y), m[4], m[3])));
  }

 private:
  MiniMaxH3Modulation& adaln_proj_;
  RmsNorm& norm1_;
  MiniMaxH3Attention& attn_;
  RmsNorm& norm2_;
  FeedForward& ff_;
};

// RMS(x) w (1 + scale) + shift with (shift, scale), in this order, of every token's timestep.
class MiniMaxH3OutputNorm final : public Module {
 public:
  explicit MiniMaxH3OutputNorm(const MiniMaxH3Config& config)
      : Module("MiniMaxH3AdaLayerNormOut"),
        norm_(add_child<RmsNorm>("norm", config.hidden_size, config.final_norm_eps)),
        linear_(add_child<Linear>("linear", config.time_embed_dim, 2 * config.hidden_size)) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states}, {argument::temb}, {kTimestepIndices, ArgumentKind::index}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& index = arguments.tensor(kTimestepIndices);
    check_covers(*this, kTimestepIndices, index, arguments.tensor(argument::hidden_states));
    const std::vector<Tensor> m =
        ops::chunk(rows_of(linear_(ops::silu(arguments.tensor(argument::temb))), index), 2, -1);
    return modulate(norm_(arguments.tensor(argument::hidden_states)), m[1], m[0]);
  }

 private:
  RmsNorm& norm_;
  Linear& linear_;
};

class MiniMaxH3Transformer3DModel final : public Module {
 public:
  MiniMaxH3Transformer3DModel(const MiniMaxH3Config& config, const ModelContext& context)
      : Module("MiniMaxH3Transformer3DModel"),
        context_(context),
        rope_(add_child<MiniMaxH3Rope>("rope", config, context)),
        proj_in_(add_child<Linear>("proj_in", config.patch_channels(), config.hidden_size)),
        audio_proj_in_(add_child<Linear>("audio_proj_in", config.audio_in_channels, config.hidden_size)),
        context_embedder_(add_child<Linear>("context_embedder", config.text_dim, config.hidden_size)),
        token_refiner_(add_child<MiniMaxH3TokenRefiner>("token_refiner", config)),
        time_proj_(add_child<TimestepProjection>("time_proj", context, config.freq_dim)),
        time_embedder_(add_child<TwoLayerMlp>(
            "time_embedder", "TimestepEmbedding",
            TwoLayerMlp::Widths{config.freq_dim, config.time_embed_hidden_dim, config.time_embed_dim}, UnaryOp::silu,
            "act")),
        blocks_(add_child<ModuleList>("transformer_blocks")),
        norm_out_(add_child<MiniMaxH3OutputNorm>("norm_out", config)),
        proj_out_(add_child<Linear>("proj_out", config.hidden_size, config.patch_channels())),
        audio_proj_out_(add_child<Linear>("audio_proj_out", config.hidden_size, config.audio_in_channels)) {
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<MiniMaxH3TransformerBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states},
                                              {kAudioHiddenStates},
                                              {argument::encoder_hidden_states},
                                              {argument::timestep, ArgumentKind::coordinate},
                                              {kTimestepIndices, ArgumentKind::index},
                                              {kTags, ArgumentKind::index},
                                              {kPositions, ArgumentKind::coordinate},
                                              {kVideoIndices, ArgumentKind::index},
                                              {kAudioIndices, ArgumentKind::index},
                                              {kTextIndices, ArgumentKind::index},
                                              {kAttentionKwargs, ArgumentKind::setting},
                                              {argument::return_dict, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_arguments(arguments);
    const std::vector<Tensor> table = rope_.call({{kPositions, arguments.tensor(kPositions)}}).tensors;
    Tensor x = packed(arguments);
    const Tensor temb =
        time_embedder_(time_proj_.call({{argument::timestep, arguments.tensor(argument::timestep)}}).tensors.front());
    const Tensor index = modulation_indices(arguments);
    for (const auto& block : blocks_.children()) {
      x = block
              ->call(
                  {{argument::hidden_states, x}, {argument::temb, temb}, {kModulationIndices, index}, {kRotary, table}})
              .tensors.front();
    }
    x = norm_out_
            .call({{argument::hidden_states, x},
                   {argument::temb, temb},
                   {kTimestepIndices, arguments.tensor(kTimestepIndices)}})
            .tensors.front();
    const Tensor video = proj_out_(x), audio = audio_proj_out_(x);
    return Outputs(std::vector<Tensor>{tokens_of(video, arguments.tensor(kVideoIndices)),
                                       tokens_of(audio, arguments.tensor(kAudioIndices))});
  }

 private:
  // The rows of one kind: what they are made of and where they stand.
  struct Rows {
    Name tokens, indices;
  };
  // In the order in which they are written: later ones go over earlier ones.
  static const std::array<Rows, 3>& kinds() {
    static const std::array<Rows, 3> kKindsOfRows{{{argument::encoder_hidden_states, kTextIndices},
                                                   {argument::hidden_states, kVideoIndices},
                                                   {kAudioHiddenStates, kAudioIndices}}};
    return kKindsOfRows;
  }

  void check_arguments(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    checks.must_be_none(kAttentionKwargs, "adapters are not offered");
    const std::int64_t batch = checks.sequence(argument::hidden_states, "[batch, video tokens, channels]").size(0);
    const Tensor& tags = arguments.tensor(kTags);
    checks.shape(kTags, tags, tags.rank() == 1 && tags.size(0) > 0, "[rows]");
    const std::int64_t rows = tags.size(0);
    check_entries(arguments, kTags, kKinds, "kinds of rows are numbered");
    for (const Rows& kind : kinds()) {
      const Tensor& tokens =
          checks.sequence(kind.tokens, batch, "[batch, tokens, channels], the batch of hidden_states");
      const Tensor& indices = arguments.tensor(kind.indices);
      checks.shape(kind.indices, indices, indices.shape() == Shape{tokens.size(1)},
                   "one row for every token of its kind");
      check_entries(arguments, kind.indices, rows, "rows are numbered");
    }
    const Tensor& timestep = arguments.tensor(argument::timestep);
    checks.shape(argument::timestep, timestep, timestep.rank() == 1 && timestep.size(0) > 0, "[times]");
    const Tensor& times = arguments.tensor(kTimestepIndices);
    checks.shape(kTimestepIndices, times, times.shape() == Shape{rows}, "[rows], as token_tags");
    check_entries(arguments, kTimestepIndices, timestep.size(0), "timesteps are numbered");
    const Tensor& positions = arguments.tensor(kPositions);
    checks.shape(kPositions, positions, positions.shape() == Shape{rows, kAxes}, "[rows, 3], rows as in token_tags");
  }

  void check_entries(const Arguments& arguments, Name name, std::int64_t end, std::string_view what) const {
    for (const double entry : ops::to_doubles(arguments.tensor(name))) {
      SHARDPROOF_CHECK(entry >= 0.0 && entry < static_cast<double>(end), shape_error,
                       "argument '{}' of {} holds {}; {} from 0 to {}", name.text(), class_name(), entry, what,
                       end - 1);
    }
  }

  // [batch, rows, C].
  Tensor packed(const Arguments& arguments) {
    const Tensor video = proj_in_(arguments.tensor(argument::hidden_states));
    const Tensor audio = audio_proj_in_(arguments.tensor(kAudioHiddenStates));
    const Tensor text = token_refiner_(context_embedder_(arguments.tensor(argument::encoder_hidden_states)));
    // A row of zeros behind all tokens, for rows that no index names.
    const Tensor zero = ops::zeros(*context_.device, {text.size(0), 1, text.size(2)}, text.dtype());
    const Tensor all = ops::concat({text, video, audio, zero}, 1);
    std::vector<double> sources(static_cast<std::size_t>(arguments.tensor(kTags).size(0)),
                                static_cast<double>(all.size(1) - 1));
    double source = 0.0;
    for (const Rows& kind : kinds()) {
      for (const double row : ops::to_doubles(arguments.tensor(kind.indices)))
        sources[static_cast<std::size_t>(row)] = source++;
    }
    return tokens_of(all, index_of(sources));
  }

  // Of a row of the modulations: a timestep and a kind.
  Tensor modulation_indices(const Arguments& arguments) const {
    std::vector<double> index = ops::to_doubles(arguments.tensor(kTimestepIndices));
    const std::vector<double> tags = ops::to_doubles(arguments.tensor(kTags));
    for (std::size_t row = 0; row < index.size(); ++row) index[row] = index[row] * kKinds + tags[row];
    return index_of(index);
  }

  Tensor index_of(const std::vector<double>& values) const {
    return ops::from_doubles(*context_.device, values, {static_cast<std::int64_t>(values.size())}, kInt64);
  }

  ModelContext context_;
  MiniMaxH3Rope& rope_;
  Linear& proj_in_;
  Linear& audio_proj_in_;
  Linear& context_embedder_;
  MiniMaxH3TokenRefiner& token_refiner_;
  TimestepProjection& time_proj_;
  TwoLayerMlp& time_embedder_;
  ModuleList& blocks_;
  MiniMaxH3OutputNorm& norm_out_;
  Linear& proj_out_;
  Linear& audio_proj_out_;
};

}  // namespace

MiniMaxH3Config minimax_h3_config_from_json(const Json& json) {
  ConfigReader reader(json);
  MiniMaxH3Config config;
  reader.read("num_attention_heads", config.num_attention_heads, 1);
  reader.read("attention_head_dim", config.attention_head_dim, 1);
  reader.read("hidden_size", config.hidden_size, 1);
  reader.read("num_layers", config.num_layers, 0, ConfigReader::kLargestLayers);
  reader.read("num_refiner_layers", config.num_refiner_layers, 0, ConfigReader::kLargestLayers);
  reader.read("ffn_dim", config.ffn_dim, 1);
  reader.read("in_channels", config.in_channels, 1);
  reader.read("audio_in_channels", config.audio_in_channels, 1);
  reader.read("patch_size", config.patch_size, 1);
  reader.read("text_dim", config.text_dim, 1);
  reader.read("freq_dim", config.freq_dim, 2);
  reader.read("time_embed_hidden_dim", config.time_embed_hidden_dim, 1);
  reader.read("time_embed_dim", config.time_embed_dim, 1);
  reader.read("rope_freq_dim", config.rope_freq_dim, 1);
  reader.read_positive("rope_theta", config.rope_theta);
  reader.read_positive("norm_eps", config.norm_eps);
  reader.read_positive("qk_norm_eps", config.qk_norm_eps);
  reader.read_positive("final_norm_eps", config.final_norm_eps);
  reader.finish();
  SHARDPROOF_CHECK(config.freq_dim % 2 == 0, config_error, "{}: key 'freq_dim' is {}; it must be even", json.where(),
                   config.freq_dim);
  constexpr std::int64_t kChannelsOfAngle = 6;
  SHARDPROOF_CHECK(kChannelsOfAngle * config.rope_freq_dim <= config.attention_head_dim, config_error,
                   "{}: key 'rope_freq_dim' is {}, which rotates {} channels, but 'attention_head_dim' is {}",
                   json.where(), config.rope_freq_dim, kChannelsOfAngle * config.rope_freq_dim,
                   config.attention_head_dim);
  return config;
}

std::unique_ptr<Module> make_minimax_h3(const MiniMaxH3Config& config, const ModelContext& context) {
  return std::make_unique<MiniMaxH3Transformer3DModel>(config, context);
}

}  // namespace shardproof
