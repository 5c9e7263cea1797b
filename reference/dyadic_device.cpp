#include "reference/dyadic_device.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/host_memory.h"

namespace shardproof {
namespace {

// What attention returns for one element, and in the place of a log-sum-exp.
template <class Real>
struct Sum {
  Real values = 0, weights = 0;
};
template <class Real>
struct Mass {
  Real weights = 0, maximum = -std::numeric_limits<Real>::infinity();
};

template <class Real>
DType registered(const char* name) {
  const std::string value(name);
  const DType type = register_dtype({value, sizeof(Real), DTypeCategory::exact});
  set_related_dtypes(type, register_dtype({value + "_sum", sizeof(Sum<Real>), DTypeCategory::exact}),
                     register_dtype({value + "_mass", sizeof(Mass<Real>), DTypeCategory::log_mass}));
  return type;
}

DType of_float64() {
  static const DType type = registered<double>("dyadic_float64");
  return type;
}
DType of_float32() {
  static const DType type = registered<float>("dyadic_float32");
  return type;
}

template <class T>
T& at(const Tensor& x, std::int64_t i, std::int64_t j, std::int64_t k, std::int64_t last = 0) {
  const Strides& stride = x.strides();
  std::int64_t offset = i * stride[0] + j * stride[1] + k * stride[2];
  if (x.rank() > 3) offset += last * stride[3];
  return x.data_as<T>()[offset];
}

// x times 2^exponent; 0 for an exponent of -inf.
template <class Real>
Real scaled(Real x, Real exponent) {
  return std::isinf(exponent) ? Real{0} : std::ldexp(x, static_cast<int>(exponent));
}

// The rows of [batch, tokens, heads].
template <class Body>
void for_each_row(const Shape& shape, const Body& body) {
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t t = 0; t < shape[1]; ++t) {
      for (std::int64_t h = 0; h < shape[2]; ++h) body(b, t, h);
    }
  }
}

template <class Real>
void attend(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
  const std::int64_t keys = k.size(1), width = q.size(3);
  std::vector<Real> logits(static_cast<std::size_t>(keys));
  for_each_row(dst.lse.shape(), [&](std::int64_t b, std::int64_t t, std::int64_t h) {
    Mass<Real> mass;
    for (std::int64_t j = 0; j < keys; ++j) {
      Real logit = 0;
      for (std::int64_t c = 0; c < width; ++c) logit += at<Real>(q, b, t, h, c) * at<Real>(k, b, j, h, c);
      if (mask.defined() && !at<bool>(mask, b, h, t, j)) logit = -std::numeric_limits<Real>::infinity();
      logits[static_cast<std::size_t>(j)] = logit;
      mass.maximum = std::max(mass.maximum, logit);
    }
    for (std::int64_t c = 0; c < width; ++c) {
      Sum<Real> sum;
      for (std::int64_t j = 0; j < keys; ++j) {
        const Real logit = logits[static_cast<std::size_t>(j)];
        if (std::isinf(logit)) continue;
        sum.values += scaled(at<Real>(v, b, j, h, c), logit - mass.maximum);
        sum.weights += scaled(Real{1}, logit - mass.maximum);
      }
      mass.weights = sum.weights;
      at<Sum<Real>>(dst.out, b, t, h, c) = sum;
    }
    at<Mass<Real>>(dst.lse, b, t, h) = mass;
  });
}

template <class Real>
void merge(const AttentionOutput& dst, const AttentionOutput& a, const AttentionOutput& b) {
  for_each_row(dst.lse.shape(), [&](std::int64_t i, std::int64_t t, std::int64_t h) {
    const Mass<Real> of_a = at<Mass<Real>>(a.lse, i, t, h), of_b = at<Mass<Real>>(b.lse, i, t, h);
    Mass<Real> mass{0, std::max(of_a.maximum, of_b.maximum)};
    const auto relative = [&](const Mass<Real>& part) {
      return std::isinf(part.maximum) ? part.maximum : part.maximum - mass.maximum;
    };
    const Real shift_a = relative(of_a), shift_b = relative(of_b);
    mass.weights = scaled(of_a.weights, shift_a) + scaled(of_b.weights, shift_b);
    for (std::int64_t c = 0; c < dst.out.size(3); ++c) {
      const Sum<Real>& from_a = at<Sum<Real>>(a.out, i, t, h, c);
      const Sum<Real>& from_b = at<Sum<Real>>(b.out, i, t, h, c);
      at<Sum<Real>>(dst.out, i, t, h, c) = {scaled(from_a.values, shift_a) + scaled(from_b.values, shift_b),
                                            scaled(from_a.weights, shift_a) + scaled(from_b.weights, shift_b)};
    }
    at<Mass<Real>>(dst.lse, i, t, h) = mass;
  });
}

class DyadicDevice final : public HostDevice {
  std::string_view do_name() const override { return "dyadic"; }
  bool do_supports(DType dtype) const override {
    const auto is_of = [dtype](DType value) {
      return dtype == value || dtype == wide_dtype(value) || dtype == log_dtype(value);
    };
    return dtype == kBool || is_of(of_float64()) || is_of(of_float32());
  }

  void do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    double scale) override {
    SHARDPROOF_CHECK(scale == 1.0, unsupported_error, "dyadic attention takes integer logits and scale 1, not {}",
                     scale);
    q.dtype() == of_float64() ? attend<double>(dst, q, k, v, mask) : attend<float>(dst, q, k, v, mask);
  }

  bool do_fuses_softmax_merge(DType out, DType) const override {
    return out == wide_dtype(of_float64()) || out == wide_dtype(of_float32());
  }

  void do_softmax_merge(const AttentionOutput& dst, const AttentionOutput& a, const AttentionOutput& b) override {
    a.out.dtype() == wide_dtype(of_float64()) ? merge<double>(dst, a, b) : merge<float>(dst, a, b);
  }

  // The cast that ends attention is its one division.
  void do_copy(const Tensor& dst, const Tensor& src) override {
    if (dst.dtype() == of_float64() && src.dtype() == wide_dtype(of_float64())) return divide<double>(dst, src);
    if (dst.dtype() == of_float32() && src.dtype() == wide_dtype(of_float32())) return divide<float>(dst, src);
    HostDevice::do_copy(dst, src);
  }

  template <class Real>
  static void divide(const Tensor& dst, const Tensor& src) {
    SHARDPROOF_CHECK(dst.rank() == 4, unsupported_error, "dyadic division of {}: expected four axes", src.text());
    for_each_row(dst.shape(), [&](std::int64_t b, std::int64_t t, std::int64_t h) {
      for (std::int64_t c = 0; c < dst.size(3); ++c) {
        const Sum<Real>& sum = at<Sum<Real>>(src, b, t, h, c);
        at<Real>(dst, b, t, h, c) = sum.weights == 0 ? Real{0} : sum.values / sum.weights;
      }
    });
  }
};

}  // namespace

DType dyadic_dtype(DType real) {
  SHARDPROOF_CHECK(real == kFloat64 || real == kFloat32, type_error,
                   "no dyadic values of {}; expected float64 or float32", real.name());
  return real == kFloat64 ? of_float64() : of_float32();
}

int dyadic_precision(DType real) {
  return dyadic_dtype(real) == of_float64() ? std::numeric_limits<double>::digits : std::numeric_limits<float>::digits;
}

std::unique_ptr<Device> make_dyadic_device() {
  dyadic_dtype(kFloat64);
  dyadic_dtype(kFloat32);
  return std::make_unique<DyadicDevice>();
}

}  // namespace shardproof
