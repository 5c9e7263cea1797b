#include "core/tables.h"

#include <cmath>
#include <numbers>

#include "core/error.h"
#include "core/ops.h"

namespace shardproof::tables {
namespace {

AngleTable empty_table(std::size_t rows, std::int64_t width) {
  AngleTable table;
  table.rows = static_cast<std::int64_t>(rows);
  table.width = width;
  const std::size_t count = rows * static_cast<std::size_t>(width);
  table.angles.reserve(count);
  table.cosine.reserve(count);
  table.sine.reserve(count);
  return table;
}

void push(AngleTable& table, double angle, double cosine, double sine) {
  table.angles.push_back(angle);
  table.cosine.push_back(cosine);
  table.sine.push_back(sine);
}

// Every entry `repeat` times in a row.
Tensor on_device(Device& device, AngleFunction function, const AngleTable& table, DType dtype, int repeat) {
  std::vector<std::int64_t> entries;
  entries.reserve(table.angles.size() * static_cast<std::size_t>(repeat));
  for (std::int64_t i = 0; i < table.rows * table.width; ++i)
    entries.insert(entries.end(), static_cast<std::size_t>(repeat), i);
  return entries_on(device, function, table, entries, {table.rows, table.width * repeat}, dtype);
}

void check_rotary_width(std::int64_t n) {
  SHARDPROOF_CHECK(n >= 2 && n % 2 == 0, config_error, "rotary tables of width {}; it must be even and positive", n);
}

// theta^e pi/2 for `count` exponents from 0 to 1, in the order of operations of the original: steps up from 0 in the
// first half and down from 1 in the second, each with one rounding.
template <class Float>
std::vector<Float> spaced_frequencies(std::int64_t count, double theta) {
  std::vector<Float> frequencies;
  const Float step = count > 1 ? Float(1) / static_cast<Float>(count - 1) : Float(0);
  for (std::int64_t i = 0; i < count; ++i) {
    const bool counts_up = i < count / 2 || count == 1;
    const Float exponent =
        counts_up ? step * static_cast<Float>(i) : std::fma(-step, static_cast<Float>(count - 1 - i), Float(1));
    const Float power = std::pow(static_cast<Float>(theta), exponent);
    frequencies.push_back(power * std::numbers::pi_v<Float> / Float(2));
  }
  return frequencies;
}

template <class Float>
AngleTable fraction_angles_of(std::span<const double> fractions, std::int64_t axes, std::int64_t width,
                              std::span<const Float> frequencies) {
  const auto rows = static_cast<std::int64_t>(fractions.size()) / axes;
  const std::int64_t missing = width - axes * static_cast<std::int64_t>(frequencies.size());
  AngleTable table = empty_table(static_cast<std::size_t>(rows), width);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < missing; ++k) push(table, 0.0, 1.0, 0.0);
    for (const Float frequency : frequencies) {
      for (std::int64_t axis = 0; axis < axes; ++axis) {
        const auto fraction = static_cast<Float>(fractions[static_cast<std::size_t>(row * axes + axis)]);
        const Float angle = frequency * (fraction * Float(2) - Float(1));
        push(table, angle, std::cos(angle), std::sin(angle));
      }
    }
  }
  return table;
}

}  // namespace

AngleTable sinusoid(std::span<const double> timesteps, std::int64_t n, TablePrecision precision, double scale) {
  SHARDPROOF_CHECK(n >= 2 && n % 2 == 0, config_error, "a sinusoid of width {}; it must be even and positive", n);
  const std::int64_t half = n / 2;
  AngleTable table = empty_table(timesteps.size(), half);
  for (const double timestep : timesteps) {
    for (std::int64_t j = 0; j < half; ++j) {
      if (precision == TablePrecision::float32) {
        const float exponent =
            static_cast<float>(-std::log(10000.0)) * static_cast<float>(j) / static_cast<float>(half);
        const float unscaled = static_cast<float>(timestep) * std::exp(exponent);
        const float angle = static_cast<float>(scale) * unscaled;
        push(table, angle, std::cos(angle), std::sin(angle));
      } else {
        const double frequency = std::exp(-std::log(10000.0) * static_cast<double>(j) / static_cast<double>(half));
        const double angle = scale * (timestep * frequency);
        push(table, angle, std::cos(angle), std::sin(angle));
      }
    }
  }
  return table;
}

