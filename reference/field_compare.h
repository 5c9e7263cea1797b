// Comparison of tensors of exact arithmetic: elements are equal or not, in both residues. Poison never passes, not even
// where both sides are poison.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace shardproof {

struct ExactComparison {
  // Empty, or "shape [2, 3], expected [2, 4]"; then all elements count as different.
  std::string shape_problem;
  std::int64_t differing = 0;       // elements that are not equal, or poison
  std::int64_t poisoned = 0;        // of them, those that are poison in `actual`
  std::vector<std::int64_t> first;  // index of the first element that differs; empty if none
  std::vector<std::int64_t> last;
  std::string first_actual;  // "17:4" or "poison"
  std::string first_expected;
  bool equal() const { return shape_problem.empty() && differing == 0; }
};

ExactComparison compare_exact(const Tensor& actual, const Tensor& expected);
// True if any element is poison.
bool holds_poison(const Tensor& tensor);

}  // namespace shardproof
