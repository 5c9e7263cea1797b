#include "tests/support/device_conformance.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "core/element_types.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "reference/compare.h"
#include "reference/eigen_device.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {

std::vector<DeviceCase> device_cases(std::span<const DType> value_types) {
  std::vector<DeviceCase> cases;
  for (const DeviceLaw& law : device_movement_laws()) cases.push_back({law, kFloat32, law.name});
  const auto add = [&](const DeviceLaw& law, DType type) {
    cases.push_back({law, type, law.name + "_" + std::string(type.name())});
  };
  for (const DType type : value_types) {
    for (const DeviceLaw& law : device_arithmetic_laws()) add(law, type);
    for (const DeviceLaw& law : device_attention_laws()) add(law, type);
  }
  return cases;
}

Tensor laid_out(Device& device, const Tensor& x, Layout layout) {
  Tensor result;
  if (layout == Layout::contiguous) {
    result = device.poisoned(x.shape(), x.dtype());
  } else if (layout == Layout::reversed) {
    std::array<int, kMaxRank> axes{};
    std::iota(axes.begin(), axes.end(), 0);
    std::reverse(axes.begin(), axes.begin() + x.rank());
    const std::span order(axes.data(), static_cast<std::size_t>(x.rank()));
    Shape shape;
    for (const int axis : order) shape.push_back(x.shape()[axis]);
    result = device.poisoned(shape, x.dtype()).permute(order);
  } else if (layout == Layout::framed) {
    Shape shape;
    for (const std::int64_t size : x.shape()) shape.push_back(size + 2);
    result = device.poisoned(shape, x.dtype());
    for (int axis = 0; axis < x.rank(); ++axis) result = result.narrow(axis, 1, x.shape()[axis]);
  } else {
    Shape shape = x.shape();
    shape.push_back(2);
    result = device.poisoned(shape, x.dtype()).narrow(x.rank(), 1, 1).squeeze(x.rank());
  }
  device.copy(result, x);
  return result;
}

Device& reference_device() {
  static const std::unique_ptr<Device> device = make_reference_device(kFloat64);
  return *device;
}

Operand operand(Device& device, const HostArray& values, DType type) {
  Operand result;
  result.tested = to_device(device, values, type);
  result.reference = to_device(reference_device(), to_host(result.tested), kFloat64);
  return result;
}

double arithmetic_roundoff(DType type) { return unit_roundoff(wide_dtype(type)); }
double storage_roundoff(DType type) { return unit_roundoff(type); }

bool attention_rounds_to_storage(const Device& device, DType type) {
  return device.name() == "cuda" && type.size() == 2;
}

void expect_within(const HostArray& actual, const HostArray& expected,
                   const std::function<double(std::size_t)>& allowed, const std::string& what) {
  ASSERT_EQ(actual.shape, expected.shape) << what;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double a = actual.values[i], e = expected.values[i];
    if (a == e) continue;
    const double difference = std::abs(a - e);
    ASSERT_TRUE(difference <= allowed(i)) << what << ": element " << i << " of " << expected.shape.text() << " is " << a
                                          << ", expected " << e << " within " << allowed(i);
  }
}

namespace {

constexpr std::array kPlainTypes{kFloat64, kFloat32, kBFloat16, kFloat16, kInt64, kBool};

// Small integers, which every plain type but bool holds; bool keeps whether they are 0.
HostArray small_integers(const Shape& shape) {
  HostArray array = identifiers(shape);
  for (double& value : array.values) value = std::fmod(value * 7, 61) - 20;
  return array;
}

HostArray as_held(HostArray array, DType type) {
  if (type == kBool) {
    for (double& value : array.values) value = value != 0 ? 1 : 0;
  }
  return array;
}

void expect_equal(const Tensor& actual, const HostArray& expected, const std::string& what) {
  const HostArray values = to_host(actual);
  EXPECT_EQ(values.shape, expected.shape) << what;
  EXPECT_EQ(values.values, expected.values) << what;
}

void supports_every_plain_type(Device& device, DType) {
  for (const DType type : kPlainTypes) EXPECT_TRUE(device.supports(type)) << type.name();
  EXPECT_FALSE(device.name().empty());
}

void brings_back_what_was_uploaded(Device& device, DType) {
  for (const DType type : kPlainTypes) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{3, 5}, Shape{2, 0, 3}}) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(shape.numel()) * type.size());
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(type == kBool ? i % 2 : i * 37);
      const Tensor tensor = device.upload(bytes, shape, type);
      EXPECT_EQ(tensor.shape(), shape);
      EXPECT_EQ(&tensor.device(), &device);
      std::vector<std::byte> back(bytes.size());
      device.download(back, tensor);
      EXPECT_EQ(back, bytes) << tensor.text();
    }
  }
}