AngleTable rotary_angles64(std::span<const double> positions, std::int64_t n, double theta, TablePrecision precision) {
  check_rotary_width(n);
  const bool narrow = precision == TablePrecision::float32;
  AngleTable table = empty_table(positions.size(), n / 2);
  for (const double position : positions) {
    for (std::int64_t k = 0; k < n / 2; ++k) {
      const double frequency = 1.0 / std::pow(theta, static_cast<double>(2 * k) / static_cast<double>(n));
      const double angle = (narrow ? static_cast<double>(static_cast<float>(position)) : position) * frequency;
      const double cosine = std::cos(angle), sine = std::sin(angle);
      push(table, angle, narrow ? static_cast<double>(static_cast<float>(cosine)) : cosine,
           narrow ? static_cast<double>(static_cast<float>(sine)) : sine);
    }
  }
  return table;
}

AngleTable rotary_angles32(std::span<const double> positions, std::int64_t n, double theta, TablePrecision precision) {
  // In double throughout the two kinds are the same formula.
  if (precision == TablePrecision::float64) return rotary_angles64(positions, n, theta, precision);
  check_rotary_width(n);
  AngleTable table = empty_table(positions.size(), n / 2);
  for (const double position : positions) {
    for (std::int64_t k = 0; k < n / 2; ++k) {
      const float power = std::pow(static_cast<float>(theta), static_cast<float>(2 * k) / static_cast<float>(n));
      const float angle = static_cast<float>(position) * (1.0F / power);
      push(table, angle, std::cos(angle), std::sin(angle));
    }
  }
  return table;
}

AngleTable fraction_angles(std::span<const double> fractions, std::int64_t axes, std::int64_t width, double theta,
                           TablePrecision precision, FrequencyPrecision frequencies) {
  SHARDPROOF_CHECK(axes >= 1 && width >= 1 && static_cast<std::int64_t>(fractions.size()) % axes == 0, config_error,
                   "a rotary table of width {} from {} fractions on {} axes", width, fractions.size(), axes);
  const std::int64_t count = width / axes;
  if (precision == TablePrecision::float64)
    return fraction_angles_of<double>(fractions, axes, width, spaced_frequencies<double>(count, theta));
  if (frequencies == FrequencyPrecision::of_table)
    return fraction_angles_of<float>(fractions, axes, width, spaced_frequencies<float>(count, theta));
  const std::vector<double> exact = spaced_frequencies<double>(count, theta);
  return fraction_angles_of<float>(fractions, axes, width, std::vector<float>(exact.begin(), exact.end()));
}

AngleTable side_by_side(std::span<const AngleTable> parts) {
  SHARDPROOF_CHECK(!parts.empty(), shape_error, "no tables to join");
  std::int64_t width = 0;
  for (const AngleTable& part : parts) {
    SHARDPROOF_CHECK(part.rows == parts.front().rows, shape_error, "tables of {} and {} rows cannot stand side by side",
                     parts.front().rows, part.rows);
    width += part.width;
  }
  AngleTable table = empty_table(static_cast<std::size_t>(parts.front().rows), width);
  for (std::int64_t row = 0; row < table.rows; ++row) {
    for (const AngleTable& part : parts) {
      for (std::int64_t k = 0; k < part.width; ++k) {
        const auto i = static_cast<std::size_t>(row * part.width + k);
        push(table, part.angles[i], part.cosine[i], part.sine[i]);
      }
    }
  }
  return table;
}

Tensor entries_on(Device& device, AngleFunction function, const AngleTable& table,
                  std::span<const std::int64_t> entries, const Shape& shape, DType dtype) {
  std::vector<double> selected(entries.size());
  const auto select = [&](const std::vector<double>& values) -> std::span<const double> {
    for (std::size_t i = 0; i < entries.size(); ++i) selected[i] = values[static_cast<std::size_t>(entries[i])];
    return selected;
  };
  if (auto result = device.angle_function(function, select(table.angles), shape, dtype)) return *result;
  return ops::from_doubles(device, select(function == AngleFunction::cosine ? table.cosine : table.sine), shape, dtype);
}

Tensor cosine_on(Device& device, const AngleTable& table, DType dtype, int repeat) {
  return on_device(device, AngleFunction::cosine, table, dtype, repeat);
}

Tensor sine_on(Device& device, const AngleTable& table, DType dtype, int repeat) {
  return on_device(device, AngleFunction::sine, table, dtype, repeat);
}

}  // namespace shardproof::tables
