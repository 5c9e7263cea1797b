#include "models/layers.h"

#include "core/error.h"

namespace shardproof {
namespace {

// The first stage of a feed-forward: proj, then GELU-tanh (diffusers calls the class GELU).
class GeluProjection final : public TensorModule {
 public:
  GeluProjection(std::int64_t width, std::int64_t inner)
      : TensorModule("GELU"), proj_(add_child<Linear>("proj", width, inner)) {}

 private:
  Tensor compute(const Tensor& x) const override { return ops::gelu_tanh(proj_(x)); }
  Linear& proj_;
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

TwoLayerMlp::TwoLayerMlp(Name class_name, std::int64_t in_features, std::int64_t width, UnaryOp activation,
                         Name activation_name)
    : TensorModule(class_name),
      linear_1_(add_child<Linear>("linear_1", in_features, width)),
      activation_(add_child<Activation>(activation_name, "SiLU", activation)),
      linear_2_(add_child<Linear>("linear_2", width, width)) {}

Tensor TwoLayerMlp::compute(const Tensor& x) const { return linear_2_(activation_(linear_1_(x))); }

FeedForward::FeedForward(std::int64_t width) : TensorModule("FeedForward") {
  auto& net = add_child<ModuleList>("net");
  in_ = &net.append<GeluProjection>(width, kInnerFactor * width);
  net.append<Dropout>();
  out_ = &net.append<Linear>(kInnerFactor * width, width);
}

Tensor FeedForward::compute(const Tensor& x) const { return (*out_)((*in_)(x)); }

TimestepProjection::TimestepProjection(const ModelContext& context, std::int64_t width)
    : Module("Timesteps"), context_(context), width_(width) {}

std::span<const ArgumentSpec> TimestepProjection::forward_arguments() const {
  static const ArgumentSpec kArguments[] = {{argument::timestep, ArgumentKind::coordinate}};
  return kArguments;
}

Outputs TimestepProjection::forward(Arguments& arguments) {
  const std::vector<double> timesteps = ops::to_doubles(arguments.tensor(argument::timestep));
  const AngleTable table = tables::sinusoid(timesteps, width_, context_.table_precision);
  return ops::concat({tables::cosine_on(*context_.device, table, context_.dtype, 1),
                      tables::sine_on(*context_.device, table, context_.dtype, 1)},
                     -1);
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

AdaLayerNormContinuous::AdaLayerNormContinuous(std::int64_t width, double eps)
    : Module("AdaLayerNormContinuous"),
      silu_(add_child<Activation>("silu", "SiLU", UnaryOp::silu)),
      linear_(add_child<Linear>("linear", width, 2 * width)),
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

Tensor modulate(const Tensor& x, const Tensor& scale, const Tensor& shift) {
  return ops::add(ops::multiply(x, ops::add(scale, 1.0).unsqueeze(1)), shift.unsqueeze(1));
}

Tensor add_gated(const Tensor& x, const Tensor& gate, const Tensor& branch) {
  return ops::add(x, ops::multiply(gate.unsqueeze(1), branch));
}

Tensor split_heads(const Tensor& x, std::int64_t head_dim) { return x.unflatten(-1, x.size(-1) / head_dim, head_dim); }

Tensor join_heads(const Tensor& x) { return ops::reshape(x, {x.size(0), x.size(1), x.size(2) * x.size(3)}); }

std::vector<double> scaled_coordinates(const Tensor& coordinates, double factor, TablePrecision precision) {
  std::vector<double> values = ops::to_doubles(coordinates);
  for (double& value : values) {
    value = precision == TablePrecision::float32
                ? static_cast<double>(static_cast<float>(value) * static_cast<float>(factor))
                : value * factor;
  }
  return values;
}

}  // namespace shardproof
