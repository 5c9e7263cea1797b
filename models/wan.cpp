#include "models/wan.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/ops.h"
#include "models/argument_checks.h"
#include "models/attention_layers.h"

namespace shardproof {
namespace {

constexpr double kTheta = 10000.0;
constexpr double kImageNormEps = 1e-5;
// Rows of the context that are text, in models with keys of their own for the image; the rows before are the image.
constexpr std::int64_t kTextRows = 512;
constexpr std::int64_t kModulations = 6;

const Name kImage("encoder_hidden_states_image");
const Name kRotary("rotary_emb");
const Name kAttentionKwargs("attention_kwargs");

Tensor in_wide_type(const Tensor& x) { return ops::cast(x, wide_dtype(x.dtype())); }

// Widths of the rotary tables of (frame, height, width); the first takes what the others leave.
Extents rotary_widths(std::int64_t head_dim) {
  const std::int64_t spatial = 2 * (head_dim / 6);
  return {head_dim - 2 * spatial, spatial, spatial};
}

// hidden_states [batch, channels, F, H, W] -> {cosine, sine} [1, tokens, 1, head_dim] in the wide type.
class WanRotaryPosEmbed final : public Module {
 public:
  WanRotaryPosEmbed(const WanConfig& config, const ModelContext& context)
      : Module(config.rope_temporal_skip_len ? "ChronoEditRotaryPosEmbed" : "WanRotaryPosEmbed"),
        context_(context),
        patch_size_(config.patch_size),
        head_dim_(config.attention_head_dim),
        positions_(config.rope_max_seq_len),
        skip_length_(config.rope_temporal_skip_len) {}

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const Extents grid{x.size(2) / patch_size_[0], x.size(3) / patch_size_[1], x.size(4) / patch_size_[2]};
    const bool skips = skip_length_ && grid[0] == 2;
    const std::int64_t last_frame = skips ? *skip_length_ - 1 : grid[0] - 1;
    const std::int64_t needed = std::max({last_frame + 1, grid[1], grid[2]});
    SHARDPROOF_CHECK(needed <= positions_, shape_error,
                     "module '{}' ({}): {} patches need {} positions, but 'rope_max_seq_len' is {}", path(),
                     class_name(), x.text(), needed, positions_);
    const AngleTable all = table_of_positions(needed);
    return Outputs(std::vector<Tensor>{on_device(AngleFunction::cosine, all, grid, last_frame),
                                       on_device(AngleFunction::sine, all, grid, last_frame)});
  }

 private:
  // One row a position, the tables of the three axes side by side.
  AngleTable table_of_positions(std::int64_t count) const {
    std::vector<double> positions;
    for (std::int64_t i = 0; i < count; ++i) positions.push_back(static_cast<double>(i));
    std::vector<AngleTable> parts;
    for (const std::int64_t width : rotary_widths(head_dim_))
      parts.push_back(tables::rotary_angles64(positions, width, kTheta, context_.table_precision));
    return tables::side_by_side(parts);
  }

  // Cuts the rows, each value standing twice, into elements of the three axes. ChronoEdit cuts elsewhere than where the
  // tables meet, which for some widths takes the two elements of a pair from different axes.
  Tensor on_device(AngleFunction function, const AngleTable& table, const Extents& grid,
                   std::int64_t last_frame) const {
    const std::int64_t spatial = skip_length_ ? head_dim_ / 3 : rotary_widths(head_dim_)[1];
    const std::int64_t pairs = head_dim_ / 2;
    std::vector<std::int64_t> elements;
    elements.reserve(static_cast<std::size_t>(grid[0] * grid[1] * grid[2] * head_dim_));
    for (std::int64_t f = 0; f < grid[0]; ++f) {
      const std::int64_t frame = f == grid[0] - 1 ? last_frame : f;
      for (std::int64_t y = 0; y < grid[1]; ++y) {
        for (std::int64_t x = 0; x < grid[2]; ++x) {
          for (std::int64_t i = 0; i < head_dim_; ++i) {
            const std::int64_t position = i < head_dim_ - 2 * spatial ? frame : i < head_dim_ - spatial ? y : x;
            elements.push_back(position * pairs + i / 2);
          }
        }
      }
    }
    return tables::entries_on(*context_.device, function, table, elements,
                              {1, grid[0] * grid[1] * grid[2], 1, head_dim_}, wide_dtype(context_.dtype));
  }

