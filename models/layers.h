// Layers that several models share, named and built as in diffusers so that weights and traces carry the same paths.
// Formulas: models specification, section 0. D is the model width, shapes are [batch, tokens, D] unless said.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/module.h"
#include "core/ops.h"
#include "models/model_context.h"

namespace shardproof {

// Argument names that many modules use.
namespace argument {
inline const Name hidden_states("hidden_states");
inline const Name encoder_hidden_states("encoder_hidden_states");
inline const Name temb("temb");
inline const Name image_rotary_emb("image_rotary_emb");
inline const Name timestep("timestep");
inline const Name guidance("guidance");
inline const Name pooled_projection("pooled_projection");
inline const Name ids("ids");
inline const Name img_ids("img_ids");
inline const Name txt_ids("txt_ids");
inline const Name return_dict("return_dict");
inline const Name joint_attention_kwargs("joint_attention_kwargs");
inline const Name controlnet_block_samples("controlnet_block_samples");
}  // namespace argument

class Activation final : public TensorModule {
 public:
  Activation(Name class_name, UnaryOp op) : TensorModule(class_name), op_(op) {}

 private:
  Tensor compute(const Tensor& x) const override { return x.device().unary(op_, x); }
  UnaryOp op_;
};

// (x - mean) / sqrt(variance + eps), no parameters.
class LayerNorm final : public TensorModule {
 public:
  explicit LayerNorm(double eps) : TensorModule("LayerNorm"), eps_(eps) {}

 private:
  Tensor compute(const Tensor& x) const override { return ops::layer_norm(x, eps_); }
  double eps_;
};

// The same times "weight" plus "bias", both [width].
class AffineLayerNorm final : public TensorModule {
 public:
  AffineLayerNorm(std::int64_t width, double eps);

 private:
  Tensor compute(const Tensor& x) const override;
  double eps_;
};

// x / sqrt(mean(x^2) + eps) * weight over the last axis of size `width`; parameter "weight" [width], or none.
class RmsNorm final : public TensorModule {
 public:
  enum class Weight : bool { absent, present };
  RmsNorm(std::int64_t width, double eps, Weight weight = Weight::present)
      : TensorModule("RMSNorm"), width_(width), eps_(eps) {
    if (weight == Weight::present) declare_parameter("weight", {width});
  }

 private:
  // shape_error naming the norm for other channels than it spans: those that a rank has of a layer that tensor
  // parallelism divides are not what a norm over all heads is taken of.
  Tensor compute(const Tensor& x) const override;
  std::int64_t width_;
  double eps_;
};

// linear_2(activation(linear_1 x)). The activation's child name differs between the uses ("act", "act_1").
class TwoLayerMlp final : public TensorModule {
 public:
  struct Widths {
    std::int64_t in = 0, hidden = 0, out = 0;
  };
  TwoLayerMlp(Name class_name, const Widths& widths, UnaryOp activation, Name activation_name,
              Linear::Bias bias = Linear::Bias::present);
  // in_features -> width -> width.
  TwoLayerMlp(Name class_name, std::int64_t in_features, std::int64_t width, UnaryOp activation, Name activation_name,
              Linear::Bias bias = Linear::Bias::present);

 private:
  Tensor compute(const Tensor& x) const override;
  Linear& linear_1_;
  Activation& activation_;
  Linear& linear_2_;
};

// linear(SiLU x), for modulations from temb. The children's names differ between the models.
class SiluLinear final : public TensorModule {
 public:
  struct Names {
    Name class_name, silu, linear;
  };
  SiluLinear(const Names& names, std::int64_t in_features, std::int64_t out_features,
             Linear::Bias bias = Linear::Bias::present);

 private:
  Tensor compute(const Tensor& x) const override;
  Activation& silu_;
  Linear& linear_;
};

// Children net.0 (owning net.0.proj, then the activation) and net.2, as in diffusers.
class FeedForward final : public TensorModule {
 public:
  enum class Kind : std::uint8_t {
    gelu_tanh,
    gelu,    // with erf
    swiglu,  // net.0.proj is twice as wide: first half * SiLU(second half)
  };
  struct Options {
    std::int64_t in_features = 0;
    std::int64_t inner = 0;
    std::int64_t out_features = 0;
    Kind kind = Kind::gelu_tanh;
    Linear::Bias bias = Linear::Bias::present;
  };
  explicit FeedForward(const Options& options);
  // D -> 4 D -> D with GELU-tanh.
  explicit FeedForward(std::int64_t width);

