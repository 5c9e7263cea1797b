// Host tables: sinusoids and rotary angles from coordinates. They are computed on the host in one of two precisions and
// only finished tables enter a device. Formulas and the float32 order of operations: models specification, sections 0
// and 14.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace shardproof {

// float32: every rounding as the original models make it. float64: the same formulas in double throughout.
enum class TablePrecision : std::uint8_t { float32, float64 };
// Where a table of float32 takes its frequencies from: computed in its own precision, or in double and rounded once.
enum class FrequencyPrecision : std::uint8_t { of_table, float64 };

// Rows of angles with their cosines and sines; `width` angles a row. Values of a float32 table are exact float32
// numbers.
struct AngleTable {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::vector<double> angles;
  std::vector<double> cosine;
  std::vector<double> sine;
};

namespace tables {

// f_j = exp(-ln(10000) j / (n/2)), angle = scale (t f_j) for j < n/2: one row a timestep, n/2 angles. n must be even.
AngleTable sinusoid(std::span<const double> timesteps, std::int64_t n, TablePrecision precision, double scale = 1.0);
// f_k = theta^(-2k/n), angle = position f_k for k < n/2, computed in double from positions that are first rounded to
// float32 in the float32 precision (where cos and sin are rounded to float32 at the end): one row a position.
AngleTable rotary_angles64(std::span<const double> positions, std::int64_t n, double theta, TablePrecision precision);
// The same angles, but in the float32 precision with every operation rounded to float32: theta^(2k/n), its inverse, the
// angle, cosine and sine.
AngleTable rotary_angles32(std::span<const double> positions, std::int64_t n, double theta, TablePrecision precision);
// Angles of LTX and LTX-2: frequencies theta^e pi/2 with exponents e equally spaced over [0, 1], angle = frequency (2
// fraction - 1). `fractions` are rows of `axes` coordinates. A row of the result has `width` angles: zeros in front for
// what width / axes leaves over, then those of the first frequency for every axis, of the second, ..
AngleTable fraction_angles(std::span<const double> fractions, std::int64_t axes, std::int64_t width, double theta,
                           TablePrecision precision, FrequencyPrecision frequencies = FrequencyPrecision::of_table);
// Tables with equally many rows side by side.
AngleTable side_by_side(std::span<const AngleTable> parts);

// Entries of a table by their number (row * width + column), in the order given, as a tensor of `shape`.
Tensor entries_on(Device& device, AngleFunction function, const AngleTable& table,
                  std::span<const std::int64_t> entries, const Shape& shape, DType dtype);
// [rows, width * repeat] on a device: each value standing `repeat` times in a row.
Tensor cosine_on(Device& device, const AngleTable& table, DType dtype, int repeat);
Tensor sine_on(Device& device, const AngleTable& table, DType dtype, int repeat);

}  // namespace tables
}  // namespace shardproof
