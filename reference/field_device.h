// The device of exact arithmetic: every operation of core/device.h on residues (field_arithmetic.h), so that the very
// same models and algorithms run without rounding. Sums, products and quotients are exact; exponentials of attention
// are powers of a drawn g; log-sum-exps are carried as masses; every other function of an element is a salted hash, of
// which nothing is known but that equal arguments give equal results. What has no meaning without an order of numbers
// (clamping, comparison, conversion to float) is an unsupported_error. Source: verification specification, 2.1.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/host_memory.h"
#include "reference/field_arithmetic.h"

namespace shardproof {

// The element types: values (a pair of residues), the accumulator that attention returns (one residue), and the mass
// that stands for a log-sum-exp (one residue). Registered when first asked for.
DType field_dtype();
DType field_wide_dtype();
DType field_log_dtype();

class FieldDevice : public HostDevice {
 public:
  // How often a zero had to be divided by since the device was made: a sum of exponentials, or another denominator,
  // that vanished although nothing is wrong (one chance in 2^30 each). The result is poison; another seed has another.
  virtual std::int64_t zero_divisions() const = 0;
};

// What the cast from the accumulator to a value does with the number.
enum class FieldCast : std::uint8_t {
  hashed,  // as rounding: an unknown function of it
  kept,    // the first residue stays, so that what attention returns can be read; not for verdicts
};

// g and the salts of the hashes are functions of the seed.
std::unique_ptr<FieldDevice> make_field_device(std::uint64_t seed, FieldCast cast = FieldCast::hashed);

// Uniform residues, both parts independent, in "field"; a function of (seed, name, index).
Tensor random_field_tensor(FieldDevice& device, std::uint64_t seed, std::string_view name, const Shape& shape);

// The elements in row-major order; of the types with one residue, b is 0 (or poison, where a is).
std::vector<field::Value> field_elements(const Tensor& x);
// "17:4" (a : b), or "poison".
std::string field_text(const field::Value& x);

}  // namespace shardproof
