// ChronoEdit: ChronoEditTransformer3DModel, Wan's network with a rotary table of its own, in which the second of
// exactly two frames stands far from the first. Registers its configuration, plans and the inputs made to expose
// faults. Source: models specification, section 6.
#include "core/error.h"
#include "models/config_reader.h"
#include "models/model_type.h"
#include "models/wan.h"

namespace shardproof {
namespace {

WanConfig chronoedit_config() {
  WanConfig config;
  config.class_name = "ChronoEditTransformer3DModel";
  config.rope_temporal_skip_len = 8;
  return config;
}

WanConfig chronoedit_config_from_json(const Json& json) {
  ConfigReader reader(json);
  WanConfig config = chronoedit_config();
  read_wan_fields(reader, config);
  reader.read("rope_temporal_skip_len", config.rope_temporal_skip_len, 1);
  reader.finish();
  check_wan_fields(json, config);
  SHARDPROOF_CHECK(*config.rope_temporal_skip_len <= config.rope_max_seq_len, config_error,
                   "{}: key 'rope_temporal_skip_len' is {}, but 'rope_max_seq_len' is {}; the second of two frames "
                   "needs a position",
                   json.where(), *config.rope_temporal_skip_len, config.rope_max_seq_len);
  return config;
}

}  // namespace

ModelType chronoedit_model_type() {
  ModelType type;
  type.class_name = chronoedit_config().class_name;
  type.short_name = "chronoedit";
  type.create = [](const Json& config, const ModelContext& context) {
    return make_wan(chronoedit_config_from_json(config), context);
  };
  // The shipped plan leaves timesteps whole, so that one a token meets a part of the tokens.
  type.plans = [](const Json&) {
    return ModelPlans{.shipped_cp = wan_cp_plan(RootTimesteps::whole),
                      .default_cp = wan_cp_plan(RootTimesteps::divided)};
  };
  type.attention_heads = [](const Json& config) { return chronoedit_config_from_json(config).num_attention_heads; };
  type.hostile_config = [] {
    WanConfig config = chronoedit_config();
    config.rope_temporal_skip_len = 7;
    return wan_hostile_config(config);
  };
  type.hostile_cases = wan_hostile_cases;
  add_wan_sizes(type);
  return type;
}

}  // namespace shardproof
