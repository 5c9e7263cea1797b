// Qwen-Image 2.1: QwenImage21Transformer2DModel, one stream in which text and images stand as they were written, under
// a mask that is causal but for the tokens of one image; no biases, no context-parallel plan. Source: models
// specification, section 4.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/json.h"
#include "core/module.h"
#include "models/model_context.h"

namespace shardproof {

struct QwenImage21Config {
  std::int64_t patch_size = 1;
  std::int64_t in_channels = 64;
  std::int64_t out_channels = 64;
  std::int64_t num_layers = 32;
  std::int64_t attention_head_dim = 128;
  std::int64_t num_attention_heads = 32;
  std::int64_t context_in_dim = 4096;
  std::int64_t mlp_ratio = 3;
  std::vector<std::int64_t> axes_dims_rope = {16, 56, 56};
  double eps = 1e-6;
  bool causal_condition = true;

  std::int64_t width() const { return attention_head_dim * num_attention_heads; }
};

// From config.json; absent fields take the defaults above (out_channels null: in_channels). file_error or config_error
// for unknown fields, wrong types, or fields that contradict each other.
QwenImage21Config qwenimage21_config_from_json(const Json& json);

// Weights are declared, not loaded. forward(hidden_states [batch, image tokens, in_channels], encoder_hidden_states
// [batch, text, context_in_dim], timestep [batch], img_shapes, img_mask [batch, slots], encoder_hidden_states_mask
// [batch, text] or none, ..) -> [batch, joint tokens, patch_size^2 out_channels]. An image slot stands for four latent
// tokens; the last image is the target. Key-value caches are refused.
std::unique_ptr<Module> make_qwenimage21(const QwenImage21Config& config, const ModelContext& context);

}  // namespace shardproof