void downloads_any_layout_in_row_major_order(Device& device, DType) {
  for (const Layout layout : kLayouts) {
    const HostArray values = small_integers({2, 3, 4});
    const Tensor tensor = laid_out(device, to_device(device, values, kInt64), layout);
    std::vector<std::int64_t> back(24);
    device.download(std::as_writable_bytes(std::span(back)), tensor);
    EXPECT_EQ(std::vector<double>(back.begin(), back.end()), values.values);
  }
}

void copies_between_all_layouts(Device& device, DType) {
  for (const Shape& shape : {Shape{1}, Shape{7}, Shape{3, 0}, Shape{5, 3}, Shape{2, 1, 5}, Shape{3, 2, 4, 5},
                             Shape{2, 3, 2, 2, 9}, Shape{70, 33}}) {
    for (const DType type : kPlainTypes) {
      const HostArray values = as_held(small_integers(shape), type);
      const Tensor source = to_device(device, values, type);
      for (const Layout from : kLayouts) {
        const Tensor laid = laid_out(device, source, from);
        for (const Layout to : kLayouts) {
          const Tensor target = laid_out(device, device.poisoned(shape, type), to);
          device.copy(target, laid);
          expect_equal(target, values, target.text());
        }
      }
    }
  }
}

void copies_permuted_axes(Device& device, DType) {
  const Shape shape{2, 3, 4, 2, 5};
  const HostArray values = identifiers(shape);
  for (const DType type : {kFloat32, kInt64, kFloat16}) {
    const Tensor source = to_device(device, values, type);
    std::array<int, 5> axes{0, 1, 2, 3, 4};
    do {
      const Tensor permuted = source.permute(axes);
      const Tensor target = device.poisoned(permuted.shape(), type);
      device.copy(target, permuted);
      const HostArray result = to_host(target);
      // Element by element: index[i] of the result is index[axes[i]] of the source.
      const Strides strides = shape.contiguous_strides();
      for (std::int64_t element = 0; element < shape.numel(); ++element) {
        std::int64_t rest = element, from = 0;
        for (int i = 4; i >= 0; --i) {
          from += rest % permuted.shape()[i] * strides[axes[static_cast<std::size_t>(i)]];
          rest /= permuted.shape()[i];
        }
        ASSERT_EQ(result.values[static_cast<std::size_t>(element)], values.values[static_cast<std::size_t>(from)]);
      }
    } while (std::next_permutation(axes.begin(), axes.end()));
  }
}

void copies_broadcast_sources(Device& device, DType) {
  for (const DType type : kPlainTypes) {
    const HostArray values = as_held(small_integers({3, 1, 2}), type);
    const Tensor source = to_device(device, values, type);
    const Tensor target = device.poisoned({4, 3, 5, 2}, type);
    device.copy(target, source);
    HostArray expected({4, 3, 5, 2});
    for (std::int64_t i = 0; i < expected.shape.numel(); ++i) {
      expected.values[static_cast<std::size_t>(i)] = values.values[static_cast<std::size_t>(i / 10 % 3 * 2 + i % 2)];
    }
    expect_equal(target, expected, target.text());
  }
}

void leaves_what_a_copy_does_not_cover(Device& device, DType) {
  const Tensor target = to_device(device, HostArray({4, 6}, 9), kInt64);
  device.copy(target.narrow(0, 1, 2).narrow(1, 2, 3), to_device(device, identifiers({2, 3}), kInt64));
  const HostArray expected = to_host(to_device(device, HostArray({4, 6}, 9), kInt64));
  HostArray values = expected;
  for (std::int64_t i = 0; i < 6; ++i) values.at({1 + i / 3, 2 + i % 3}) = static_cast<double>(i);
  expect_equal(target, values, "the covered part alone changes");
}

