#include "reference/field_compare.h"

#include <algorithm>

#include <fmt/format.h>

#include "reference/compare.h"
#include "reference/field_device.h"

namespace shardproof {

ExactComparison compare_exact(const Tensor& actual, const Tensor& expected) {
  ExactComparison result;
  if (!(actual.shape() == expected.shape())) {
    result.shape_problem = fmt::format("shape {}, expected {}", actual.shape().text(), expected.shape().text());
    result.differing = expected.numel();
    return result;
  }
  const std::vector<field::Value> a = field_elements(actual), e = field_elements(expected);
  std::int64_t first = -1, last = -1;
  for (std::size_t i = 0; i < e.size(); ++i) {
    const bool is_poisoned = field::is_poison(a[i]);
    if (a[i] == e[i] && !is_poisoned) continue;
    ++result.differing;
    if (is_poisoned) ++result.poisoned;
    last = static_cast<std::int64_t>(i);
    if (first < 0) first = last;
  }
  if (first >= 0) {
    result.first = index_of(first, expected.shape());
    result.last = index_of(last, expected.shape());
    result.first_actual = field_text(a[static_cast<std::size_t>(first)]);
    result.first_expected = field_text(e[static_cast<std::size_t>(first)]);
  }
  return result;
}

bool holds_poison(const Tensor& tensor) {
  const std::vector<field::Value> elements = field_elements(tensor);
  return std::any_of(elements.begin(), elements.end(), [](const field::Value& x) { return field::is_poison(x); });
}

}  // namespace shardproof