  ModelContext context_;
  Extents patch_size_;
  std::int64_t head_dim_;
  std::int64_t positions_;
  std::optional<std::int64_t> skip_length_;
};

// Image features -> rows of the context. With a learned table of positions, the features of a first and a last frame
// stand one after the other along the batch and become one sequence.
class WanImageEmbedding final : public TensorModule {
 public:
  WanImageEmbedding(const WanConfig& config, std::int64_t image_dim)
      : TensorModule("WanImageEmbedding"),
        norm1_(add_child<AffineLayerNorm>("norm1", image_dim, kImageNormEps)),
        ff_(add_child<FeedForward>("ff", FeedForward::Options{.in_features = image_dim,
                                                              .inner = image_dim,
                                                              .out_features = config.width(),
                                                              .kind = FeedForward::Kind::gelu})),
        norm2_(add_child<AffineLayerNorm>("norm2", config.width(), kImageNormEps)) {
    if (config.pos_embed_seq_len) declare_parameter("pos_embed", {1, *config.pos_embed_seq_len, image_dim});
  }

 private:
  Tensor compute(const Tensor& x) const override {
    if (parameters().empty()) return norm2_(ff_(norm1_(x)));
    const Tensor positions = parameter(0);
    SHARDPROOF_CHECK(2 * x.size(1) == positions.size(1) && x.size(0) % 2 == 0, shape_error,
                     "argument '{}' is {}; expected [2 batch, {}, {}], two frames whose tokens together are the {} of "
                     "'pos_embed_seq_len'",
                     kImage.text(), x.text(), positions.size(1) / 2, positions.size(2), positions.size(1));
    const Tensor joined = ops::reshape(x, {x.size(0) / 2, 2 * x.size(1), x.size(2)});
    return norm2_(ff_(norm1_(ops::add(joined, positions))));
  }

  AffineLayerNorm& norm1_;
  FeedForward& ff_;
  AffineLayerNorm& norm2_;
};

// (timestep, text, image) -> (temb [batch, D] or [batch, tokens, D], its six modulations [.., 6 D], text [batch, text,
// D], and the image's rows where there is one).
class WanTimeTextImageEmbedding final : public Module {
 public:
  WanTimeTextImageEmbedding(const WanConfig& config, const ModelContext& context)
      : Module("WanTimeTextImageEmbedding"),
        timesteps_proj_(add_child<TimestepProjection>("timesteps_proj", context, config.freq_dim)),
        time_embedder_(add_child<TwoLayerMlp>("time_embedder", "TimestepEmbedding", config.freq_dim, config.width(),
                                              UnaryOp::silu, "act")),
        act_fn_(add_child<Activation>("act_fn", "SiLU", UnaryOp::silu)),
        time_proj_(add_child<Linear>("time_proj", config.width(), kModulations * config.width())),
        text_embedder_(add_child<TwoLayerMlp>("text_embedder", "PixArtAlphaTextProjection", config.text_dim,
                                              config.width(), UnaryOp::gelu_tanh, "act_1")) {
    if (config.image_dim) image_embedder_ = &add_child<WanImageEmbedding>("image_embedder", config, *config.image_dim);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::timestep, ArgumentKind::coordinate}, {argument::encoder_hidden_states}, {kImage}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& timestep = arguments.tensor(argument::timestep);
    Tensor projected = timesteps_proj_.call({{argument::timestep, timestep}}).tensors.front();
    if (timestep.rank() == 2) projected = projected.unflatten(0, timestep.size(0), timestep.size(1));
    const Tensor temb = time_embedder_(projected);
    const Tensor modulation = time_proj_(act_fn_(temb));
    std::vector<Tensor> outputs{temb, modulation, text_embedder_(arguments.tensor(argument::encoder_hidden_states))};
    const Tensor image = arguments.optional_tensor(kImage);
    if (image.defined()) outputs.push_back((*image_embedder_)(image));
    return Outputs(std::move(outputs));
  }

 private:
  TimestepProjection& timesteps_proj_;
  TwoLayerMlp& time_embedder_;
  Activation& act_fn_;
  Linear& time_proj_;
  TwoLayerMlp& text_embedder_;
  WanImageEmbedding* image_embedder_ = nullptr;
};

