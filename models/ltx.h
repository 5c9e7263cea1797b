// LTX: LTXVideoTransformer3DModel, a video as one stream of tokens with self-attention, and cross attention to a text
// that is divided among the ranks as the video is, under an optional mask; rotary tables over the whole width, from a
// grid or from given coordinates. Source: models specification, section 7.
#pragma once

#include <cstdint>
#include <memory>

#include "core/json.h"
#include "core/module.h"
#include "models/model_context.h"

namespace shardproof {

struct LtxConfig {
  std::int64_t in_channels = 128;
  std::int64_t out_channels = 128;
  std::int64_t patch_size = 1;
  std::int64_t patch_size_t = 1;
  std::int64_t num_attention_heads = 32;
  std::int64_t attention_head_dim = 64;
  std::int64_t cross_attention_dim = 2048;
  std::int64_t num_layers = 28;
  bool norm_elementwise_affine = false;
  double norm_eps = 1e-6;
  std::int64_t caption_channels = 4096;
  bool attention_bias = true;
  bool attention_out_bias = true;

  std::int64_t width() const { return attention_head_dim * num_attention_heads; }
};

// From config.json; absent fields take the defaults above. file_error, config_error or unsupported_error for unknown
// fields, wrong types, or fields that contradict each other.
LtxConfig ltx_config_from_json(const Json& json);

// Weights are declared, not loaded. forward(hidden_states [batch, tokens, in_channels], encoder_hidden_states [batch,
// text, caption_channels], timestep [batch] or [batch, tokens], encoder_attention_mask [batch, text] or none,
// num_frames, height, width, rope_interpolation_scale of three numbers or none, video_coords [batch, 3, tokens] or
// none,
// ..) -> [batch, tokens, out_channels].
std::unique_ptr<Module> make_ltx(const LtxConfig& config, const ModelContext& context);

}  // namespace shardproof