// Numbers at which conversions go wrong: ties of both 16-bit types, their largest and smallest numbers, and what lies
// beyond the types.
const std::vector<double>& hostile_numbers() {
  static const std::vector<double> numbers = {0.0,
                                              -0.0,
                                              1.0,
                                              -1.5,
                                              2.5,
                                              256.5,
                                              257.0,
                                              1.00390625,
                                              1.01171875,
                                              1.00048828125,
                                              1.00146484375,
                                              1.0 + 0x1p-8 + 0x1p-40,
                                              1.0 + 0x1p-11 + 0x1p-40,
                                              65504.0,
                                              65519.0,
                                              65520.0,
                                              70000.0,
                                              0x1p-14,
                                              0x1p-24,
                                              0x1p-25,
                                              0x1.8p-25,
                                              0x1.1p-25,
                                              3.3e38,
                                              3.4e38,
                                              1e39,
                                              1e-40,
                                              1e-46,
                                              -1e300,
                                              123456789.0,
                                              9.0e15,
                                              0x1p62,
                                              std::numeric_limits<double>::infinity(),
                                              -std::numeric_limits<double>::infinity()};
  return numbers;
}

double rounded(double x, DType type) {
  return visit_plain_dtype(type, "rounding", [x](auto tag) {
    using T = typename decltype(tag)::type;
    return convert_element<double>(convert_element<T>(x));
  });
}

void converts_between_all_plain_types(Device& device, DType) {
  HostArray numbers(Shape{static_cast<std::int64_t>(hostile_numbers().size())});
  numbers.values = hostile_numbers();
  for (const DType from : kPlainTypes) {
    HostArray held = numbers;
    for (double& value : held.values) {
      if (from == kInt64 && std::isinf(value)) value = 0;
      if (from == kInt64 && std::abs(value) > 1e18) value = 7;
      value = rounded(value, from);
    }
    const Tensor source = to_device(device, held, from);
    for (const DType to : kPlainTypes) {
      HostArray expected = held;
      for (double& value : expected.values) {
        // What int64 does not hold is undefined except that it converts without a trap.
        if (to == kInt64 && std::abs(value) > 0x1p62) value = 0;
        value = rounded(value, to);
      }
      const Tensor target = device.poisoned(source.shape(), to);
      device.copy(target, source);
      HostArray actual = to_host(target);
      for (std::size_t i = 0; i < held.values.size(); ++i) {
        if (to == kInt64 && std::abs(held.values[i]) > 0x1p62) actual.values[i] = 0;
      }
      EXPECT_EQ(actual.values, expected.values) << from.name() << " to " << to.name();
    }
  }
}

void truncates_towards_zero_and_keeps_large_integers(Device& device, DType) {
  const std::vector<std::int64_t> integers{0, 1, -1, 16777217, -9007199254740993, INT64_MAX, INT64_MIN};
  const Tensor source = device.upload(std::as_bytes(std::span(integers)), {7}, kInt64);
  std::vector<std::int64_t> back(7);
  device.download(std::as_writable_bytes(std::span(back)), laid_out(device, source, Layout::spaced));
  EXPECT_EQ(back, integers);
  const Tensor fractions = to_device(
      device,
      [] {
        HostArray array(Shape{4});
        array.values = {2.75, -2.75, 0.99, -0.99};
        return array;
      }(),
      kFloat32);
  const Tensor truncated = device.empty({4}, kInt64);
  device.copy(truncated, fractions);
  EXPECT_EQ(to_host(truncated).values, (std::vector<double>{2, -2, 0, 0}));
}

void fills_every_layout(Device& device, DType) {
  for (const DType type : kPlainTypes) {
    for (const Layout layout : kLayouts) {
      const Tensor target = laid_out(device, device.poisoned({3, 2, 5}, type), layout);
      device.fill(target, 3.0);
      expect_equal(target, HostArray({3, 2, 5}, type == kBool ? 1.0 : 3.0), target.text());
    }
  }
  const Tensor target = device.empty({2}, kFloat32);
  device.fill(target, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(to_host(target).values, std::vector<double>(2, -std::numeric_limits<double>::infinity()));
}

void poisons_every_byte_of_the_elements_and_no_other(Device& device, DType) {
  for (const DType type : kPlainTypes) {
    const Tensor whole = to_device(device, HostArray({4, 6}), type);
    device.poison(whole.narrow(0, 1, 2).narrow(1, 2, 3));
    std::vector<std::uint8_t> bytes(whole.bytes());
    device.download(std::as_writable_bytes(std::span(bytes)), whole);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const std::size_t row = i / type.size() / 6, column = i / type.size() % 6;
      const bool inside = row >= 1 && row < 3 && column >= 2 && column < 5;
      ASSERT_EQ(bytes[i], inside ? 0xFF : 0x00) << whole.text() << " byte " << i;
    }
  }
  for (const DType type : {kFloat64, kFloat32, kBFloat16, kFloat16}) {
    for (const double value : to_host(device.poisoned({3}, type)).values) EXPECT_TRUE(std::isnan(value));
  }
}