// Self-attention over the video's tokens, or cross attention of these to a context that every rank has whole.
class WanAttention final : public AcrossHeadsAttention {
 public:
  enum class Role : bool { self, cross };
  WanAttention(const WanConfig& config, Role role)
      : AcrossHeadsAttention("WanAttention", AcrossHeadsOptions{.query_width = config.width(),
                                                                .key_width = config.width(),
                                                                .inner = config.width(),
                                                                .out_width = config.width(),
                                                                .head_dim = config.attention_head_dim,
                                                                .norm_eps = config.eps}) {
    if (role == Role::self || !config.added_kv_proj_dim) return;
    add_k_proj_ = &add_child<Linear>("add_k_proj", *config.added_kv_proj_dim, config.width());
    add_v_proj_ = &add_child<Linear>("add_v_proj", *config.added_kv_proj_dim, config.width());
    norm_added_k_ = &add_child<RmsNorm>("norm_added_k", config.width(), config.eps);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{argument::hidden_states}, {argument::encoder_hidden_states}, {kRotary}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor(argument::hidden_states);
    const Tensor context = arguments.optional_tensor(argument::encoder_hidden_states);
    const Tensor q = heads(queries(x));
    return output(context.defined() ? to_context(q, context) : to_itself(q, x, arguments.tensor_list(kRotary)));
  }

 private:
  Tensor to_itself(const Tensor& q, const Tensor& x, const std::vector<Tensor>& rotary) const {
    check_rotary_rows(*this, kRotary, rotary[0], q.size(1), "the two outputs of module 'rope'");
    const Tensor turned_q = ops::rotary_interleaved(q, rotary[0], rotary[1]);
    const Tensor turned_k = ops::rotary_interleaved(heads(keys(x)), rotary[0], rotary[1]);
    return join_heads(attention(turned_q, turned_k, heads(values(x)), {}, {}, context_parallel()).out);
  }

  Tensor to_context(const Tensor& q, const Tensor& context) const {
    const auto attend = [&](const Tensor& k, const Tensor& v) {
      const AttentionOptions options{.keys = Placement::replicated};
      return join_heads(attention(q, heads(k), heads(v), {}, options, context_parallel()).out);
    };
    if (add_k_proj_ == nullptr) return attend(keys(context), values(context));
    const std::int64_t image_rows = context.size(1) - kTextRows;
    const Tensor image = context.narrow(1, 0, image_rows), text = context.narrow(1, image_rows, kTextRows);
    return ops::add(attend(keys(text), values(text)),
                    attend((*norm_added_k_)((*add_k_proj_)(image)), (*add_v_proj_)(image)));
  }

  Linear* add_k_proj_ = nullptr;
  Linear* add_v_proj_ = nullptr;
  RmsNorm* norm_added_k_ = nullptr;
};

// Norms, modulations and residuals in the wide type; the parts between in the model's own.
class WanTransformerBlock final : public Module {
 public:
  explicit WanTransformerBlock(const WanConfig& config)
      : Module("WanTransformerBlock"),
        norm1_(add_child<LayerNorm>("norm1", config.eps)),
        attn1_(add_child<WanAttention>("attn1", config, WanAttention::Role::self)),
        attn2_(add_child<WanAttention>("attn2", config, WanAttention::Role::cross)),
        norm2_(config.cross_attn_norm ? &add_child<AffineLayerNorm>("norm2", config.width(), config.eps) : nullptr),
        ffn_(add_child<FeedForward>("ffn", FeedForward::Options{.in_features = config.width(),
                                                                .inner = config.ffn_dim,
                                                                .out_features = config.width()})),
        norm3_(add_child<LayerNorm>("norm3", config.eps)) {
    declare_parameter("scale_shift_table", {1, kModulations, config.width()});
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states}, {argument::encoder_hidden_states}, {argument::temb}, {kRotary}};
    return kArguments;
  }

  // temb [batch, 1 or tokens, 6, D]: shift, scale, gate of the self-attention and of the feed-forward.
  Outputs forward(Arguments& arguments) override {
    Tensor x = arguments.tensor(argument::hidden_states);
    const DType dtype = x.dtype();
    const Tensor& temb = arguments.tensor(argument::temb);
    check_modulation(temb, x);
    const std::vector<Tensor> six = modulations_from_table(in_wide_type(parameter(0)), in_wide_type(temb));
    const auto modulated = [&](LayerNorm& norm, std::size_t first) {
      return ops::cast(modulate(norm(in_wide_type(x)), six[first + 1], six[first]), dtype);
    };
    const auto added = [&](std::size_t gate, const Tensor& branch) {
      return ops::cast(add_gated(in_wide_type(x), six[gate], in_wide_type(branch)), dtype);
    };
    x = added(2, attn1_.call({{argument::hidden_states, modulated(norm1_, 0)}, {kRotary, *arguments.find(kRotary)}})
                     .tensors.front());
    const Tensor normed = norm2_ == nullptr ? x : ops::cast((*norm2_)(in_wide_type(x)), dtype);
    x = ops::add(x, attn2_
                        .call({{argument::hidden_states, normed},
                               {argument::encoder_hidden_states, arguments.tensor(argument::encoder_hidden_states)}})
                        .tensors.front());
    return added(5, ffn_(modulated(norm3_, 3)));
  }

 private:
  void check_modulation(const Tensor& temb, const Tensor& x) const {
    SHARDPROOF_CHECK(temb.size(1) == 1 || temb.size(1) == x.size(1), shape_error,
                     "argument 'temb' of module '{}' ({}) has the {} tokens of argument 'timestep' of module '' ({}), "
                     "but hidden_states has {}; both must be whole, or divided alike",
                     path(), class_name(), temb.size(1), parent()->parent()->class_name(), x.size(1));
  }

  LayerNorm& norm1_;
  WanAttention& attn1_;
  WanAttention& attn2_;
  AffineLayerNorm* norm2_;
  FeedForward& ffn_;
  LayerNorm& norm3_;
};

