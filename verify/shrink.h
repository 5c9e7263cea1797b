// The smallest configuration that still fails: models of every size, made like the one that failed, are verified under
// every configuration of at most its ranks, in an order in which the first that fails is the smallest. Source:
// verification specification, section 10.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "models/model_size.h"
#include "models/model_type.h"
#include "parallel/config.h"
#include "reports/result.h"
#include "verify/exact_verifier.h"
#include "verify/verifier.h"

namespace shardproof {

// What judges the small configurations.
enum class ShrinkTier : std::uint8_t {
  exact,       // exact arithmetic and movement
  exact_bits,  // besides, attention to the last bit
  rounding,
};

struct ShrinkInput {
  ModelType model;
  Json settings = Json::object();  // the configuration that failed: its switches and words are kept
  std::function<ParallelPlans(const Json& config)> plans;
  std::vector<std::string> features = {};  // of the case that failed, see features_of()
  ParallelConfig config;                   // under which it failed
  bool stopped = false;                    // it ended in a report; a smaller one must end alike
  ShrinkTier tier = ShrinkTier::exact;
  ExactOptions exact = {};
  VerifierOptions rounding = {};
  double most_seconds = 60.0;
};

struct SmallestFailure {
  ModelSize size;
  ParallelConfig config;
  VerificationResult result;  // with its diagnosis
};

struct Shrunk {
  std::optional<SmallestFailure> smallest = std::nullopt;
  int tried = 0;             // configurations
  bool was_cut_off = false;  // by most_seconds
  double seconds = 0.0;
};

// Ranks first (for each number of them: ring, Ulysses, their forms for uneven sizes, Unified, TP, TP with these), then
// tokens of both streams together, tokens of text, heads, layers, features (masks first), batch. A configuration is
// entered if one of a few larger sizes fails in it, and a number of tokens if it fails with the most heads, layers and
// batch that are tried: a fault that shows in a small size only is not found. What is found is confirmed under another
// seed. usage_error for a model without sizes.
Shrunk shrink(const ShrinkInput& input);

// The configurations that are tried, in order: those of the same kinds of parallelism with at most as many ranks, and
// last the one that failed.
std::vector<ParallelConfig> smaller_configurations(const ParallelConfig& failed);

}  // namespace shardproof
