#include "reference/field_device.h"

#include <atomic>
#include <span>
#include <type_traits>

#include <fmt/format.h>

#include "core/element_types.h"
#include "core/error.h"
#include "core/host_parallel.h"
#include "core/random.h"
#include "core/strided_loop.h"
#include "reference/field_functions.h"
#include "reference/field_kernels.h"

namespace shardproof {
namespace {

using field::Mass;
using field::Value;
using field::Wide;

struct FieldTypes {
  DType value = register_dtype({.name = "field", .size = sizeof(Value)});
  DType wide = register_dtype({.name = "field_wide", .size = sizeof(Wide)});
  DType log = register_dtype({.name = "field_log", .size = sizeof(Mass), .category = DTypeCategory::log_mass});

  FieldTypes() {
    set_related_dtypes(value, wide, log);
    set_related_dtypes(wide, wide, log);
    set_related_dtypes(log, wide, log);
  }
};

const FieldTypes& types() {
  static const FieldTypes kTypes;
  return kTypes;
}

bool is_field(DType dtype) { return dtype == types().value || dtype == types().wide || dtype == types().log; }

template <class Element>
Element spoilt() {
  return poison_element<Element>();
}

template <class Element>
Element image_of(double x) {
  if constexpr (std::is_same_v<Element, Value>) {
    return field::value_of(x);
  } else {
    return {field::value_of(x).a};
  }
}

[[noreturn]] void refuse(std::string_view what) {
  fail(ErrorKind::unsupported_error, "{}: not defined in exact arithmetic", what);
}

// dst[..] = function(x[..]), elements of any two types.
template <class To, class From, class Function>
void map(const Tensor& dst, const Tensor& x, const Function& function) {
  const StridedLoop<2> loop(dst.shape(), {&dst.strides(), &x.strides()});
  const std::int64_t count = loop.inner_size(), to = loop.inner_stride(0), from = loop.inner_stride(1);
  for_ranges(loop.rows(), count, [&](std::int64_t first, std::int64_t last) {
    loop.for_rows(first, last, [&](const StridedLoop<2>::Offsets& offset) {
      To* result = dst.data_as<To>() + offset[0];
      const From* value = x.data_as<From>() + offset[1];
      for (std::int64_t i = 0; i < count; ++i) result[i * to] = function(value[i * from]);
    });
  });
}

template <class To, class From, class Function>
void combine(const Tensor& dst, const Tensor& x, const Tensor& y, const Function& function) {
  const StridedLoop<3> loop(dst.shape(), {&dst.strides(), &x.strides(), &y.strides()});
  const std::int64_t count = loop.inner_size(), to = loop.inner_stride(0);
  const std::int64_t left_step = loop.inner_stride(1), right_step = loop.inner_stride(2);
  for_ranges(loop.rows(), count, [&](std::int64_t first, std::int64_t last) {
    loop.for_rows(first, last, [&](const StridedLoop<3>::Offsets& offset) {
      To* result = dst.data_as<To>() + offset[0];
      const From* left = x.data_as<From>() + offset[1];
      const From* right = y.data_as<From>() + offset[2];
      for (std::int64_t i = 0; i < count; ++i) result[i * to] = function(left[i * left_step], right[i * right_step]);
    });
  });
}

class FieldDeviceOfSeed final : public FieldDevice {
 public:
  FieldDeviceOfSeed(std::uint64_t seed, FieldCast cast) : functions_(seed), cast_(cast) {}
  std::int64_t zero_divisions() const override { return zero_divisions_.load(std::memory_order_relaxed); }

 private:
  std::string_view do_name() const override { return "field"; }
  void do_copy(const Tensor& dst, const Tensor& src) override;
  void do_fill(const Tensor& dst, double value) override;
  void do_unary(UnaryOp op, const Tensor& dst, const Tensor& x) override;
  void do_binary(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) override;
  void do_matmul(const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) override;
  void do_reduce(ReduceOp op, const Tensor& dst, const Tensor& x) override;
  void do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    double scale) override;
  bool do_takes_angles(DType dtype) const override { return dtype == types().value || dtype == types().wide; }
  void do_angle_function(AngleFunction function, const Tensor& dst, std::span<const double> angles) override;

  void import(const Tensor& dst, const Tensor& src);
  template <class Element>
  void binary_of(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y);
  template <class Element>
  void reduce_of(ReduceOp op, const Tensor& dst, const Tensor& x);
  template <class Element>
  Element quotient(const Element& x, const Element& y);
  Wide weight(Mass x, Mass y);
  static void check_computes(const Tensor& x, std::string_view operation) {
    SHARDPROOF_CHECK(is_field(x.dtype()), type_error,
                     "{}: device 'field' holds {} for conversion only, it does not compute with {}", operation,
                     x.text(), x.dtype().name());
  }

