// How small a failure each fault of the zoo leaves, and how long the search for it takes: the power of verify --shrink,
// measured.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/zoo/fault.h"
#include "tests/zoo/scenarios.h"

namespace shardproof::zoo {

struct ShrunkFault {
  std::string tier;      // that judges: "exact", "float64", "float32", "bits"
  std::string from;      // the configuration that the search starts from: of the most ranks and elements
  std::string smallest;  // empty if none fails alike
  int configurations = 0;
  double seconds = 0.0;
};

// `tiers` are those that kill the fault, the first that can be is taken; `killers` are configurations in which it is
// killed, for a fault that the largest ones do not show. The fault must be switched on. Nothing: no
// configuration fails under the tiers that a search can use.
std::optional<ShrunkFault> shrink_fault(const Fault& fault, const std::vector<Scenario>& scenarios,
                                        const std::vector<std::string>& tiers, const std::set<std::string>& killers,
                                        std::uint64_t seed);

}  // namespace shardproof::zoo
