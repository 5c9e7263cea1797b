#include "reference/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"
#include "core/ops.h"

namespace shardproof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Equal infinities differ by nothing; anything that is not a number differs infinitely.
double difference(double actual, double expected) {
  if (std::isnan(actual) || std::isnan(expected)) return kInfinity;
  return actual == expected ? 0.0 : std::abs(actual - expected);
}

Comparison shape_mismatch(const Tensor& actual, const Tensor& expected) {
  Comparison result;
  result.shape_problem = fmt::format("shape {}, expected {}", actual.shape().text(), expected.shape().text());
  result.max_abs = result.relative = result.normalised_mean_square = kInfinity;
  result.differing = expected.numel();
  return result;
}

}  // namespace

std::vector<std::int64_t> index_of(std::int64_t element, const Shape& shape) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[static_cast<std::size_t>(axis)] = element % shape[axis];
    element /= shape[axis];
  }
  return index;
}

Comparison compare(const Tensor& actual, const Tensor& expected) {
  if (!(actual.shape() == expected.shape())) return shape_mismatch(actual, expected);
  const std::vector<double> a = ops::to_doubles(actual);
  const std::vector<double> e = ops::to_doubles(expected);
  Comparison result;
  double squared_difference = 0.0, squared_expected = 0.0;
  std::int64_t first = -1, last = -1, worst = -1;
  for (std::size_t i = 0; i < e.size(); ++i) {
    const double d = difference(a[i], e[i]);
    if (std::isfinite(e[i])) {
      result.max_abs_expected = std::max(result.max_abs_expected, std::abs(e[i]));
      squared_expected += e[i] * e[i];
    }
    squared_difference += d * d;
    if (d == 0.0) continue;
    const auto element = static_cast<std::int64_t>(i);
    ++result.differing;
    if (first < 0) first = element;
    last = element;
    if (worst < 0 || d > result.max_abs) worst = element;
    result.max_abs = std::max(result.max_abs, d);
  }
  if (first >= 0) {
    result.first = index_of(first, expected.shape());
    result.last = index_of(last, expected.shape());
    result.worst = index_of(worst, expected.shape());
    result.relative = result.max_abs_expected > 0.0 ? result.max_abs / result.max_abs_expected : kInfinity;
    result.normalised_mean_square = squared_expected > 0.0 ? squared_difference / squared_expected : kInfinity;
  }
  return result;
}

bool is_finite(const Tensor& tensor) {
  const std::vector<double> values = ops::to_doubles(tensor);
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

bool is_constant(const Tensor& tensor) {
  const std::vector<double> values = ops::to_doubles(tensor);
  return values.size() > 1 &&
         std::all_of(values.begin(), values.end(), [&](double value) { return value == values.front(); });
}

double share_of_allowed(const Comparison& comparison, double allowed) {
  if (comparison.max_abs == 0.0) return 0.0;
  return allowed > 0.0 ? comparison.max_abs / allowed : kInfinity;
}

RoundingRatio rounding_ratio(const Tensor& parallel, const Tensor& dense, const Tensor& reference,
                             double unit_roundoff) {
  const Comparison of_parallel = compare(parallel, reference);
  const Comparison of_dense = compare(dense, reference);
  const double floor = unit_roundoff * of_parallel.max_abs_expected;
  const double denominator = std::max(of_dense.max_abs, floor);
  RoundingRatio result{0.0, of_parallel.max_abs, of_dense.max_abs};
  if (of_parallel.max_abs > 0.0) result.ratio = denominator > 0.0 ? of_parallel.max_abs / denominator : kInfinity;
  if (!std::isfinite(of_parallel.max_abs)) result.ratio = kInfinity;
  return result;
}

double unit_roundoff(DType dtype) {
  if (dtype == kFloat64) return 0x1p-53;
  if (dtype == kFloat32) return 0x1p-24;
  if (dtype == kBFloat16) return 0x1p-8;
  if (dtype == kFloat16) return 0x1p-11;
  fail(ErrorKind::type_error, "element type {} has no unit roundoff", dtype.name());
}

std::string index_text(std::span<const std::int64_t> index) { return fmt::format("[{}]", fmt::join(index, ", ")); }

}  // namespace shardproof
