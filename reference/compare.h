// Comparison of tensors as doubles: the figures of the verdict table. What is not a number counts as infinite
// difference, on either side or on both, so that poison and overflow never pass. Source: verification specification,
// sections 1, 4.3, 5.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace shardproof {

struct Comparison {
  // Empty, or "shape [2, 3], expected [2, 4]"; then all other figures are infinite.
  std::string shape_problem;
  double max_abs = 0.0;                 // largest |actual - expected|
  double max_abs_expected = 0.0;        // largest finite |expected|
  double relative = 0.0;                // max_abs / max_abs_expected (0/0 = 0)
  double normalised_mean_square = 0.0;  // sum of squared differences / sum of squared expected values
  std::int64_t differing = 0;           // elements that are not equal
  std::vector<std::int64_t> first;      // index of the first element that differs; empty if none
  std::vector<std::int64_t> last;
  std::vector<std::int64_t> worst;  // index of the largest difference; empty if none differs
  bool equal() const { return shape_problem.empty() && differing == 0; }
};

// Equal infinities count as equal; everything else is compared by difference.
Comparison compare(const Tensor& actual, const Tensor& expected);

// True if every element is a finite number.
bool is_finite(const Tensor& tensor);
// True if there are several elements and all have the same value.
bool is_constant(const Tensor& tensor);

// max_abs / allowed: the share of an allowed error that was used; infinite if nothing is allowed and something differs.
double share_of_allowed(const Comparison& comparison, double allowed);

// Rounding of the production type, section 5: the error of the parallel run against `reference` (float64 with the same
// tables), divided by that of the dense run in the same type, at least u times the largest |reference|.
struct RoundingRatio {
  double ratio = 0.0;
  double parallel_error = 0.0;
  double dense_error = 0.0;
};
RoundingRatio rounding_ratio(const Tensor& parallel, const Tensor& dense, const Tensor& reference,
                             double unit_roundoff);

// 2^-53, 2^-24, 2^-8, 2^-11 for float64, float32, bfloat16, float16.
double unit_roundoff(DType dtype);

// The index of an element by its number in row-major order.
std::vector<std::int64_t> index_of(std::int64_t element, const Shape& shape);
// "[0, 3, 7]".
std::string index_text(std::span<const std::int64_t> index);

}  // namespace shardproof
