// Helios: HeliosTransformer3DModel, a video model whose sequence begins with three streams of history (long, middle,
// short) in front of the frames that it denoises. Source: models specification, section 9.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/module.h"
#include "models/layers.h"
#include "models/model_context.h"

namespace shardproof {

struct HeliosConfig {
  Extents patch_size = {1, 2, 2};
  std::int64_t num_attention_heads = 40;
  std::int64_t attention_head_dim = 128;
  std::int64_t in_channels = 16;
  std::int64_t out_channels = 16;
  std::int64_t text_dim = 4096;
  std::int64_t freq_dim = 256;
  std::int64_t ffn_dim = 13824;
  std::int64_t num_layers = 40;
  bool cross_attn_norm = true;
  double eps = 1e-6;
  std::vector<std::int64_t> rope_dim = {44, 42, 42};
  double rope_theta = 10000.0;
  bool guidance_cross_attn = true;
  bool zero_history_timestep = true;
  bool has_multi_term_memory_patch = true;
  bool is_amplify_history = false;
  std::string history_scale_mode = "per_head";  // or "scalar"

  std::int64_t width() const { return attention_head_dim * num_attention_heads; }
};

// From config.json; absent fields take the defaults above. file_error, config_error or unsupported_error for unknown
// fields, wrong types, fields that contradict each other, or keys and values of images.
HeliosConfig helios_config_from_json(const Json& json);

// Weights are declared, not loaded. forward(hidden_states [batch, in_channels, F, H, W], timestep [batch],
// encoder_hidden_states [batch, text, text_dim], indices_hidden_states [batch, F / patch] or none,
// indices_latents_history_{short,mid,long} [batch, frames] and latents_history_{short,mid,long} [batch, in_channels,
// frames, H, W], each pair or none, ..) -> [batch, out_channels, F, H, W]. A stream whose indices or latents are absent
// does not exist; the middle and the long one need the short one.
std::unique_ptr<Module> make_helios(const HeliosConfig& config, const ModelContext& context);

}  // namespace shardproof
