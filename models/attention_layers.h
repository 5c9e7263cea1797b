// Attention layers that several models share: projections to queries, keys and values with a norm a head, and the joint
// attention of a text and an image stream that FLUX.1, FLUX.2 and Qwen-Image have in their blocks; and the projections
// of the video models, with norms across heads. Source: models specification, sections 0, 1 to 3, 5 to 9.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/layers.h"
#include "parallel/attention.h"

namespace shardproof {

namespace argument {
inline const Name attention_mask("attention_mask");
}  // namespace argument

// What the attention layers of one model have in common.
struct AttentionLayerOptions {
  std::int64_t width = 0;     // D = heads * head_dim
  std::int64_t head_dim = 0;  // from which the heads that a rank holds follow
  double norm_eps = 1e-6;
  Linear::Bias bias = Linear::Bias::present;
  // For messages: what of the model the rotary tables are made from.
  std::string_view rotary_source;
};

// Base of attention layers whose queries and keys are normalised over each head.
class ProjectedAttention : public Module, public AttentionSlot {
 protected:
  struct QueryKeyValue {
    Tensor q, k, v;  // [batch, tokens, heads, head_dim]
  };
  struct ProjectionNames {
    Name norm_q, norm_k, q, k, v;
  };
  struct Projections {
    RmsNorm* norm_q = nullptr;
    RmsNorm* norm_k = nullptr;
    Linear* q = nullptr;
    Linear* k = nullptr;
    Linear* v = nullptr;
  };

  ProjectedAttention(Name class_name, const AttentionLayerOptions& options) : Module(class_name), options_(options) {}

  const AttentionLayerOptions& options() const { return options_; }
  // Children of the given names: two norms and three linear layers D -> D.
  Projections add_projections(const ProjectionNames& names);
  QueryKeyValue project(const Projections& projections, const Tensor& x) const;
  // Rotates queries and keys by the argument `tables` = {cosine, sine} [tokens, head_dim] and attends -> [batch,
  // tokens, D].
  Tensor attend(const QueryKeyValue& all, const Arguments& arguments, Name tables, const AttentionMask& mask) const;

 private:
  AttentionLayerOptions options_;
};

// Attention over [text, image] with projections of either stream. forward(hidden_states [batch, image, D],
// encoder_hidden_states [batch, text, D], image_rotary_emb {cosine, sine} [text + image, head_dim], attention_mask no
// tensor or [batch, text + image]) -> (image, text).
class JointAttention final : public ProjectedAttention {
 public:
  JointAttention(Name class_name, const AttentionLayerOptions& options);
  std::span<const ArgumentSpec> forward_arguments() const override;
  Outputs forward(Arguments& arguments) override;

 private:
  Projections image_;
  Projections text_;
  Linear* to_out_ = nullptr;
  Linear* to_add_out_ = nullptr;
};

// What attention layers whose norms span all heads are made of.
struct AcrossHeadsOptions {
  std::int64_t query_width = 0;
  std::int64_t key_width = 0;  // of what keys and values are made of
  std::int64_t inner = 0;      // heads * head_dim
  std::int64_t out_width = 0;
  std::int64_t head_dim = 0;
  double norm_eps = 1e-6;
  Linear::Bias bias = Linear::Bias::present;
  Linear::Bias out_bias = Linear::Bias::present;
};

// Base of attention layers whose queries and keys are normalised over all heads together, before these are told apart:
// children norm_q and norm_k [inner], to_q, to_k, to_v and to_out.0.
class AcrossHeadsAttention : public Module, public AttentionSlot {
 protected:
  AcrossHeadsAttention(Name class_name, const AcrossHeadsOptions& options);

  const AcrossHeadsOptions& options() const { return options_; }
  // Normalised, [batch, tokens, inner].
  Tensor queries(const Tensor& x) const { return norm_q_(to_q_(x)); }
  Tensor keys(const Tensor& source) const { return norm_k_(to_k_(source)); }
  Tensor values(const Tensor& source) const { return to_v_(source); }
  // [batch, tokens, inner] -> [batch, tokens, heads, head_dim].
  Tensor heads(const Tensor& x) const { return split_heads(x, options_.head_dim); }
  // [batch, tokens, inner] -> [batch, tokens, out_width].
  Tensor output(const Tensor& joined) const { return to_out_(joined); }

 private:
  AcrossHeadsOptions options_;
  RmsNorm& norm_q_;
  RmsNorm& norm_k_;
  Linear& to_q_;
  Linear& to_k_;
  Linear& to_v_;
  Linear& to_out_;
};

}  // namespace shardproof
