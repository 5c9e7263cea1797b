// What is wrong by itself and not because of what came before: every module call of every rank is given the arguments,
// and gets from the modules that it calls the outputs, that the dense run has there. Who then still computes something
// else is wrong independently of all others. Source: verification specification, section 9.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/parallel_run.h"

namespace shardproof {

struct IndependentFaultsInput {
  TreeFactory dense_tree;
  TreeFactory rank_tree;
  std::vector<Arguments> arguments;  // by replica
  ParallelPlans plans;
  ParallelRunOptions options;
  // Values of the dense runs that are kept at once; a model that needs more is not looked at.
  std::int64_t most_bytes = std::int64_t{1} << 31;
};

struct IndependentFault {
  std::string module;      // in whose code it is
  std::string class_name;  // of that module
  std::string value;       // "its output 0", "argument 'hidden_states' of 'norm2', as it gives it"
  std::vector<int> ranks;
};

struct IndependentFaults {
  std::vector<IndependentFault> faults;  // in the order in which the dense run comes to them
  std::int64_t compared = 0;             // values that some rank had a part of
  std::string not_checked;               // why there is no answer; empty if there is one
  // The same in sentences.
  std::vector<std::string> lines() const;
};

// In exact arithmetic, where values are equal or wrong. `run` is the same without forced values; one that did not
// complete is not looked at.
IndependentFaults independent_faults(const IndependentFaultsInput& input, const ParallelRun& run);

}  // namespace shardproof
