// Attention layers that several models share: projections to queries, keys and values with a norm a head, and the joint
// attention of a text and an image stream that FLUX.1, FLUX.2 and Qwen-Image have in their blocks.
// Source: models specification, sections 0 and 1 to 3.
#pragma once

#include <cstdint>
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
  // Rotates queries and keys by `rotary` = {cosine, sine} [tokens, head_dim] and attends -> [batch, tokens, D].
  Tensor attend(const QueryKeyValue& all, const std::vector<Tensor>& rotary, const AttentionMask& mask) const;

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

}  // namespace shardproof