 private:
  Tensor compute(const Tensor& x) const override;
  TensorModule* in_ = nullptr;
  TensorModule* out_ = nullptr;
};

// Extents of a video or of a patch of it: frames, height, width.
using Extents = std::array<std::int64_t, 3>;

// Convolution over (frames, height, width) whose stride is its kernel: x [batch, in, F, H, W] -> [batch, out, F/kf,
// H/kh, W/kw], in the memory order of tokens [batch, tokens, out]. Parameters "weight" [out, in, kf, kh, kw] and
// "bias". Extents that the kernel does not divide are a shape_error.
class PatchEmbedding final : public TensorModule {
 public:
  PatchEmbedding(std::int64_t in_channels, std::int64_t width, const Extents& kernel);

 private:
  Tensor compute(const Tensor& x) const override;
  Extents kernel_;
};

// Host timesteps [batch] -> [batch, width]: [cos | sin] of the sinusoid, in the compute type.
class TimestepProjection final : public Module {
 public:
  // Angles are multiplied by `scale` last, as Qwen-Image does; the others scale their timesteps before.
  TimestepProjection(const ModelContext& context, std::int64_t width, double scale = 1.0);
  std::span<const ArgumentSpec> forward_arguments() const override;
  Outputs forward(Arguments& arguments) override;

 private:
  ModelContext context_;
  std::int64_t width_;
  double scale_;
};

// The embedding of timesteps that LTX and its successor modulate with: children emb.{time_proj, timestep_embedder},
// silu and linear. Host timesteps of n elements, in any shape -> (linear(SiLU e) [n, sets D], e [n, D]).
class AdaLayerNormSingle final : public Module {
 public:
  AdaLayerNormSingle(Name class_name, const ModelContext& context, std::int64_t width, std::int64_t sets);
  std::span<const ArgumentSpec> forward_arguments() const override;
  Outputs forward(Arguments& arguments) override;

  // The same of timesteps [batch] or [batch, tokens].
  struct Embedded {
    Tensor modulations;  // [batch, tokens|1, sets, D], for modulations_from_table()
    Tensor embedding;    // [batch, tokens|1, D]
  };
  Embedded embed(const Tensor& timestep);

 private:
  std::int64_t sets_;
  Module& emb_;
  Activation& silu_;
  Linear& linear_;
};

// Rows of a learned table, parameter "weight" [rows, width]; called with an index int64 [n] -> [n, width].
class Embedding final : public TensorModule {
 public:
  Embedding(std::int64_t rows, std::int64_t width) : TensorModule("Embedding") {
    declare_parameter("weight", {rows, width});
  }

 private:
  Tensor compute(const Tensor& index) const override { return ops::gather_rows(parameter(0), index); }
};

// AdaLayerNormZero: [normed and modulated x, gate_msa, shift_mlp, scale_mlp, gate_mlp] of (x, temb [batch, D]).
// With `Chunks::three` the single-block form: [normed and modulated x, gate].
class AdaLayerNormZero final : public Module {
 public:
  enum class Chunks : int { three = 3, six = 6 };
  AdaLayerNormZero(std::int64_t width, Chunks chunks);
  std::span<const ArgumentSpec> forward_arguments() const override;
  Outputs forward(Arguments& arguments) override;

 private:
  int chunks_;
  Activation& silu_;
  Linear& linear_;
  LayerNorm& norm_;
};

// LN(x, eps)(1 + scale) + shift with (scale, shift), in this order, from temb [batch, D].
class AdaLayerNormContinuous final : public Module {
 public:
  AdaLayerNormContinuous(std::int64_t width, double eps, Linear::Bias bias = Linear::Bias::present);
  std::span<const ArgumentSpec> forward_arguments() const override;
  Outputs forward(Arguments& arguments) override;

