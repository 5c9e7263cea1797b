#include "reference/eigen_device.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "reference/eigen_device_body.h"

namespace shardproof {

// The formulas of real numbers, for double and float.
template <class Real>
struct RealRules {
  using Vector = Eigen::Matrix<Real, Eigen::Dynamic, 1>;
  static constexpr Real kInfinity = std::numeric_limits<Real>::infinity();

  static bool holds(DType dtype) {
    return dtype == kFloat64 || dtype == kFloat32 || dtype == kBFloat16 || dtype == kFloat16 || dtype == kInt64 ||
           dtype == kBool;
  }
  static Real from_double(double x) { return static_cast<Real>(x); }
  static Real poison() { return poison_element<Real>(); }

  static Real unary(UnaryOp op, Real x) {
    switch (op) {
      case UnaryOp::silu: return x / (1 + std::exp(-x));
      case UnaryOp::gelu: return x * (1 + std::erf(x / std::numbers::sqrt2_v<Real>)) / 2;
      case UnaryOp::gelu_tanh: {
        // x (1 + tanh u) / 2, written with (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)): a fifth of a small run was tanh.
        const Real slope = std::sqrt(2 / std::numbers::pi_v<Real>);
        const Real u = slope * (x + static_cast<Real>(0.044715) * x * x * x);
        return x / (1 + std::exp(-2 * u));
      }
      case UnaryOp::sigmoid: return 1 / (1 + std::exp(-x));
      case UnaryOp::tanh: return std::tanh(x);
      case UnaryOp::rsqrt: return 1 / std::sqrt(x);
      case UnaryOp::clamp_finite:
        return std::isnan(x) ? x : std::clamp(x, std::numeric_limits<Real>::lowest(), std::numeric_limits<Real>::max());
    }
    fail(ErrorKind::internal_error, "unary operation {} does not exist", static_cast<int>(op));
  }

  static Real logaddexp(Real x, Real y) {
    if (x == -kInfinity) return y;
    if (y == -kInfinity) return x;
    return std::max(x, y) + std::log1p(std::exp(-std::abs(x - y)));
  }

  static Real binary(BinaryOp op, Real x, Real y) {
    switch (op) {
      case BinaryOp::add: return x + y;
      case BinaryOp::sub: return x - y;
      case BinaryOp::mul: return x * y;
      case BinaryOp::div: return x / y;
      case BinaryOp::logaddexp: return logaddexp(x, y);
      case BinaryOp::lse_weight: return x == -kInfinity && !std::isnan(y) ? Real{0} : 1 / (1 + std::exp(y - x));
    }
    fail(ErrorKind::internal_error, "binary operation {} does not exist", static_cast<int>(op));
  }

  static bool is_never(Real bias) { return bias == -kInfinity; }
  static bool is_empty(Real sum) { return sum == 0; }

  static Real softmax(Vector& row, const std::vector<bool>& attended, Real& lse) {
    Real maximum = -kInfinity;
    for (Eigen::Index key = 0; key < row.size(); ++key) {
      if (!attended[static_cast<std::size_t>(key)]) row[key] = -kInfinity;
      if (std::isnan(row[key]) || row[key] > maximum) maximum = row[key];
    }
    if (maximum == -kInfinity) {
      row.setZero();
      lse = -kInfinity;
      return 0;
    }
    Real sum = 0;
    for (Eigen::Index key = 0; key < row.size(); ++key) {
      row[key] = std::exp(row[key] - maximum);
      sum += row[key];
    }
    lse = maximum + std::log(sum);
    return sum;
  }
};

template <>
struct ScalarRules<double> : RealRules<double> {
  static std::string_view name() { return "reference float64"; }
  static bool computes(DType dtype) { return dtype == kFloat64; }
};

template <>
struct ScalarRules<float> : RealRules<float> {
  static std::string_view name() { return "reference float32"; }
  static bool computes(DType dtype) { return dtype == kFloat32; }
};

std::unique_ptr<Device> make_reference_device(DType value_type) {
  if (value_type == kFloat64) return std::make_unique<EigenDevice<double>>();
  if (value_type == kFloat32) return std::make_unique<EigenDevice<float>>();
  fail(ErrorKind::type_error, "the reference device computes in float64 or float32, not in {}", value_type.name());
}

}  // namespace shardproof
