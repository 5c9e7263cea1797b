// Whether a difference is told to be where its fault is: the diagnosis of the smallest configuration that kills a
// fault, against the place that the fault's row expects. This is the measure of verify/diagnosis.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tests/zoo/fault.h"
#include "tests/zoo/scenarios.h"
#include "verify/diagnosis.h"
#include "verify/structure_check.h"

namespace shardproof::zoo {

// What verification says of the place of a difference.
struct Finding {
  Diagnosis diagnosis;
  StructureResult structure;
  std::string report;  // the reason of the verdict
};

// The place that the fault's row expects, or that its file implies (see fault.h).
std::string expected_place(const Fault& fault);

// Whether the finding names one of the expected places. usage_error for a word that is no place.
bool names_place(const Finding& finding, std::string_view expected);

// The finding in one line.
std::string place_text(const Finding& finding);

class Localiser {
 public:
  explicit Localiser(std::uint64_t seed);
  ~Localiser();
  // With the fault that is on now.
  Finding find(const Scenario& scenario, const ParallelPlans& plans);

 private:
  struct Bench;
  std::uint64_t seed_;
  std::map<std::string, std::unique_ptr<Bench>> benches_;
};

}  // namespace shardproof::zoo
