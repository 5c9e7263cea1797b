#include "tests/support/host_array.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/ops.h"
#include "core/random.h"

namespace shardproof::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double difference(double a, double b) {
  if (a == b) return 0.0;
  const double distance = std::abs(a - b);
  return std::isnan(distance) ? kInfinity : distance;
}

// One row: queries [d], keys of one head and item.
class Row {
 public:
  Row(const HostArray& q, const HostArray& k, const HostArray& v, const HostArray& bias, double scale)
      : q_(q), k_(k), v_(v), bias_(bias), scale_(scale), logits_(static_cast<std::size_t>(k.shape[1])) {}

  // Fills out.at({b, i, h, ..}) and returns the log-sum-exp.
  double compute(std::int64_t b, std::int64_t i, std::int64_t h, HostArray& out) {
    const double maximum = fill_logits(b, i, h);
    if (maximum == -kInfinity) return -kInfinity;
    double sum = 0;
    for (double& logit : logits_) sum += logit = std::exp(logit - maximum);
    for (std::int64_t c = 0; c < q_.shape[3]; ++c) {
      double mean = 0;
      for (std::size_t j = 0; j < logits_.size(); ++j)
        mean += logits_[j] * v_.at({b, static_cast<std::int64_t>(j), h, c});
      out.at({b, i, h, c}) = mean / sum;
    }
    return maximum + std::log(sum);
  }

 private:
  double fill_logits(std::int64_t b, std::int64_t i, std::int64_t h) {
    double maximum = -kInfinity;
    for (std::size_t index = 0; index < logits_.size(); ++index) {
      const auto j = static_cast<std::int64_t>(index);
      double logit = 0;
      for (std::int64_t c = 0; c < q_.shape[3]; ++c) logit += q_.at({b, i, h, c}) * k_.at({b, j, h, c});
      logits_[index] = logit * scale_ + bias_at(b, i, h, j);
      maximum = std::max(maximum, logits_[index]);
    }
    return maximum;
  }
  double bias_at(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t j) const {
    if (bias_.empty()) return 0.0;
    const auto entry = [&](int axis, std::int64_t index) { return bias_.shape[axis] == 1 ? 0 : index; };
    return bias_.at({entry(0, b), entry(1, h), entry(2, i), j});
  }

  const HostArray& q_;
  const HostArray& k_;
  const HostArray& v_;
  const HostArray& bias_;
  double scale_;
  std::vector<double> logits_;
};

}  // namespace

std::size_t HostArray::offset(std::initializer_list<std::int64_t> index) const {
  std::int64_t result = 0;
  int axis = 0;
  for (const std::int64_t i : index) result = result * shape[axis++] + i;
  return static_cast<std::size_t>(result);
}

HostArray random_array(const Shape& shape, std::uint64_t seed, std::string_view name, double deviation) {
  HostArray array(shape);
  RandomStream(seed, name).fill_normal(array.values);
  for (double& value : array.values) value *= deviation;
  return array;
}

HostArray identifiers(const Shape& shape) {
  HostArray array(shape);
  std::iota(array.values.begin(), array.values.end(), 0.0);
  return array;
}

HostArray selected(const HostArray& array, int axis, std::span<const std::int64_t> indices) {
  Shape shape = array.shape;
  std::int64_t inner = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  const std::int64_t outer = shape[axis] == 0 ? 0 : shape.numel() / (inner * shape[axis]);
  shape[axis] = static_cast<std::int64_t>(indices.size());
  HostArray result;
  result.shape = shape;
  for (std::int64_t o = 0; o < outer; ++o) {
    for (const std::int64_t index : indices) {
      const auto from = array.values.begin() + (o * array.shape[axis] + index) * inner;
      result.values.insert(result.values.end(), from, from + inner);
    }
  }
  return result;
}

void assign(HostArray& array, int axis, std::span<const std::int64_t> indices, const HostArray& part) {
  std::int64_t inner = 1, outer = 1;
  for (int i = 0; i < axis; ++i) outer *= array.shape[i];
  for (int i = axis + 1; i < array.shape.rank(); ++i) inner *= array.shape[i];
  auto from = part.values.begin();
  for (std::int64_t o = 0; o < outer; ++o) {
    for (const std::int64_t index : indices) {
      std::copy(from, from + inner, array.values.begin() + (o * array.shape[axis] + index) * inner);
      from += inner;
    }
  }
}

HostArray joined(const HostArray& a, const HostArray& b, int axis) {
  Shape shape = a.shape;
  shape[axis] += b.shape[axis];
  HostArray result(shape);
  std::vector<std::int64_t> at(static_cast<std::size_t>(shape[axis]));
  std::iota(at.begin(), at.end(), 0);
  const auto boundary = static_cast<std::size_t>(a.shape[axis]);
  assign(result, axis, std::span(at).first(boundary), a);
  assign(result, axis, std::span(at).subspan(boundary), b);
  return result;
}

HostArray to_host(const Tensor& tensor) {
  HostArray array;
  array.shape = tensor.shape();
  array.values = ops::to_doubles(tensor);
  return array;
}

Tensor to_device(Device& device, const HostArray& array, DType dtype) {
  return ops::from_doubles(device, array.values, array.shape, dtype);
}

double max_difference(const HostArray& a, const HostArray& b) {
  if (!(a.shape == b.shape)) return kInfinity;
  double worst = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) worst = std::max(worst, difference(a.values[i], b.values[i]));
  return worst;
}

double max_magnitude(const HostArray& array) {
  double largest = 0;
  for (const double value : array.values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

bool bitwise_equal(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) return false;
  const Tensor x = ops::contiguous(a), y = ops::contiguous(b);
  return x.bytes() == 0 || std::memcmp(x.data(), y.data(), x.bytes()) == 0;
}

DenseAttention dense_attention(const HostArray& q, const HostArray& k, const HostArray& v, const HostArray& bias,
                               double scale) {
  DenseAttention result{HostArray(q.shape), HostArray({q.shape[0], q.shape[1], q.shape[2]})};
  Row row(q, k, v, bias, scale);
  for (std::int64_t b = 0; b < q.shape[0]; ++b) {
    for (std::int64_t i = 0; i < q.shape[1]; ++i) {
      for (std::int64_t h = 0; h < q.shape[2]; ++h) result.lse.at({b, i, h}) = row.compute(b, i, h, result.out);
    }
  }
  return result;
}

}  // namespace shardproof::test
