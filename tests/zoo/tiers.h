// The tiers of verification as the zoo uses them: each says of a scenario whether the parallel run passes. A tier keeps
// its subjects and dense runs, which no fault touches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/parallelism.h"
#include "tests/zoo/scenarios.h"

namespace shardproof::zoo {

struct Judgement {
  enum class End : std::uint8_t {
    passed,
    differs,  // numbers, or what the ranks returned
    stopped,  // a report instead of a result: mismatch, deadlock, exception
    refused,
    not_checked,
  };
  End end = End::not_checked;
  std::string reason;
};

// "differs", "stopped", ..
std::string_view end_word(Judgement::End end);

class Tier {
 public:
  virtual ~Tier() = default;
  // "structure", "bits", "exact", "float64", "float32", "modules".
  virtual std::string_view name() const = 0;
  virtual Judgement judge(const Scenario& scenario, const ParallelPlans& plans) = 0;
};

// All tiers that this build has.
std::vector<std::unique_ptr<Tier>> make_tiers(std::uint64_t seed);

// The default plans of the scenario's model.
ParallelPlans healthy_plans(const std::string& model);

}  // namespace shardproof::zoo
