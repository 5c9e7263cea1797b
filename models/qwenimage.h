// Qwen-Image: QwenImageTransformer2DModel, double-stream blocks with joint attention over [text, image] under an
// optional key mask of the text; several images in one sequence, and with zero_cond_t a modulation that differs between
// the first image and the others. Source: models specification, section 3.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/json.h"
#include "core/module.h"
#include "models/model_context.h"

namespace shardproof {

struct QwenImageConfig {
  std::int64_t patch_size = 2;
  std::int64_t in_channels = 64;
  std::int64_t out_channels = 16;
  std::int64_t num_layers = 60;
  std::int64_t attention_head_dim = 128;
  std::int64_t num_attention_heads = 24;
  std::int64_t joint_attention_dim = 3584;
  bool guidance_embeds = false;  // read, and used by nothing
  std::vector<std::int64_t> axes_dims_rope = {16, 56, 56};
  bool zero_cond_t = false;
  bool use_additional_t_cond = false;
  bool use_layer3d_rope = false;

  std::int64_t width() const { return attention_head_dim * num_attention_heads; }
};

// From config.json; absent fields take the defaults above (out_channels null: in_channels). file_error or config_error
// for unknown fields, wrong types, or fields that contradict each other.
QwenImageConfig qwenimage_config_from_json(const Json& json);

// Weights are declared, not loaded. forward(hidden_states [batch, image, in_channels], encoder_hidden_states [batch,
// text, joint_attention_dim], encoder_hidden_states_mask [batch, text] or none, timestep [batch], img_shapes, ..,
// controlnet_block_samples, additional_t_cond [batch]) -> [batch, image, patch_size^2 out_channels].
std::unique_ptr<Module> make_qwenimage(const QwenImageConfig& config, const ModelContext& context);

}  // namespace shardproof
