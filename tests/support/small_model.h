// A transformer of a few dozen weights for the tests of hooks, plans and context parallelism. It has what one model or
// another of the catalogue has: joint attention of a text and an image stream with a text mask and rotary tables made
// from coordinates, cross attention to a context that is replicated or divided, a modulation per token or per item, and
// a final projection whose output is gathered.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "core/host_memory.h"
#include "core/module.h"
#include "parallel/attention.h"
#include "parallel/plan.h"
#include "tests/support/host_array.h"

namespace shardproof::test {

struct SmallModelConfig {
  std::int64_t heads = 2;
  std::int64_t layers = 2;
  // Whether the plan divides the context of the cross attention.
  Placement context = Placement::replicated;
};
inline constexpr std::int64_t kSmallHeadWidth = 4;
inline constexpr std::int64_t kSmallChannels = 3;

// forward(hidden_states [B, image, 3], encoder_hidden_states [B, text, 3], context [B, any, 3], timestep [B] or
// [B, image], text_mask bool [B, text] or none, img_ids [image], txt_ids [text] on the host, controlnet_samples a list
// of [B, image, D] or none) -> sample [B, image, 3].
class SmallModel final : public Module {
 public:
  explicit SmallModel(const SmallModelConfig& config);
  std::span<const ArgumentSpec> forward_arguments() const override;
  Outputs forward(Arguments& arguments) override;

 private:
  Module* x_embedder_;
  Module* context_embedder_;
  Module* text_embedder_;
  ModuleList* blocks_;
  Module* proj_out_;
};

// The plan of SmallModel for a configuration.
ContextParallelPlan small_model_plan(const SmallModelConfig& config);

// Random weights by (seed, path), made once and shared by the trees of all ranks.
class SmallModelWeights {
 public:
  SmallModelWeights(const SmallModelConfig& config, Device& device, DType dtype, std::uint64_t seed);
  std::unique_ptr<SmallModel> make_model() const;

 private:
  SmallModelConfig config_;
  std::map<std::string, std::shared_ptr<const Tensor>> tensors_;
};

struct SmallInputShape {
  std::int64_t batch = 1;
  std::int64_t text = 4;
  std::int64_t image = 8;
  std::int64_t context = 5;
  bool timestep_per_token = true;
  bool has_text_mask = true;  // different per item; the last item's first text token is kept
};
// All arguments, by (seed, name). Coordinates live on `host`.
Arguments small_model_inputs(const SmallInputShape& shape, Device& device, HostDevice& host, DType dtype,
                             std::uint64_t seed);

}  // namespace shardproof::test
