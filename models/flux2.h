// FLUX.2: Flux2Transformer2DModel, double-stream blocks and then single-stream blocks over [text, image], modulated by
// three modulations that all blocks share; no biases. Source: models specification, section 2.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/json.h"
#include "core/module.h"
#include "models/model_context.h"

namespace shardproof {

struct Flux2Config {
  std::int64_t patch_size = 1;
  std::int64_t in_channels = 128;
  std::int64_t out_channels = 128;
  std::int64_t num_layers = 8;
  std::int64_t num_single_layers = 48;
  std::int64_t attention_head_dim = 128;
  std::int64_t num_attention_heads = 48;
  std::int64_t joint_attention_dim = 15360;
  std::int64_t timestep_guidance_channels = 256;
  double mlp_ratio = 3.0;
  std::vector<std::int64_t> axes_dims_rope = {32, 32, 32, 32};
  double rope_theta = 2000.0;
  double eps = 1e-6;
  bool guidance_embeds = true;

  std::int64_t width() const { return attention_head_dim * num_attention_heads; }
  // m: columns of each half of a feed-forward.
  std::int64_t mlp_width() const { return static_cast<std::int64_t>(static_cast<double>(width()) * mlp_ratio); }
};

// From config.json; absent fields take the defaults above (out_channels null or absent: in_channels). file_error or
// config_error for unknown fields, wrong types, or fields that contradict each other.
Flux2Config flux2_config_from_json(const Json& json);

// Weights are declared, not loaded. forward(hidden_states [batch, image, in_channels], encoder_hidden_states [batch,
// text, joint_attention_dim], timestep [batch], img_ids [batch, image, axes], txt_ids [batch, text, axes], guidance
// [batch] or none, ..) -> [batch, image, patch_size^2 out_channels]. Ids may lack the batch axis; their first entry
// stands for all. The key-value caches (kv_cache, kv_cache_mode, num_ref_tokens, ref_fixed_timestep) are refused.
std::unique_ptr<Module> make_flux2(const Flux2Config& config, const ModelContext& context);

}  // namespace shardproof
