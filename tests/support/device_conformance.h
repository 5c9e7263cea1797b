// The laws of a Device. One list, run over every device: the host device (movement only), the reference device, the
// fast CPU device, and later others. Arithmetic is compared operation by operation with the float64 reference device on
// the same (rounded) inputs, over shapes with odd and zero sizes and over strided, permuted and broadcast operands.
// Every tolerance is derived where it stands, from unit roundoffs and lengths.
#pragma once

#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "tests/support/host_array.h"

namespace shardproof::test {

struct DeviceLaw {
  std::string name;  // a sentence without spaces
  // Reports what is wrong through GoogleTest. `type` is the value type to compute with.
  std::function<void(Device& device, DType type)> body;
};

// Laws about memory and movement, the same for every value type; and laws about arithmetic.
std::vector<DeviceLaw> device_movement_laws();
std::vector<DeviceLaw> device_arithmetic_laws();
std::vector<DeviceLaw> device_attention_laws();

struct DeviceCase {
  DeviceLaw law;
  DType type;
  std::string name;  // "LawName" or "LawName_float32"
  friend void PrintTo(const DeviceCase& value, std::ostream* out) { *out << value.name; }
};

// The movement laws once, and the others once per value type that the device computes with; movement only for none.
std::vector<DeviceCase> device_cases(std::span<const DType> value_types);

// How the same elements can lie in memory. Everything around them is poison.
enum class Layout {
  contiguous,
  reversed,  // the first axis varies fastest
  framed,    // part of a larger tensor along every axis, so rows start at odd addresses
  spaced,    // every second element of the last axis
};
inline constexpr Layout kLayouts[] = {Layout::contiguous, Layout::reversed, Layout::framed, Layout::spaced};
// A copy of the elements in that layout, on the same device.
Tensor laid_out(Device& device, const Tensor& x, Layout layout);

// The same numbers on the device under test, rounded to `type`, and on a float64 reference device.
struct Operand {
  Tensor tested;
  Tensor reference;
};
Operand operand(Device& device, const HostArray& values, DType type);
// The one float64 reference device of the test program.
Device& reference_device();

// Unit roundoff of arithmetic on `type` (that of float32 for the 16-bit types), and of storing it.
double arithmetic_roundoff(DType type);
double storage_roundoff(DType type);

// True for devices whose kernels for attention round weights and results to 16 bits where the operands have them, as
// those of GPUs do.
bool attention_rounds_to_storage(const Device& device, DType type);

// Fails unless |actual - expected| <= allowed(element) everywhere; not-a-number never passes, equal infinities do.
void expect_within(const HostArray& actual, const HostArray& expected,
                   const std::function<double(std::size_t element)>& allowed, const std::string& what);

}  // namespace shardproof::test
