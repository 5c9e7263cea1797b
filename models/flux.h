// FLUX.1: FluxTransformer2DModel, double-stream and single-stream blocks with joint attention over [text, image].
// Source: models specification, section 1.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/json.h"
#include "core/module.h"
#include "models/model_context.h"

namespace shardproof {

struct FluxConfig {
  std::int64_t patch_size = 1;
  std::int64_t in_channels = 64;
  std::int64_t out_channels = 64;
  std::int64_t num_layers = 19;
  std::int64_t num_single_layers = 38;
  std::int64_t attention_head_dim = 128;
  std::int64_t num_attention_heads = 24;
  std::int64_t joint_attention_dim = 4096;
  std::int64_t pooled_projection_dim = 768;
  bool guidance_embeds = false;
  std::vector<std::int64_t> axes_dims_rope = {16, 56, 56};

  std::int64_t width() const { return attention_head_dim * num_attention_heads; }
};

// From config.json; absent fields take the defaults above (out_channels null or absent: in_channels). file_error or
// config_error for unknown fields, wrong types, or fields that contradict each other.
FluxConfig flux_config_from_json(const Json& json);

// Weights are declared, not loaded. forward(hidden_states [batch, image, in_channels], encoder_hidden_states [batch,
// text, joint_attention_dim], pooled_projections [batch, pooled], timestep [batch], img_ids [image, 3], txt_ids [text,
// 3], guidance [batch], .., controlnet_block_samples, controlnet_single_block_samples, controlnet_blocks_repeat) ->
// [batch, image, patch_size^2 out_channels].
std::unique_ptr<Module> make_flux(const FluxConfig& config, const ModelContext& context);

}  // namespace shardproof