class WanTransformer3DModel final : public Module {
 public:
  WanTransformer3DModel(const WanConfig& config, const ModelContext& context)
      : Module(config.class_name),
        config_(config),
        rope_(add_child<WanRotaryPosEmbed>("rope", config, context)),
        patch_embedding_(
            add_child<PatchEmbedding>("patch_embedding", config.in_channels, config.width(), config.patch_size)),
        condition_embedder_(add_child<WanTimeTextImageEmbedding>("condition_embedder", config, context)),
        blocks_(add_child<ModuleList>("blocks")),
        norm_out_(add_child<LayerNorm>("norm_out", config.eps)),
        proj_out_(add_child<Linear>(
            "proj_out", config.width(),
            config.out_channels * config.patch_size[0] * config.patch_size[1] * config.patch_size[2])) {
    declare_parameter("scale_shift_table", {1, 2, config.width()});
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_.append<WanTransformerBlock>(config);
  }

  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {
        {argument::hidden_states, ArgumentKind::value},         {argument::timestep, ArgumentKind::coordinate},
        {argument::encoder_hidden_states, ArgumentKind::value}, {kImage, ArgumentKind::value},
        {argument::return_dict, ArgumentKind::setting},         {kAttentionKwargs, ArgumentKind::setting}};
    return kArguments;
  }

  Outputs forward(Arguments& arguments) override {
    check_settings(arguments);
    check_shapes(arguments);
    const Tensor& video = arguments.tensor(argument::hidden_states);
    const std::vector<Tensor> tables = rope_.call({{argument::hidden_states, video}}).tensors;
    const Value rotary = std::vector<Tensor>{rows_of(tables[0]), rows_of(tables[1])};
    const Tensor patches = patch_embedding_(video);
    const Extents grid{patches.size(2), patches.size(3), patches.size(4)};
    const std::vector<Tensor> conditions = embed_conditions(arguments);
    const Tensor& temb = conditions[0];
    const Tensor modulation = per_token(conditions[1]).unflatten(-1, kModulations, config_.width());
    const Tensor context = conditions.size() == 4 ? ops::concat({conditions[3], conditions[2]}, 1) : conditions[2];
    Tensor x = tokens_of_grid(patches);
    for (const auto& block : blocks_.children()) {
      x = block
              ->call({{argument::hidden_states, x},
                      {argument::encoder_hidden_states, context},
                      {argument::temb, modulation},
                      {kRotary, rotary}})
              .tensors.front();
    }
    return grid_of_patches(proj_out_(normed_output(x, per_token(temb))), grid, config_.patch_size);
  }

 private:
  // [batch, n] -> [batch, 1, n]; what has a token axis stays.
  static Tensor per_token(const Tensor& x) { return x.rank() == 2 ? x.unsqueeze(1) : x; }
  // [1, tokens, 1, head_dim] -> [tokens, head_dim].
  static Tensor rows_of(const Tensor& table) { return table.squeeze(2).squeeze(0); }

  void check_settings(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    checks.must_be_none(kAttentionKwargs, "adapters are not offered");
    // Its plan has entries for the whole model, after which the original demands tensors.
    if (!config_.rope_temporal_skip_len) checks.must_return_a_tuple();
    if (!config_.image_dim) checks.must_be_none(kImage, "the model has no image embedder ('image_dim' is none)");
  }

  void check_shapes(const Arguments& arguments) const {
    const ArgumentChecks checks(class_name(), arguments);
    const Tensor& video = arguments.tensor(argument::hidden_states);
    checks.shape(argument::hidden_states, video, video.rank() == 5, "[batch, in_channels, frames, height, width]");
    const std::int64_t batch = video.size(0);
    checks.per_item_or_token(argument::timestep, batch);
    const Tensor& text = checks.sequence(argument::encoder_hidden_states, batch,
                                         "[batch, text tokens, text_dim] with the batch of hidden_states");
    const Tensor image = arguments.optional_tensor(kImage);
    const std::int64_t sequences = config_.pos_embed_seq_len ? 2 * batch : batch;
    checks.shape(kImage, image, !image.defined() || (image.rank() == 3 && image.size(0) == sequences),
                 config_.pos_embed_seq_len ? "[2 batch, image tokens, image_dim], a first and a last frame a sample"
                                           : "[batch, image tokens, image_dim] with the batch of hidden_states");
    if (!config_.added_kv_proj_dim) return;
    SHARDPROOF_CHECK(image.defined(), shape_error,
                     "argument '{}' of {} must be given: the model has keys of its own for an image", kImage.text(),
                     class_name());
    checks.shape(argument::encoder_hidden_states, text, text.size(1) == kTextRows,
                 "512 text tokens, since the last 512 rows of the context are text in a model with image keys");
  }

  std::vector<Tensor> embed_conditions(const Arguments& arguments) {
    Arguments inner{{argument::timestep, arguments.tensor(argument::timestep)},
                    {argument::encoder_hidden_states, arguments.tensor(argument::encoder_hidden_states)}};
    const Tensor image = arguments.optional_tensor(kImage);
    if (image.defined()) inner.set(kImage, image);
    return condition_embedder_.call(std::move(inner)).tensors;
  }

  Tensor normed_output(const Tensor& x, const Tensor& temb) {
    const Tensor twice = temb.unsqueeze(2).expand({temb.size(0), temb.size(1), 2, temb.size(2)});
    const std::vector<Tensor> shift_and_scale = modulations_from_table(in_wide_type(parameter(0)), in_wide_type(twice));
    return ops::cast(modulate(norm_out_(in_wide_type(x)), shift_and_scale[1], shift_and_scale[0]), x.dtype());
  }

  WanConfig config_;
  WanRotaryPosEmbed& rope_;
  PatchEmbedding& patch_embedding_;
  WanTimeTextImageEmbedding& condition_embedder_;
  ModuleList& blocks_;
  LayerNorm& norm_out_;
  Linear& proj_out_;
};

}  // namespace