 private:
  Activation& silu_;
  Linear& linear_;
  LayerNorm& norm_;
};

// ids [tokens, axes] on the host -> cosine and sine [tokens, sum of widths], one rotary table an axis side by side,
// each value standing twice. In the wide type.
class AxesPosEmbed final : public Module {
 public:
  AxesPosEmbed(Name class_name, const ModelContext& context, std::vector<std::int64_t> widths, double theta);
  std::span<const ArgumentSpec> forward_arguments() const override;
  Outputs forward(Arguments& arguments) override;

 private:
  ModelContext context_;
  std::vector<std::int64_t> widths_;
  double theta_;
};

// Ids [tokens, axes]; with a batch axis, its first entry stands for all.
Tensor ids_without_batch(const Tensor& ids);
// x (1 + scale) + shift; scale and shift are [batch, D] for every token, or [batch, tokens|1, D].
Tensor modulate(const Tensor& x, const Tensor& scale, const Tensor& shift);
// x + gate * branch; gate [batch, D] or [batch, tokens|1, D].
Tensor add_gated(const Tensor& x, const Tensor& gate, const Tensor& branch);
// [batch, channels, f, h, w] -> tokens [batch, f h w, channels], frame by frame and row by row.
Tensor tokens_of_grid(const Tensor& x);
// shape_error if a grid that `module` was told has more tokens than any real video: its tables would fill the memory
// before they could be compared with the tokens that are there.
void check_grid(const Module& module, const Extents& grid);
// Tokens of patches [batch, f h w, kf kh kw channels], channels fastest -> [batch, channels, f kf, h kh, w kw].
Tensor grid_of_patches(const Tensor& tokens, const Extents& grid, const Extents& kernel);
// Rows of a learned table plus their embedding: table [rows, D] or [1, rows, D], embedded [batch, tokens|1, rows, D] ->
// one tensor [batch, tokens|1, D] a row, for modulate() and add_gated().
std::vector<Tensor> modulations_from_table(const Tensor& table, const Tensor& embedded);
// ControlNet residuals of a model's blocks.
class ControlNetSamples {
 public:
  enum class Order : std::uint8_t {
    stretched,  // sample i / ceil(blocks / samples) after block i
    repeated,   // sample i mod samples
  };
  // The argument `name` of a call of `model`: a list of [batch, tokens, D], or nothing. The model must outlive this.
  ControlNetSamples(const Module& model, const Arguments& arguments, Name name, std::size_t blocks,
                    Order order = Order::stretched);
  // x plus the residual that belongs after `block`. shape_error naming model, argument and element where shapes differ.
  Tensor add_after(std::size_t block, const Tensor& x) const;

 private:
  const Module& model_;
  Name name_;
  std::vector<Tensor> samples_;
  std::size_t blocks_;
  Order order_;
};

// [batch, tokens, H d] <-> [batch, tokens, H, d] with the head width given, so that a rank may hold fewer heads.
Tensor split_heads(const Tensor& x, std::int64_t head_dim);
Tensor join_heads(const Tensor& x);
// A table of rotary angles as one tensor [rows, 2 width] = [cos | sin], which a plan can divide by rows; and from such
// a tensor {cosine, sine} [rows, 2 width] with each value standing twice, as the rotation takes them.
Tensor cosine_and_sine(Device& device, const AngleTable& table, DType dtype);
std::vector<Tensor> doubled_tables(const Tensor& cosine_and_sine);
// shape_error unless a rotary table, [.., rows, width], has a row for every token. Names the module and its `argument`
// that brings the table, and `source`: what of the model the tables are made from, which a plan must divide.
void check_rotary_rows(const Module& module, Name argument, const Tensor& table, std::int64_t tokens,
                       std::string_view source);
// Rows for every token: first [batch, n] where index [batch, tokens] (int64) is 0, second [batch|1, n] where it is 1
// -> [batch, tokens, n].
Tensor rows_per_token(const Tensor& first, const Tensor& second, const Tensor& index);
// Host coordinates as doubles, times a factor in the table precision (one rounding in float32).
std::vector<double> scaled_coordinates(const Tensor& coordinates, double factor, TablePrecision precision);
// The same as a tensor of the coordinates' shape.
Tensor scaled_coordinate_tensor(const Tensor& coordinates, double factor, TablePrecision precision);

}  // namespace shardproof
