#include "verify/signature.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include <fmt/format.h>

namespace shardproof {
namespace {

using Row = std::span<const double>;

// Rows are compared one by one with all others.
constexpr std::size_t kMostRows = 2048;

class Table {
 public:
  explicit Table(const SignatureInput& input) : input_(input), rows_(input.actual.size() / input.channels) {
    for (std::size_t row = 0; row < rows_; ++row) {
      if (!are_equal(row_of(input.actual, row), row_of(input.expected, row))) wrong_.push_back(row);
    }
  }

  std::string zero_rows() const {
    const auto is_zero = [&](std::size_t row) {
      return std::ranges::all_of(row_of(input_.actual, row), [](double value) { return value == 0.0; });
    };
    if (wrong_.empty() || !std::ranges::all_of(wrong_, is_zero)) return {};
    return "rows of zeros: what should fill them never arrived, or was never computed";
  }

  std::string rows_of_other_places() const {
    if (wrong_.empty() || input_.whole.empty() || input_.whole.size() / input_.channels > kMostRows) return {};
    std::string first;
    for (const std::size_t row : wrong_) {
      const std::optional<std::size_t> place = place_of(row_of(input_.actual, row));
      if (!place) return {};
      if (first.empty()) first = fmt::format("row {} has row {} of the whole", row, *place);
    }
    return fmt::format("rows of other places: {}; what was divided or joined is in another order", first);
  }

  std::string constant_factor() const {
    if (!input_.are_numbers || wrong_.empty()) return {};
    std::size_t largest = 0;
    for (std::size_t i = 0; i < input_.expected.size(); ++i) {
      if (is_wrong(i) && std::abs(input_.expected[i]) > std::abs(input_.expected[largest])) largest = i;
    }
    const double factor = input_.actual[largest] / input_.expected[largest];
    if (!std::isfinite(factor) || std::abs(factor) < 1e-6) return {};
    for (std::size_t i = 0; i < input_.expected.size(); ++i) {
      if (is_wrong(i) && !(std::abs(input_.actual[i] - factor * input_.expected[i]) <= allowed(factor))) return {};
    }
    const auto is_near = [&](double value) { return std::abs(factor - value) <= 1e-9 * value; };
    const char* what = is_near(input_.ranks)         ? ", the number of ranks: a sum of what was whole already"
                       : is_near(1.0 / input_.ranks) ? ", one over the number of ranks: a mean in place of a sum"
                                                     : ": a scale that is counted twice, or not at all";
    return fmt::format("a constant factor of {:.6g}{}", factor, what);
  }

  std::string constant_row() const {
    if (!input_.are_numbers || wrong_.size() < 2 || wrong_.size() != rows_) return {};
    for (std::size_t i = 0; i < input_.actual.size(); ++i) {
      const std::size_t first = i % input_.channels;
      const double difference = input_.actual[i] - input_.expected[i];
      if (!(std::abs(difference - (input_.actual[first] - input_.expected[first])) <= allowed(1.0))) return {};
    }
    return "the same vector too much in every row: a bias that is counted several times, or not at all";
  }

 private:
  Row row_of(const std::vector<double>& values, std::size_t row) const {
    return std::span(values).subspan(row * input_.channels, input_.channels);
  }
  bool are_equal(Row a, Row b) const {
    return std::ranges::equal(a, b, [&](double x, double y) { return std::abs(x - y) <= input_.allowed; });
  }
  bool is_wrong(std::size_t i) const { return std::ranges::binary_search(wrong_, i / input_.channels); }
  // Rounding of both sides.
  double allowed(double factor) const { return 8.0 * std::max(1.0, std::abs(factor)) * input_.allowed; }
  std::optional<std::size_t> place_of(Row row) const {
    for (std::size_t place = 0; place < input_.whole.size() / input_.channels; ++place) {
      if (are_equal(row, row_of(input_.whole, place))) return place;
    }
    return std::nullopt;
  }

  const SignatureInput& input_;
  std::size_t rows_;
  std::vector<std::size_t> wrong_;  // ascending
};

}  // namespace

std::string signature_of(const SignatureInput& input) {
  if (input.channels == 0 || input.actual.size() != input.expected.size()) return {};
  const Table table(input);
  for (const std::string& text :
       {table.zero_rows(), table.rows_of_other_places(), table.constant_factor(), table.constant_row()}) {
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace shardproof
