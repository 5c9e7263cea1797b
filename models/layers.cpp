#include "models/layers.h"

#include "core/error.h"

namespace shardproof {
namespace {

// The first stage of a feed-forward: proj, then the activation (diffusers calls both kinds of GELU by that name).
class GatedProjection final : public TensorModule {
 public:
  explicit GatedProjection(const FeedForward::Options& options)
      : TensorModule(options.kind == FeedForward::Kind::swiglu ? "SwiGLU" : "GELU"),
        kind_(options.kind),
        proj_(add_child<Linear>("proj", options.in_features,
                                (options.kind == FeedForward::Kind::swiglu ? 2 : 1) * options.inner, options.bias)),
        // Diffusers has the activation of this kind as a module of its own.
        activation_(options.kind == FeedForward::Kind::swiglu
                        ? &add_child<Activation>("activation", "SiLU", UnaryOp::silu)
                        : nullptr) {}

 private:
  Tensor compute(const Tensor& x) const override {
    const Tensor projected = proj_(x);
    if (kind_ == FeedForward::Kind::gelu) return ops::gelu(projected);
    if (kind_ == FeedForward::Kind::gelu_tanh) return ops::gelu_tanh(projected);
    const std::vector<Tensor> halves = ops::chunk(projected, 2, -1);
    return ops::multiply(halves[0], (*activation_)(halves[1]));
  }
  FeedForward::Kind kind_;
  Linear& proj_;
  Activation* activation_;
};

// Holds a place in the numbering of the weights; in evaluation mode it returns what it gets.
class Dropout final : public TensorModule {
 public:
  Dropout() : TensorModule("Dropout") {}

 private:
  Tensor compute(const Tensor& x) const override { return x; }
};

constexpr std::int64_t kInnerFactor = 4;

}  // namespace

Tensor RmsNorm::compute(const Tensor& x) const {
  SHARDPROOF_CHECK(
      x.size(-1) == width_, shape_error,
      "norm '{}' spans {} channels, got {}; a layer before it may be divided by tensor parallelism, which a "
      "norm over all heads does not admit",
      path(), width_, x.text());
  return ops::rms_norm(x, parameters().empty() ? Tensor() : parameter(0), eps_);
}

TwoLayerMlp::TwoLayerMlp(Name class_name, const Widths& widths, UnaryOp activation, Name activation_name,
                         Linear::Bias bias)
    : TensorModule(class_name),
      linear_1_(add_child<Linear>("linear_1", widths.in, widths.hidden, bias)),
      activation_(add_child<Activation>(activation_name, "SiLU", activation)),
      linear_2_(add_child<Linear>("linear_2", widths.hidden, widths.out, bias)) {}

TwoLayerMlp::TwoLayerMlp(Name class_name, std::int64_t in_features, std::int64_t width, UnaryOp activation,
                         Name activation_name, Linear::Bias bias)
    : TwoLayerMlp(class_name, Widths{in_features, width, width}, activation, activation_name, bias) {}

Tensor TwoLayerMlp::compute(const Tensor& x) const { return linear_2_(activation_(linear_1_(x))); }

SiluLinear::SiluLinear(const Names& names, std::int64_t in_features, std::int64_t out_features, Linear::Bias bias)
    : TensorModule(names.class_name),
      silu_(add_child<Activation>(names.silu, "SiLU", UnaryOp::silu)),
      linear_(add_child<Linear>(names.linear, in_features, out_features, bias)) {}

Tensor SiluLinear::compute(const Tensor& x) const { return linear_(silu_(x)); }

AffineLayerNorm::AffineLayerNorm(std::int64_t width, double eps) : TensorModule("LayerNorm"), eps_(eps) {
  declare_parameter("weight", {width});
  declare_parameter("bias", {width});
}

Tensor AffineLayerNorm::compute(const Tensor& x) const {
  const Tensor weight = ops::cast(parameter(0), x.dtype()), bias = ops::cast(parameter(1), x.dtype());
  return ops::add(ops::multiply(ops::layer_norm(x, eps_), weight), bias);
}

FeedForward::FeedForward(const Options& options) : TensorModule("FeedForward") {
  auto& net = add_child<ModuleList>("net");
  in_ = &net.append<GatedProjection>(options);
  net.append<Dropout>();
  out_ = &net.append<Linear>(options.inner, options.out_features, options.bias);
}

FeedForward::FeedForward(std::int64_t width)
    : FeedForward(Options{.in_features = width, .inner = kInnerFactor * width, .out_features = width}) {}

Tensor FeedForward::compute(const Tensor& x) const { return (*out_)((*in_)(x)); }

PatchEmbedding::PatchEmbedding(std::int64_t in_channels, std::int64_t width, const Extents& kernel)
    : TensorModule("Conv3d"), kernel_(kernel) {
  declare_parameter("weight", {width, in_channels, kernel[0], kernel[1], kernel[2]});
  declare_parameter("bias", {width});
}

Tensor PatchEmbedding::compute(const Tensor& x) const {
  const Tensor weight = parameter(0);
  SHARDPROOF_CHECK(x.rank() == 5 && x.size(1) == weight.size(1) && x.size(2) % kernel_[0] == 0 &&
                       x.size(3) % kernel_[1] == 0 && x.size(4) % kernel_[2] == 0,
                   shape_error, "module '{}' ({}): {} must be [batch, {}, multiples of {}, {} and {}]", path(),
                   class_name(), x.text(), weight.size(1), kernel_[0], kernel_[1], kernel_[2]);
  const Extents grid{x.size(2) / kernel_[0], x.size(3) / kernel_[1], x.size(4) / kernel_[2]};
  const std::int64_t width = weight.size(0), patch = weight.numel() / width;
  const Tensor patches = x.unflatten(4, grid[2], kernel_[2])
                             .unflatten(3, grid[1], kernel_[1])
                             .unflatten(2, grid[0], kernel_[0])
                             .permute({0, 2, 4, 6, 1, 3, 5, 7});
  const Tensor rows = ops::reshape(patches, {x.size(0), grid[0] * grid[1] * grid[2], patch});
  const Tensor tokens = ops::linear(rows, ops::reshape(weight, {width, patch}), parameter(1));
  return tokens.view({x.size(0), grid[0], grid[1], grid[2], width}).permute({0, 4, 1, 2, 3});
}

TimestepProjection::TimestepProjection(const ModelContext& context, std::int64_t width, double scale)
    : Module("Timesteps"), context_(context), width_(width), scale_(scale) {}

std::span<const ArgumentSpec> TimestepProjection::forward_arguments() const {
  static const ArgumentSpec kArguments[] = {{argument::timestep, ArgumentKind::coordinate}};
  return kArguments;
}

Outputs TimestepProjection::forward(Arguments& arguments) {
  const std::vector<double> timesteps = ops::to_doubles(arguments.tensor(argument::timestep));
  const AngleTable table = tables::sinusoid(timesteps, width_, context_.table_precision, scale_);
  return cosine_and_sine(*context_.device, table, context_.dtype);
}

namespace {

// Diffusers calls it so for further conditions that these models do not have.
class SingleTimestepEmbedding final : public Module {
 public:
  SingleTimestepEmbedding(const ModelContext& context, std::int64_t width)
      : Module("PixArtAlphaCombinedTimestepSizeEmbeddings"),
        time_proj_(add_child<TimestepProjection>("time_proj", context, kSinusoidWidth)),
        timestep_embedder_(add_child<TwoLayerMlp>("timestep_embedder", "TimestepEmbedding", kSinusoidWidth, width,
                                                  UnaryOp::silu, "act")) {}
  std::span<const ArgumentSpec> forward_arguments() const override { return time_proj_.forward_arguments(); }
  Outputs forward(Arguments& arguments) override {
    return timestep_embedder_(time_proj_.call(arguments).tensors.front());
  }

