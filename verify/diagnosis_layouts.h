// Which part of a dense tensor a rank's tensor can be, told from sizes, and how far it is that part: the elements that
// are wrong, where they stand along each axis, and what they look like.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/ops.h"
#include "core/tensor.h"
#include "verify/rank_parts.h"

namespace shardproof {

// The elements of a tensor in row-major order, to be compared and shown.
class Elements {
 public:
  explicit Elements(const Tensor& tensor) : dtype_(tensor.dtype()), shape_(tensor.shape()) {
    if (dtype_.category() == DTypeCategory::floating) {
      numbers_ = ops::to_doubles(tensor);
      return;
    }
    bytes_.resize(tensor.bytes());
    tensor.device().download(bytes_, tensor);
  }
  const Shape& shape() const { return shape_; }
  double largest() const {
    double largest = 0.0;
    for (const double number : numbers_) {
      if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
    }
    return largest;
  }
  // How far apart two elements are; 0 within `allowed`.
  double distance(std::int64_t at, const Elements& other, std::int64_t at_other, double allowed) const {
    if (!numbers_.empty()) {
      const double a = numbers_[static_cast<std::size_t>(at)], b = other.numbers_[static_cast<std::size_t>(at_other)];
      if (a == b) return 0.0;
      const double difference = std::abs(a - b);
      return difference <= allowed ? 0.0 : std::isnan(difference) ? HUGE_VAL : difference;
    }
    const std::size_t size = dtype_.size();
    const bool equal = std::memcmp(&bytes_[static_cast<std::size_t>(at) * size],
                                   &other.bytes_[static_cast<std::size_t>(at_other) * size], size) == 0;
    return equal ? 0.0 : 1.0;
  }
  bool are_numbers() const { return !numbers_.empty(); }
  // The number, or one that stands for the value: 0 for zero, for others the order in which they were first seen.
  double number(std::int64_t at, std::map<std::string, double>& names) const {
    if (are_numbers()) return numbers_[static_cast<std::size_t>(at)];
    const std::size_t size = dtype_.size();
    const std::string value(reinterpret_cast<const char*>(&bytes_[static_cast<std::size_t>(at) * size]), size);
    if (value.find_first_not_of('\0') == std::string::npos) return 0.0;
    return names.emplace(value, static_cast<double>(names.size() + 1)).first->second;
  }
  std::string text(std::int64_t at) const {
    if (!numbers_.empty()) return fmt::format("{}", numbers_[static_cast<std::size_t>(at)]);
    const std::size_t size = dtype_.size();
    return fmt::format("0x{:02x}",
                       fmt::join(std::span(reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size())
                                     .subspan(static_cast<std::size_t>(at) * size, size),
                                 ""));
  }

 private:
  DType dtype_;
  Shape shape_;
  std::vector<double> numbers_;
  std::vector<std::byte> bytes_;
};

// For each axis, the entries of the dense tensor that the rank's tensor is to hold, in order.
struct Layout {
  std::string text;
  std::vector<std::vector<std::int64_t>> entries;
};

// Lengths of pieces that stand one after the other along an axis and are each divided by themselves.
using Streams = std::set<std::vector<std::int64_t>>;

// How an axis may be divided: as a whole or in streams; one of the total of a packed layer's blocks in these only.
struct Divisions {
  Streams streams;
  std::vector<std::int64_t> packed = {};
};

// All layouts by which a tensor of shape `local` can be a rank's part of one of shape `dense`; several where sizes do
// not tell them apart.
std::vector<Layout> possible_layouts(const Shape& dense, const Shape& local, const RankPlaces& places,
                                     const Divisions& divisions);

// A pattern of verify/signature.h; empty if it looks like none.
std::string looks_like(const Layout& layout, const Elements& dense, const Elements& local, double allowed, int ranks);

struct Mismatch {
  std::int64_t wrong = 0;
  std::int64_t worst = 0, worst_dense = 0;
  std::vector<std::vector<bool>> places;  // by axis: whether any element there is wrong
};

Mismatch mismatch_under(const Layout& layout, const Elements& dense, const Elements& local, double allowed);

// "3 of 24 elements, axis 1: 4 to 6 of 7 (the tail)".
std::string extent_of(const Mismatch& mismatch, std::int64_t elements);

}  // namespace shardproof