void read_wan_fields(ConfigReader& reader, WanConfig& config) {
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
  reader.read("image_dim", config.image_dim, 1);
  reader.read("added_kv_proj_dim", config.added_kv_proj_dim, 1);
  reader.read("rope_max_seq_len", config.rope_max_seq_len, 1);
  reader.read("pos_embed_seq_len", config.pos_embed_seq_len, 2);
}

void check_wan_fields(const Json& json, const WanConfig& config) {
  const std::string where = json.where();
  SHARDPROOF_CHECK(config.attention_head_dim % 2 == 0 && config.attention_head_dim >= 6, config_error,
                   "{}: key 'attention_head_dim' is {}; it must be even and at least 6, for rotary pairs of frame, "
                   "height and width",
                   where, config.attention_head_dim);
  SHARDPROOF_CHECK(config.freq_dim % 2 == 0, config_error, "{}: key 'freq_dim' is {}; it must be even", where,
                   config.freq_dim);
  SHARDPROOF_CHECK(!config.added_kv_proj_dim || *config.added_kv_proj_dim == config.width(), config_error,
                   "{}: key 'added_kv_proj_dim' is {}, but image keys are made of the model's width {}; they must be "
                   "equal",
                   where, config.added_kv_proj_dim.value_or(0), config.width());
  SHARDPROOF_CHECK(!config.added_kv_proj_dim || config.image_dim, config_error,
                   "{}: key 'added_kv_proj_dim' is {}, but 'image_dim' is none; image keys need an image embedder",
                   where, config.added_kv_proj_dim.value_or(0));
  SHARDPROOF_CHECK(!config.pos_embed_seq_len || config.image_dim, config_error,
                   "{}: key 'pos_embed_seq_len' is {}, but 'image_dim' is none; the positions belong to an image "
                   "embedder",
                   where, config.pos_embed_seq_len.value_or(0));
  SHARDPROOF_CHECK(config.pos_embed_seq_len.value_or(0) % 2 == 0, config_error,
                   "{}: key 'pos_embed_seq_len' is {}; it must be even, for two frames", where,
                   config.pos_embed_seq_len.value_or(0));
}

WanConfig wan_config_from_json(const Json& json) {
  ConfigReader reader(json);
  WanConfig config;
  read_wan_fields(reader, config);
  reader.finish();
  check_wan_fields(json, config);
  return config;
}

std::unique_ptr<Module> make_wan(const WanConfig& config, const ModelContext& context) {
  return std::make_unique<WanTransformer3DModel>(config, context);
}

}  // namespace shardproof