  field::Functions functions_;
  FieldCast cast_;
  std::atomic<std::int64_t> zero_divisions_{0};
};

// Exact images of plain numbers.
void FieldDeviceOfSeed::import(const Tensor& dst, const Tensor& src) {
  visit_plain_dtype(src.dtype(), "conversion", [&](auto type) {
    using From = typename decltype(type)::type;
    const auto image = [](From x) {
      if constexpr (std::is_same_v<From, Bool8>) {
        return x.byte > 1 ? field::kPoisonValue : Value{x.byte, x.byte};
      } else {
        return field::value_of(convert_element<double>(x));
      }
    };
    if (dst.dtype() == types().value) return map<Value, From>(dst, src, image);
    map<Wide, From>(dst, src, [&](From x) { return Wide{image(x).a}; });
  });
}

void FieldDeviceOfSeed::do_copy(const Tensor& dst, const Tensor& src) {
  const DType from = src.dtype(), to = dst.dtype();
  if (from == to || (!is_field(from) && !is_field(to))) return HostDevice::do_copy(dst, src);
  if (from == types().log || to == types().log || !is_field(to))
    refuse(fmt::format("conversion of {} to {}", from.name(), to.name()));
  if (!is_field(from)) return import(dst, src);
  if (to == types().wide) {
    return map<Wide, Value>(dst, src, [](const Value& x) { return is_poison(x) ? field::kPoisonWide : Wide{x.a}; });
  }
  map<Value, Wide>(dst, src, [&](Wide x) {
    if (is_poison(x)) return field::kPoisonValue;
    const Value hashed = functions_.cast(x);
    return cast_ == FieldCast::hashed ? hashed : Value{x.a, hashed.b};
  });
}

void FieldDeviceOfSeed::do_fill(const Tensor& dst, double value) {
  if (!is_field(dst.dtype())) return HostDevice::do_fill(dst, value);
  const Value image = field::value_of(value);
  if (dst.dtype() == types().value) return map<Value, Value>(dst, dst, [&](const Value&) { return image; });
  if (dst.dtype() == types().wide) return map<Wide, Wide>(dst, dst, [&](Wide) { return Wide{image.a}; });
  // The log-sum-exp of no keys is the only one whose mass is a number.
  if (!is_never(image)) refuse(fmt::format("fill: log-sum-exp {}", value));
  map<Mass, Mass>(dst, dst, [](Mass) { return Mass{0}; });
}

void FieldDeviceOfSeed::do_unary(UnaryOp op, const Tensor& dst, const Tensor& x) {
  check_computes(x, op_name(op));
  if (op == UnaryOp::clamp_finite) refuse(op_name(op));
  if (x.dtype() == types().value) {
    return map<Value, Value>(dst, x,
                             [&](const Value& e) { return is_poison(e) ? spoilt<Value>() : functions_.unary(op, e); });
  }
  map<Wide, Wide>(dst, x, [&](Wide e) { return is_poison(e) ? spoilt<Wide>() : functions_.unary(op, e); });
}

template <class Element>
Element FieldDeviceOfSeed::quotient(const Element& x, const Element& y) {
  if (is_poison(x) || is_poison(y)) return spoilt<Element>();
  if (has_inverse(y)) return multiply(x, inverse(y));
  zero_divisions_.fetch_add(1, std::memory_order_relaxed);
  return spoilt<Element>();
}

// Lx / (Lx + Ly).
Wide FieldDeviceOfSeed::weight(Mass x, Mass y) {
  if (is_poison(x) || is_poison(y)) return spoilt<Wide>();
  if (x.a == 0) return {0};
  return quotient(Wide{x.a}, add(Wide{x.a}, Wide{y.a}));
}

template <class Element>
void FieldDeviceOfSeed::binary_of(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) {
  const auto unless_poison = [](const auto& function) {
    return [function](const Element& l, const Element& r) {
      return is_poison(l) || is_poison(r) ? spoilt<Element>() : function(l, r);
    };
  };
  switch (op) {
    case BinaryOp::add:
      return combine<Element, Element>(dst, x, y,
                                       unless_poison([](const Element& l, const Element& r) { return add(l, r); }));
    case BinaryOp::sub:
      return combine<Element, Element>(
          dst, x, y, unless_poison([](const Element& l, const Element& r) { return subtract(l, r); }));
    case BinaryOp::mul:
      return combine<Element, Element>(
          dst, x, y, unless_poison([](const Element& l, const Element& r) { return multiply(l, r); }));
    default:
      return combine<Element, Element>(dst, x, y, [&](const Element& l, const Element& r) { return quotient(l, r); });
  }
}

void FieldDeviceOfSeed::do_binary(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) {
  check_computes(x, op_name(op));
  if (op == BinaryOp::logaddexp) {
    return combine<Mass, Mass>(dst, x, y, [](Mass l, Mass r) {
      return is_poison(l) || is_poison(r) ? spoilt<Mass>() : Mass{field::add_modulo(l.a, r.a, field::kP)};
    });
  }
  if (op == BinaryOp::lse_weight) return combine<Wide, Mass>(dst, x, y, [&](Mass l, Mass r) { return weight(l, r); });
  if (x.dtype() == types().value) return binary_of<Value>(op, dst, x, y);
  binary_of<Wide>(op, dst, x, y);
}

void FieldDeviceOfSeed::do_matmul(const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_computes(x, "matmul");
  field::linear(pool(), dst, x, weight, bias);
}

template <class Element>
void FieldDeviceOfSeed::reduce_of(ReduceOp op, const Tensor& dst, const Tensor& x) {
  const std::int64_t count = x.size(-1), stride = x.strides().back();
  const Strides row_strides = x.strides().erased(x.rank() - 1);
  Element factor{};
  if (op == ReduceOp::mean) factor = quotient(image_of<Element>(1.0), image_of<Element>(static_cast<double>(count)));
  const StridedLoop<2> loop(dst.shape(), {&dst.strides(), &row_strides});
  for_ranges(loop.rows(), loop.inner_size() * count, [&](std::int64_t first, std::int64_t last) {
    loop.for_rows(first, last, [&](const StridedLoop<2>::Offsets& offset) {
      for (std::int64_t i = 0; i < loop.inner_size(); ++i) {
        const Element* row = x.data_as<Element>() + offset[1] + i * loop.inner_stride(1);
        Element sum{};
        bool is_bad = false;
        for (std::int64_t j = 0; j < count; ++j) {
          sum = add(sum, row[j * stride]);
          is_bad = is_bad || is_poison(row[j * stride]);
        }
        if (op == ReduceOp::mean) sum = multiply(sum, factor);
        dst.data_as<Element>()[offset[0] + i * loop.inner_stride(0)] = is_bad ? spoilt<Element>() : sum;
      }
    });
  });
}

void FieldDeviceOfSeed::do_reduce(ReduceOp op, const Tensor& dst, const Tensor& x) {
  check_computes(x, op_name(op));
  if (x.dtype() == types().value) return reduce_of<Value>(op, dst, x);
  reduce_of<Wide>(op, dst, x);
}

void FieldDeviceOfSeed::do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v,
                                     const Tensor& mask, double scale) {
  check_computes(q, "attention");
  SHARDPROOF_CHECK(q.dtype() == types().value, type_error,
                   "attention of {}: the accumulator carries no exponents; expected values of type {}", q.text(),
                   types().value.name());
  SHARDPROOF_CHECK(!mask.defined() || mask.dtype() == kBool || mask.dtype() == types().value, type_error,
                   "attention mask {} must be bool or of type {}", mask.text(), types().value.name());
  field::attention(pool(), functions_, zero_divisions_, dst, q, k, v, mask, field::value_of(scale));
}