void gathers_rows(Device& device, DType) {
  for (const DType type : {kFloat32, kInt64, kBool, kBFloat16}) {
    for (const Layout layout : kLayouts) {
      const HostArray values = as_held(small_integers({5, 2, 3}), type);
      const Tensor table = laid_out(device, to_device(device, values, type), layout);
      HostArray index(Shape{4});
      index.values = {4, 0, 4, 2};
      const Tensor rows = device.gather_rows(table, laid_out(device, to_device(device, index, kInt64), layout));
      const std::vector<std::int64_t> order{4, 0, 4, 2};
      expect_equal(rows, selected(values, 0, order), table.text());
    }
  }
  EXPECT_EQ(device.gather_rows(device.empty({3, 2}, kFloat32), device.empty({0}, kInt64)).shape(), (Shape{0, 2}));
  EXPECT_EQ(device.gather_rows(device.empty({3, 0}, kFloat32), to_device(device, HostArray(Shape{2}), kInt64)).shape(),
            (Shape{2, 0}));
}

void refuses_rows_that_do_not_exist(Device& device, DType) {
  const Tensor table = to_device(device, HostArray({3, 2}), kFloat32);
  for (const double index : {3.0, -1.0}) {
    const Tensor indices = to_device(device, HostArray(Shape{1}, index), kInt64);
    const auto error = thrown_by([&] { device.gather_rows(table, indices); });
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind, ErrorKind::shape_error);
    EXPECT_EQ(error->message, "gather_rows: index " + std::to_string(static_cast<int>(index)) +
                                  " at position 0 does not lie within the 3 rows of float32 [3, 2]");
  }
  EXPECT_EQ(thrown_by([&] { device.gather_rows(table, to_device(device, HostArray({1, 1}), kInt64)); }),
            thrown(ErrorKind::shape_error,
                   "gather_rows expects a table [rows, ..] and int64 indices [n], got float32 "
                   "[3, 2] and int64 [1, 1]"));
}

void refuses_impossible_tensors(Device& device, DType) {
  EXPECT_EQ(thrown_by([&] { device.empty({2, -1}, kFloat32); }),
            thrown(ErrorKind::shape_error, "a tensor cannot have shape [2, -1]"));
  EXPECT_EQ(thrown_by([&] { device.empty({INT64_MAX, 2}, kFloat32); }),
            thrown(ErrorKind::shape_error, "a tensor of shape [9223372036854775807, 2] is too large"));
  EXPECT_EQ(thrown_by([&] { device.empty({INT64_MAX / 2}, kFloat32); }),
            thrown(ErrorKind::shape_error, "a tensor of shape [4611686018427387903] is too large"));
  EXPECT_EQ(thrown_by([&] { device.upload(std::vector<std::byte>(7), {2}, kFloat32); }),
            thrown(ErrorKind::shape_error, "upload of 7 bytes to float32 [2] of 8 bytes"));
  std::vector<std::byte> bytes(9);
  const Tensor pair = to_device(device, HostArray(Shape{2}), kFloat32);
  EXPECT_EQ(thrown_by([&] { device.download(bytes, pair); }),
            thrown(ErrorKind::shape_error, "download of float32 [2] (8 bytes) to 9 bytes"));
  EXPECT_EQ(thrown_by([&] { device.copy(pair, to_device(device, HostArray(Shape{3}), kFloat32)); }),
            thrown(ErrorKind::shape_error, "cannot expand float32 [3] to [2]"));
}

