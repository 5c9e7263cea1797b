// Weights and inputs of exact arithmetic: uniform residues in the shapes that a model and a case have, each a function
// of (seed, name, index). What is no value (masks, indices, coordinates, settings) stays the case's.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/module.h"
#include "models/state.h"
#include "reference/field_device.h"

namespace shardproof {

// Every parameter that the tree declares, by its path.
ModelState random_field_state(Module& tree, FieldDevice& device, std::uint64_t seed);

// Draws the arguments anew that the module declares as values; `prefix` stands before their names.
void draw_field_values(Arguments& arguments, const Module& tree, FieldDevice& device, std::uint64_t seed,
                       std::string_view prefix);

}  // namespace shardproof
