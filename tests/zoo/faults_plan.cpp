// Faults of plans: an entry that is missing, or that divides what must stay whole. What they change is in
// plan_changes.cpp.
#include "tests/zoo/fault.h"

namespace shardproof::zoo {

std::span<const Fault> plan_faults() {
  static constexpr std::string_view kAllModes = "ring ring_anything ulysses ulysses_anything unified";
  static const std::vector<Fault> kFaults{
      {.name = "TEXT_NOT_SPLIT",
       .catalogue = 35,
       .what = "the text stays whole on every rank and counts once a rank",
       .edits = {},
       .modes = kAllModes},
      {.name = "PLAN_IDS_WHOLE", .what = "positions of the image are not divided", .edits = {}, .modes = kAllModes},
      {.name = "PLAN_NOT_GATHERED",
       .what = "the output is not gathered",
       .edits = {},
       .models = "flux probe",
       .modes = kAllModes},
      {.name = "PLAN_GATHERED_AT_INPUT",
       .what = "the output is gathered along the batch",
       .edits = {},
       .models = "flux probe",
       .modes = kAllModes},
      {.name = "PLAN_BATCH_SPLIT",
       .what = "the image is divided along the batch instead of its tokens",
       .edits = {},
       .models = "flux probe",
       .modes = kAllModes},
      {.name = "PLAN_CONTROLNET_WHOLE",
       .what = "the samples of a ControlNet are not divided, as in the plan that diffusers ships",
       .edits = {},
       .modes = "ring ulysses unified"},
      {.name = "PLAN_MASK_WHOLE",
       .what = "the mask of keys is not divided",
       .edits = {},
       .models = "probe layer",
       .modes = kAllModes},
      {.name = "PLAN_CONTEXT_SPLIT",
       .what = "a context that attention takes as whole is divided",
       .edits = {},
       .models = "probe",
       .modes = "ring_anything ulysses_anything ring ulysses"},
      {.name = "PLAN_MODULATION_WHOLE",
       .what = "timesteps of tokens are not divided",
       .edits = {},
       .models = "probe",
       .modes = kAllModes},
      {.name = "PLAN_ROWWISE_LOST",
       .what = "the output layers of attention are not sharded, its projections are",
       .edits = {},
       .models = "flux flux2",
       .modes = "tp"},
      {.name = "PLAN_REPLICATED_ROWWISE",
       .what = "a rowwise layer takes its input for whole",
       .edits = {},
       .models = "flux flux2",
       .modes = "tp"},
      {.name = "PLAN_PACKED_IN_WRONG_BLOCKS",
       .what = "a packed layer is cut as if its blocks were two halves",
       .edits = {},
       .models = "flux flux2",
       .modes = "tp"},
      {.name = "PLAN_VALUES_WHOLE",
       .what = "queries and keys are sharded, values are not",
       .edits = {},
       .models = "flux",
       .modes = "tp"},
  };
  return kFaults;
}

}  // namespace shardproof::zoo
