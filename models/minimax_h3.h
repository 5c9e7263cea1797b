// MiniMax-H3: MiniMaxH3Transformer3DModel, one packed sequence of text, audio and video rows, whose places index
// tensors give; rows are modulated by their timestep and their kind. Source: models specification, section 10.
#pragma once

#include <cstdint>
#include <memory>

#include "core/json.h"
#include "core/module.h"
#include "models/layers.h"
#include "models/model_context.h"

namespace shardproof {

struct MiniMaxH3Config {
  std::int64_t num_attention_heads = 56;
  std::int64_t attention_head_dim = 128;
  std::int64_t hidden_size = 5376;  // not heads times head_dim
  std::int64_t num_layers = 50;
  std::int64_t num_refiner_layers = 2;
  std::int64_t ffn_dim = 14336;
  std::int64_t in_channels = 24;
  std::int64_t audio_in_channels = 32;
  Extents patch_size = {1, 2, 2};
  std::int64_t text_dim = 5120;
  std::int64_t freq_dim = 256;
  std::int64_t time_embed_hidden_dim = 5376;
  std::int64_t time_embed_dim = 2688;
  std::int64_t rope_freq_dim = 16;  // angles an axis
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  double qk_norm_eps = 1e-5;
  double final_norm_eps = 1e-5;

  // Of a token of the video.
  std::int64_t patch_channels() const { return in_channels * patch_size[0] * patch_size[1] * patch_size[2]; }
};

// From config.json; absent fields take the defaults above. file_error or config_error for unknown fields, wrong types,
// or fields that contradict each other.
MiniMaxH3Config minimax_h3_config_from_json(const Json& json);

// Weights are declared, not loaded. forward(hidden_states [batch, video, patch_channels], audio_hidden_states [batch,
// audio, audio_in_channels], encoder_hidden_states [batch, text, text_dim], timestep [times], timestep_indices [rows],
// token_tags [rows] (0 video, 1 text, 2 audio), position_ids [rows, 3], video_indices [video], audio_indices [audio],
// text_indices [text], ..) -> (video [batch, video, patch_channels], audio [batch, audio, audio_in_channels]). A row
// that no index names is zero; where indices meet, audio goes before video before text.
std::unique_ptr<Module> make_minimax_h3(const MiniMaxH3Config& config, const ModelContext& context);

}  // namespace shardproof