 private:
  static constexpr std::int64_t kSinusoidWidth = 256;
  TimestepProjection& time_proj_;
  TwoLayerMlp& timestep_embedder_;
};

}  // namespace

AdaLayerNormSingle::AdaLayerNormSingle(Name class_name, const ModelContext& context, std::int64_t width,
                                       std::int64_t sets)
    : Module(class_name),
      sets_(sets),
      emb_(add_child<SingleTimestepEmbedding>("emb", context, width)),
      silu_(add_child<Activation>("silu", "SiLU", UnaryOp::silu)),
      linear_(add_child<Linear>("linear", width, sets * width)) {}

std::span<const ArgumentSpec> AdaLayerNormSingle::forward_arguments() const { return emb_.forward_arguments(); }

Outputs AdaLayerNormSingle::forward(Arguments& arguments) {
  const Tensor embedding = emb_.call(arguments).tensors.front();
  return Outputs(std::vector<Tensor>{linear_(silu_(embedding)), embedding});
}

AdaLayerNormSingle::Embedded AdaLayerNormSingle::embed(const Tensor& timestep) {
  const std::vector<Tensor> rows = call({{argument::timestep, timestep}}).tensors;
  const std::int64_t batch = timestep.size(0), tokens = timestep.rank() == 2 ? timestep.size(1) : 1;
  const std::int64_t width = rows[1].size(1);
  return {rows[0].view({batch, tokens, sets_, width}), rows[1].view({batch, tokens, width})};
}

AdaLayerNormZero::AdaLayerNormZero(std::int64_t width, Chunks chunks)
    : Module(chunks == Chunks::six ? "AdaLayerNormZero" : "AdaLayerNormZeroSingle"),
      chunks_(static_cast<int>(chunks)),
      silu_(add_child<Activation>("silu", "SiLU", UnaryOp::silu)),
      linear_(add_child<Linear>("linear", width, chunks_ * width)),
      norm_(add_child<LayerNorm>("norm", 1e-6)) {}

std::span<const ArgumentSpec> AdaLayerNormZero::forward_arguments() const {
  static const ArgumentSpec kArguments[] = {{argument::hidden_states}, {argument::temb}};
  return kArguments;
}

Outputs AdaLayerNormZero::forward(Arguments& arguments) {
  const Tensor embedded = linear_(silu_(arguments.tensor(argument::temb)));
  std::vector<Tensor> chunks = ops::chunk(embedded, chunks_, -1);  // shift, scale, gate, and the same for the MLP
  std::vector<Tensor> outputs{modulate(norm_(arguments.tensor(argument::hidden_states)), chunks[1], chunks[0])};
  outputs.insert(outputs.end(), chunks.begin() + 2, chunks.end());
  return Outputs(std::move(outputs));
}

AdaLayerNormContinuous::AdaLayerNormContinuous(std::int64_t width, double eps, Linear::Bias bias)
    : Module("AdaLayerNormContinuous"),
      silu_(add_child<Activation>("silu", "SiLU", UnaryOp::silu)),
      linear_(add_child<Linear>("linear", width, 2 * width, bias)),
      norm_(add_child<LayerNorm>("norm", eps)) {}

std::span<const ArgumentSpec> AdaLayerNormContinuous::forward_arguments() const {
  static const ArgumentSpec kArguments[] = {{argument::hidden_states}, {argument::temb}};
  return kArguments;
}

Outputs AdaLayerNormContinuous::forward(Arguments& arguments) {
  const Tensor embedded = linear_(silu_(arguments.tensor(argument::temb)));
  const std::vector<Tensor> chunks = ops::chunk(embedded, 2, -1);
  return modulate(norm_(arguments.tensor(argument::hidden_states)), chunks[0], chunks[1]);
}

AxesPosEmbed::AxesPosEmbed(Name class_name, const ModelContext& context, std::vector<std::int64_t> widths, double theta)
    : Module(class_name), context_(context), widths_(std::move(widths)), theta_(theta) {}

std::span<const ArgumentSpec> AxesPosEmbed::forward_arguments() const {
  static const ArgumentSpec kArguments[] = {{argument::ids, ArgumentKind::coordinate}};
  return kArguments;
}

Outputs AxesPosEmbed::forward(Arguments& arguments) {
  const Tensor& ids = arguments.tensor(argument::ids);
  SHARDPROOF_CHECK(ids.rank() == 2 && ids.size(1) == static_cast<std::int64_t>(widths_.size()), shape_error,
                   "ids {} must be [tokens, {}]", ids.text(), widths_.size());
  std::vector<AngleTable> parts;
  for (std::size_t axis = 0; axis < widths_.size(); ++axis) {
    const std::vector<double> positions = ops::to_doubles(ids.narrow(1, static_cast<std::int64_t>(axis), 1));
    parts.push_back(tables::rotary_angles64(positions, widths_[axis], theta_, context_.table_precision));
  }
  const AngleTable table = tables::side_by_side(parts);
  const DType dtype = wide_dtype(context_.dtype);
  return Outputs(std::vector<Tensor>{tables::cosine_on(*context_.device, table, dtype, 2),
                                     tables::sine_on(*context_.device, table, dtype, 2)});
}

Tensor ids_without_batch(const Tensor& ids) { return ids.rank() == 3 ? ids.narrow(0, 0, 1).squeeze(0) : ids; }

namespace {

// [batch, D] -> [batch, 1, D]; what has a token axis stays.
Tensor with_token_axis(const Tensor& x) { return x.rank() == 2 ? x.unsqueeze(1) : x; }

}  // namespace

Tensor modulate(const Tensor& x, const Tensor& scale, const Tensor& shift) {
  return ops::add(ops::multiply(x, ops::add(with_token_axis(scale), 1.0)), with_token_axis(shift));
}

Tensor add_gated(const Tensor& x, const Tensor& gate, const Tensor& branch) {
  return ops::add(x, ops::multiply(with_token_axis(gate), branch));
}

Tensor tokens_of_grid(const Tensor& x) {
  return ops::reshape(x.permute({0, 2, 3, 4, 1}), {x.size(0), x.size(2) * x.size(3) * x.size(4), x.size(1)});
}

void check_grid(const Module& module, const Extents& grid) {
  constexpr std::int64_t kLargestGrid = 1 << 20;
  std::int64_t tokens = 1;
  for (const std::int64_t extent : grid) {
    SHARDPROOF_CHECK(extent <= kLargestGrid / tokens, shape_error,
                     "module '{}' ({}): a grid of {} x {} x {} tokens is given; at most {} tokens are expected",
                     module.path(), module.class_name(), grid[0], grid[1], grid[2], kLargestGrid);
    tokens *= extent;
  }
}

Tensor grid_of_patches(const Tensor& tokens, const Extents& grid, const Extents& kernel) {
  const std::int64_t batch = tokens.size(0), channels = tokens.size(2) / (kernel[0] * kernel[1] * kernel[2]);
  const Tensor patches =
      ops::reshape(tokens, {batch, grid[0], grid[1], grid[2], kernel[0], kernel[1], kernel[2], channels});
  return ops::reshape(patches.permute({0, 7, 1, 4, 2, 5, 3, 6}),
                      {batch, channels, grid[0] * kernel[0], grid[1] * kernel[1], grid[2] * kernel[2]});
}

std::vector<Tensor> modulations_from_table(const Tensor& table, const Tensor& embedded) {
  const Tensor all = ops::add(embedded, table);
  std::vector<Tensor> rows;
  for (std::int64_t row = 0; row < all.size(2); ++row) rows.push_back(all.narrow(2, row, 1).squeeze(2));
  return rows;
}

ControlNetSamples::ControlNetSamples(const Module& model, const Arguments& arguments, Name name, std::size_t blocks,
                                     Order order)
    : model_(model), name_(name), samples_(arguments.tensor_list(name)), blocks_(blocks), order_(order) {}

Tensor ControlNetSamples::add_after(std::size_t block, const Tensor& x) const {
  if (samples_.empty()) return x;
  const std::size_t interval = (blocks_ + samples_.size() - 1) / samples_.size();
  const std::size_t i = order_ == Order::repeated ? block % samples_.size() : block / interval;
  SHARDPROOF_CHECK(samples_[i].shape() == x.shape(), shape_error,
                   "argument '{}.{}' of module '{}' ({}) is {}; expected the shape of the hidden states after block "
                   "{}, {}",
                   name_.text(), i, model_.path(), model_.class_name(), samples_[i].text(), block, x.text());
  return ops::add(x, samples_[i]);
}

Tensor split_heads(const Tensor& x, std::int64_t head_dim) { return x.unflatten(-1, x.size(-1) / head_dim, head_dim); }

Tensor join_heads(const Tensor& x) { return ops::reshape(x, {x.size(0), x.size(1), x.size(2) * x.size(3)}); }

Tensor cosine_and_sine(Device& device, const AngleTable& table, DType dtype) {
  return ops::concat({tables::cosine_on(device, table, dtype, 1), tables::sine_on(device, table, dtype, 1)}, -1);
}

void check_rotary_rows(const Module& module, Name argument, const Tensor& table, std::int64_t tokens,
                       std::string_view source) {
  SHARDPROOF_CHECK(
      table.size(-2) == tokens, shape_error,
      "argument '{}' of module '{}' ({}) has rotary tables of {} rows for {} tokens; they are made from {}: "
      "a plan must divide these as it divides the tokens",
      argument.text(), module.path(), module.class_name(), table.size(-2), tokens, source);
}

std::vector<Tensor> doubled_tables(const Tensor& cosine_and_sine) {
  const std::int64_t rows = cosine_and_sine.size(0), pairs = cosine_and_sine.size(1) / 2;
  std::vector<Tensor> doubled;
  for (const Tensor& half : ops::chunk(cosine_and_sine, 2, 1))
    doubled.push_back(ops::reshape(half.unsqueeze(-1).expand({rows, pairs, 2}), {rows, 2 * pairs}));
  return doubled;
}

Tensor rows_per_token(const Tensor& first, const Tensor& second, const Tensor& index) {
  std::vector<Tensor> samples;
  for (std::int64_t b = 0; b < index.size(0); ++b) {
    const Tensor pair = ops::concat({first.narrow(0, b, 1), second.narrow(0, second.size(0) == 1 ? 0 : b, 1)}, 0);
    samples.push_back(ops::gather_rows(pair, ops::contiguous(index.narrow(0, b, 1).squeeze(0))).unsqueeze(0));
  }
  return ops::concat(samples, 0);
}

std::vector<double> scaled_coordinates(const Tensor& coordinates, double factor, TablePrecision precision) {
  std::vector<double> values = ops::to_doubles(coordinates);
  for (double& value : values) {
    value = precision == TablePrecision::float32
                ? static_cast<double>(static_cast<float>(value) * static_cast<float>(factor))
                : value * factor;
  }
  return values;
}

Tensor scaled_coordinate_tensor(const Tensor& coordinates, double factor, TablePrecision precision) {
  return ops::from_doubles(coordinates.device(), scaled_coordinates(coordinates, factor, precision),
                           coordinates.shape(), kFloat64);
}

}  // namespace shardproof