void FieldDeviceOfSeed::do_angle_function(AngleFunction function, const Tensor& dst, std::span<const double> angles) {
  for (std::size_t i = 0; i < angles.size(); ++i) {
    const Value entry = functions_.angle(function, angles[i]);
    if (dst.dtype() == types().value) {
      dst.data_as<Value>()[i] = entry;
    } else {
      dst.data_as<Wide>()[i] = {entry.a};
    }
  }
}

}  // namespace

DType field_dtype() { return types().value; }
DType field_wide_dtype() { return types().wide; }
DType field_log_dtype() { return types().log; }

std::unique_ptr<FieldDevice> make_field_device(std::uint64_t seed, FieldCast cast) {
  types();  // registered before the first tensor
  return std::make_unique<FieldDeviceOfSeed>(seed, cast);
}

Tensor random_field_tensor(FieldDevice& device, std::uint64_t seed, std::string_view name, const Shape& shape) {
  const Tensor result = device.empty(shape, field_dtype());
  const RandomStream random(seed, name);
  Value* elements = result.data_as<Value>();
  for (std::int64_t i = 0; i < result.numel(); ++i)
    elements[i] = field::value_of_bits(random.bits(static_cast<std::uint64_t>(i)));
  return result;
}

std::vector<field::Value> field_elements(const Tensor& x) {
  SHARDPROOF_CHECK(is_field(x.dtype()), type_error, "{} holds no elements of exact arithmetic", x.text());
  const auto count = static_cast<std::size_t>(x.numel());
  std::vector<Value> elements(count);
  if (x.dtype() == types().value) {
    x.device().download(std::as_writable_bytes(std::span(elements)), x);
    return elements;
  }
  std::vector<std::uint32_t> numbers(count);
  x.device().download(std::as_writable_bytes(std::span(numbers)), x);
  for (std::size_t i = 0; i < count; ++i) elements[i] = {numbers[i], numbers[i] >> 31 != 0 ? field::kPoison : 0};
  return elements;
}

std::string field_text(const field::Value& x) {
  return is_poison(x) ? std::string("poison") : fmt::format("{}:{}", x.a, x.b);
}

}  // namespace shardproof
