// The configurations in which faults are looked for: a model with inputs made to expose faults, and a way of running it
// in parallel. Small ones come first, so that the first that kills a fault is the smallest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_type.h"
#include "parallel/config.h"
#include "verify/subject.h"

namespace shardproof::zoo {

struct Scenario {
  std::string model;  // short name, or "layer": attention alone (see layer_model.h)
  std::string case_name;
  ParallelConfig config;
  std::int64_t size = 0;  // elements of all inputs
  int ranks = 0;
  // "flux shortest, ring ring=2,ulysses=1, alltoall".
  std::string text() const;
};

ModelType model_named(std::string_view name);

// Modes: ring, ring_anything, ulysses, ulysses_anything, unified, tp, tp+ring, tp+ulysses. usage_error for another
// word.
std::vector<ParallelConfig> configurations_of_mode(std::string_view mode);

// Every case of every model in every configuration of every mode, both lists separated by blanks: fewest ranks first,
// then fewest elements.
std::vector<Scenario> scenarios(std::string_view models, std::string_view modes, std::uint64_t seed);

std::vector<std::string> words_of(std::string_view text);

}  // namespace shardproof::zoo
