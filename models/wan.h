// Wan: WanTransformer3DModel, a video as one stream of patch tokens with self-attention, cross attention to a text that
// every rank holds whole (and to an image, in models that have one), and modulation by one timestep a sample or one a
// token. ChronoEdit is the same network with another rotary table. Source: models specification, sections 5 and 6.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/json.h"
#include "core/module.h"
#include "models/config_reader.h"
#include "models/layers.h"
#include "models/model_context.h"
#include "models/model_type.h"

namespace shardproof {

struct WanConfig {
  std::string class_name = "WanTransformer3DModel";
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
  std::optional<std::int64_t> image_dim = std::nullopt;
  std::optional<std::int64_t> added_kv_proj_dim = std::nullopt;
  std::int64_t rope_max_seq_len = 1024;
  std::optional<std::int64_t> pos_embed_seq_len = std::nullopt;
  // ChronoEdit's: the second of exactly two frames stands at this position less one. None for Wan.
  std::optional<std::int64_t> rope_temporal_skip_len = std::nullopt;

  std::int64_t width() const { return attention_head_dim * num_attention_heads; }
};

// From config.json; absent fields take the defaults above. file_error, config_error or unsupported_error for unknown
// fields, wrong types, or fields that contradict each other.
WanConfig wan_config_from_json(const Json& json);
// The same in two steps, for models that add fields of their own before reader.finish().
void read_wan_fields(ConfigReader& reader, WanConfig& config);
void check_wan_fields(const Json& json, const WanConfig& config);

// Weights are declared, not loaded. forward(hidden_states [batch, in_channels, F, H, W], timestep [batch] or [batch,
// tokens], encoder_hidden_states [batch, text, text_dim], encoder_hidden_states_image [batch, image, image_dim] or
// none,
// ..) -> [batch, out_channels, F, H, W].
std::unique_ptr<Module> make_wan(const WanConfig& config, const ModelContext& context);

// The plan that Wan ships, and ChronoEdit without its entry for timesteps.
enum class RootTimesteps : std::uint8_t { whole, divided };
ContextParallelPlan wan_cp_plan(RootTimesteps timesteps);
// A small configuration of either and cases made to expose faults, with timesteps a sample and a token.
Json wan_hostile_config(const WanConfig& like);
std::vector<ModelCase> wan_hostile_cases(std::uint64_t seed, Device& host);
// Gives a type of either model its sizes: one frame a token, with the feature "per_token".
void add_wan_sizes(ModelType& type);

}  // namespace shardproof
