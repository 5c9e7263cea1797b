// LTX-2: LTX2VideoTransformer3DModel, a video and an audio stream side by side, each with a text of its own, which
// attend to each other in every block; timesteps a sample or a token. Source: models specification, section 8.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/json.h"
#include "core/module.h"
#include "models/layers.h"
#include "models/model_context.h"

namespace shardproof {

// What the configuration has once for each of the two streams.
struct Ltx2Modality {
  std::int64_t in_channels = 128;
  std::int64_t out_channels = 128;
  std::int64_t num_attention_heads = 32;
  std::int64_t attention_head_dim = 128;
  std::int64_t cross_attention_dim = 4096;
  std::int64_t pos_embed_max_pos = 20;
  bool gated_attn = false;
  bool cross_attn_mod = false;
  bool ff_bias = true;

  std::int64_t width() const { return num_attention_heads * attention_head_dim; }
  // Modulations of a block: of self-attention, of the feed-forward and, with cross_attn_mod, of the text's query.
  std::int64_t modulations() const { return cross_attn_mod ? 9 : 6; }
};

struct Ltx2Config {
  Ltx2Modality video;
  Ltx2Modality audio = {.attention_head_dim = 64, .cross_attention_dim = 2048};
  Extents vae_scale_factors = {8, 32, 32};
  std::int64_t base_height = 2048;
  std::int64_t base_width = 2048;
  std::int64_t audio_scale_factor = 4;
  std::int64_t audio_sampling_rate = 16000;
  std::int64_t audio_hop_length = 160;
  std::int64_t num_layers = 48;
  bool norm_elementwise_affine = false;
  double norm_eps = 1e-6;
  std::int64_t caption_channels = 3840;
  bool attention_bias = true;
  bool attention_out_bias = true;
  double rope_theta = 10000.0;
  bool rope_double_precision = true;
  std::int64_t causal_offset = 1;
  std::int64_t timestep_scale_multiplier = 1000;
  std::int64_t cross_attn_timestep_scale_multiplier = 1000;
  std::string rope_type = "interleaved";  // or "split"
  bool use_prompt_embeddings = true;
  bool perturbed_attn = false;
  bool use_prompt_adaln_single = true;
  bool use_keyframes_abs_pos_embedding = false;

  bool has_split_rope() const { return rope_type == "split"; }
  bool modulates_prompts() const { return video.cross_attn_mod || audio.cross_attn_mod; }
};

// From config.json; absent fields take the defaults above. file_error, config_error or unsupported_error for unknown
// fields, wrong types, fields that contradict each other, or patch sizes other than 1.
Ltx2Config ltx2_config_from_json(const Json& json);

// Weights are declared, not loaded. forward(hidden_states [batch, video, in_channels], audio_hidden_states [batch,
// audio, audio_in_channels], encoder_hidden_states [batch, text, caption_channels], audio_encoder_hidden_states,
// timestep [batch] or [batch, video], audio_timestep [batch] or [batch, audio] or none (as timestep), sigma [batch],
// audio_sigma, encoder_attention_mask [batch, text], audio_encoder_attention_mask, num_frames, height, width, fps,
// audio_num_frames, isolate_modalities, spatio_temporal_guidance_blocks, perturbation_mask [batch], use_cross_timestep,
// video_self_attention_mask [batch, video, video], video_keyframes_mask [batch, video, 1], ..) -> (video [batch, video,
// out_channels], audio [batch, audio, audio_out_channels]). Coordinates are made of the numbers of frames, rows and
// columns; explicit ones (video_coords, audio_coords) are refused.
std::unique_ptr<Module> make_ltx2(const Ltx2Config& config, const ModelContext& context);

}  // namespace shardproof