void refuses_tensors_that_are_elsewhere(Device& device, DType) {
  HostDevice other;
  const Tensor mine = to_device(device, HostArray(Shape{2}), kFloat32);
  const Tensor foreign = to_device(other, HostArray(Shape{2}), kFloat32);
  const std::string message = "copy: float32 [2] lives on device 'host', not on '" + std::string(device.name()) + "'";
  EXPECT_EQ(thrown_by([&] { device.copy(mine, foreign); }), thrown(ErrorKind::state_error, message));
  EXPECT_EQ(thrown_by([&] { device.copy(foreign, mine); }), thrown(ErrorKind::state_error, message));
  EXPECT_EQ(thrown_by([&] { device.copy(mine, Tensor({2}, kFloat32)); }),
            thrown(ErrorKind::state_error, "copy: float32 [2] has no storage"));
  EXPECT_EQ(thrown_by([&] { device.fill(Tensor(), 0); }),
            thrown(ErrorKind::state_error, "fill: no tensor has no storage"));
}

void refuses_memory_in_flight(Device& device, DType) {
  const Tensor pair = to_device(device, HostArray(Shape{2}), kFloat32);
  const Tensor other = to_device(device, HostArray(Shape{2}), kFloat32);
  std::vector<std::byte> bytes(8);
  pair.storage()->receive_pending = 1;
  const std::string received =
      ": float32 [2] is used while it is still being received; wait for the operation that "
      "fills it first";
  EXPECT_EQ(thrown_by([&] { device.copy(other, pair); }), thrown(ErrorKind::state_error, "copy" + received));
  EXPECT_EQ(thrown_by([&] { device.copy(pair, other); }), thrown(ErrorKind::state_error, "copy" + received));
  EXPECT_EQ(thrown_by([&] { device.fill(pair, 0); }), thrown(ErrorKind::state_error, "fill" + received));
  EXPECT_EQ(thrown_by([&] { device.poison(pair); }), thrown(ErrorKind::state_error, "poison" + received));
  EXPECT_EQ(thrown_by([&] { device.download(bytes, pair); }), thrown(ErrorKind::state_error, "download" + received));
  pair.storage()->receive_pending = 0;
  pair.storage()->send_in_flight = 1;
  const std::string sent =
      ": float32 [2] is changed while it is still being sent; wait for the operation that sends "
      "it first";
  EXPECT_EQ(thrown_by([&] { device.copy(pair, other); }), thrown(ErrorKind::state_error, "copy" + sent));
  EXPECT_EQ(thrown_by([&] { device.fill(pair, 0); }), thrown(ErrorKind::state_error, "fill" + sent));
  EXPECT_EQ(thrown_by([&] { device.poison(pair); }), thrown(ErrorKind::state_error, "poison" + sent));
  EXPECT_EQ(thrown_by([&] { device.copy(other, pair); }), std::nullopt);
  pair.storage()->send_in_flight = 0;
}

}  // namespace

std::vector<DeviceLaw> device_movement_laws() {
  return {
      {"SupportsEveryPlainType", supports_every_plain_type},
      {"BringsBackWhatWasUploaded", brings_back_what_was_uploaded},
      {"DownloadsAnyLayoutInRowMajorOrder", downloads_any_layout_in_row_major_order},
      {"CopiesBetweenAllLayouts", copies_between_all_layouts},
      {"CopiesPermutedAxes", copies_permuted_axes},
      {"CopiesBroadcastSources", copies_broadcast_sources},
      {"LeavesWhatACopyDoesNotCover", leaves_what_a_copy_does_not_cover},
      {"ConvertsBetweenAllPlainTypes", converts_between_all_plain_types},
      {"TruncatesTowardsZeroAndKeepsLargeIntegers", truncates_towards_zero_and_keeps_large_integers},
      {"FillsEveryLayout", fills_every_layout},
      {"PoisonsEveryByteOfTheElementsAndNoOther", poisons_every_byte_of_the_elements_and_no_other},
      {"GathersRows", gathers_rows},
      {"RefusesRowsThatDoNotExist", refuses_rows_that_do_not_exist},
      {"RefusesImpossibleTensors", refuses_impossible_tensors},
      {"RefusesTensorsThatAreElsewhere", refuses_tensors_that_are_elsewhere},
      {"RefusesMemoryInFlight", refuses_memory_in_flight},
  };
}

}  // namespace shardproof::test
