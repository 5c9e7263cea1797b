// Host tables against recorded ones of the original package, and against the printed test vectors.
// Bounds: rotary tables are computed in double and rounded once, so float32 tables must be equal. A float32 sinusoid
// goes through expf, whose last bit may differ from the vectorised exponential that made the recording: one unit in the
// last place of a frequency moves the angle a by 2^-24 |a| times its own error of up to two units, so the bound is
// 2e-7 + 3 * 2^-24 * |a|.
#include "core/tables.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/json.h"
#include "core/ops.h"
#include "core/safetensors.h"
#include "tests/support/host_array.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using Doubles = std::vector<double>;

class RecordedTable {
 public:
  explicit RecordedTable(const std::string& name)
      : spec_(read_json_file(path(name + ".json"))), file_(path(name + ".safetensors")) {}
  const Json& spec() const { return spec_.at("spec"); }
  HostArray values(const std::string& name) { return to_host(file_.tensor(name, device_)); }

 private:
  static std::string path(const std::string& name) {
    return std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/tables/" + name;
  }
  Json spec_;
  SafetensorsFile file_;
  HostDevice device_;
};

Doubles numbers(const Json& list) {
  Doubles result;
  for (const Json& item : list.items()) result.push_back(item.as_double());
  return result;
}

// FLUX.1's table: one rotary table an axis of the ids, side by side.
AngleTable flux_table(const Json& spec, TablePrecision precision) {
  std::vector<AngleTable> parts;
  for (std::size_t axis = 0; axis < spec.at("axes").size(); ++axis) {
    Doubles positions;
    for (const Json& id : spec.at("ids").items()) positions.push_back(id.at(axis).as_double());
    parts.push_back(tables::rotary_angles64(positions, spec.at("axes").at(axis).as_int(), 10000.0, precision));
  }
  return tables::side_by_side(parts);
}

TEST(RotaryTable, EqualsTheRecordedFluxTableExactly) {
  RecordedTable recorded("flux_rope");
  HostDevice device;
  const AngleTable table = flux_table(recorded.spec(), TablePrecision::float32);
  EXPECT_EQ(max_difference(to_host(tables::cosine_on(device, table, kFloat32, 2)), recorded.values("fp32.0")), 0.0);
  EXPECT_EQ(max_difference(to_host(tables::sine_on(device, table, kFloat32, 2)), recorded.values("fp32.1")), 0.0);
}

TEST(RotaryTable, InDoubleEqualsTheRecordedExactOne) {
  RecordedTable recorded("flux_rope");
  HostDevice device;
  const AngleTable table = flux_table(recorded.spec(), TablePrecision::float64);
  // Angles up to 8, two library functions of half a unit each: a few units of 2^-53.
  EXPECT_LE(max_difference(to_host(tables::cosine_on(device, table, kFloat64, 2)), recorded.values("exact.0")), 4e-15);
  EXPECT_LE(max_difference(to_host(tables::sine_on(device, table, kFloat64, 2)), recorded.values("exact.1")), 4e-15);
}

// [cos | sin], as the models lay a sinusoid out.
HostArray cosine_then_sine(const AngleTable& table) {
  HostArray array({table.rows, 2 * table.width});
  for (std::int64_t row = 0; row < table.rows; ++row) {
    for (std::int64_t k = 0; k < table.width; ++k) {
      const auto i = static_cast<std::size_t>(row * table.width + k);
      array.at({row, k}) = table.cosine[i];
      array.at({row, table.width + k}) = table.sine[i];
    }
  }
  return array;
}

struct SinusoidDifference {
  double worst_share = 0;  // of the bound
  int above_1e6 = 0;       // entries that differ by more than 1e-6
};

SinusoidDifference sinusoid_difference(const AngleTable& table, const HostArray& recorded) {
  const HostArray ours = cosine_then_sine(table);
  SinusoidDifference result;
  for (std::int64_t row = 0; row < table.rows; ++row) {
    for (std::int64_t k = 0; k < 2 * table.width; ++k) {
      const double angle = table.angles[static_cast<std::size_t>(row * table.width + k % table.width)];
      const double difference = std::abs(ours.at({row, k}) - recorded.at({row, k}));
      const double bound = 2e-7 + 3.0 * std::ldexp(1.0, -24) * std::abs(angle);
      result.worst_share = std::max(result.worst_share, difference / bound);
      if (difference > 1e-6) ++result.above_1e6;
    }
  }
  return result;
}

TEST(Sinusoid, OfWidth32EqualsTheRecordedOneToOneUnit) {
  RecordedTable recorded("sinusoid_32");
  const Doubles timesteps = numbers(recorded.spec().at("timesteps"));
  const HostArray ours = cosine_then_sine(tables::sinusoid(timesteps, 32, TablePrecision::float32));
  EXPECT_LE(max_difference(ours, recorded.values("fp32.0")), 6.1e-8);
}

TEST(Sinusoid, OfWidth256StaysWithinTheBoundOfOneFrequencyUnit) {
  RecordedTable recorded("sinusoid_256");
  const Doubles timesteps = numbers(recorded.spec().at("timesteps"));
  const SinusoidDifference difference =
      sinusoid_difference(tables::sinusoid(timesteps, 256, TablePrecision::float32), recorded.values("fp32.0"));
  EXPECT_LE(difference.worst_share, 1.0);
  EXPECT_LE(difference.above_1e6, 15);
}

TEST(Sinusoid, InDoubleEqualsTheRecordedExactOnes) {
  for (const std::string name : {"sinusoid_32", "sinusoid_256"}) {
    RecordedTable recorded(name);
    const Doubles timesteps = numbers(recorded.spec().at("timesteps"));
    const AngleTable table = tables::sinusoid(timesteps, recorded.spec().at("dim").as_int(), TablePrecision::float64);
    // Angles up to 3,500 with a relative error of a few 2^-53.
    EXPECT_LE(max_difference(cosine_then_sine(table), recorded.values("exact.0")), 3e-12) << name;
  }
}

// The printed vectors have six digits.
void expect_printed(const Doubles& actual, const Doubles& printed) {
  ASSERT_EQ(actual.size(), printed.size());
  for (std::size_t i = 0; i < printed.size(); ++i) EXPECT_NEAR(actual[i], printed[i], 1.1e-6) << i;
}

TEST(Sinusoid, EqualsThePrintedVector) {
  const AngleTable table = tables::sinusoid(Doubles{700.0}, 6, TablePrecision::float32);
  expect_printed(table.cosine, {-0.839104, 0.475559, 0.062651});
  expect_printed(table.sine, {0.543971, 0.879684, 0.998035});
}

AngleTable flux_row(const Doubles& id, TablePrecision precision) {
  const std::vector<AngleTable> parts{tables::rotary_angles64(Doubles{id[0]}, 4, 10000.0, precision),
                                      tables::rotary_angles64(Doubles{id[1]}, 4, 10000.0, precision),
                                      tables::rotary_angles64(Doubles{id[2]}, 8, 10000.0, precision)};
  return tables::side_by_side(parts);
}

TEST(RotaryTable, EqualsThePrintedFluxVectors) {
  for (const TablePrecision precision : {TablePrecision::float32, TablePrecision::float64}) {
    const AngleTable first = flux_row({1, 2, 3}, precision);
    expect_printed(first.cosine, {0.540302, 0.999950, -0.416147, 0.999800, -0.989992, 0.955337, 0.999550, 0.999996});
    expect_printed(first.sine, {0.841471, 0.010000, 0.909297, 0.019999, 0.141120, 0.295520, 0.029996, 0.003000});
    expect_printed(flux_row({0, -1.5, 7}, precision).cosine,
                   {1, 1, 0.070737, 0.999888, 0.753902, 0.764842, 0.997551, 0.999976});
  }
}

TEST(RotaryTable, OfFloat32HoldsFloat32NumbersOfFloat32Positions) {
  const Doubles position{0.1};  // no float32 number
  const AngleTable table = tables::rotary_angles64(position, 2, 10000.0, TablePrecision::float32);
  EXPECT_EQ(table.angles.front(), static_cast<double>(0.1F));
  EXPECT_EQ(table.cosine.front(), static_cast<double>(static_cast<float>(table.cosine.front())));
  EXPECT_EQ(table.cosine.front(), static_cast<double>(static_cast<float>(std::cos(static_cast<double>(0.1F)))));
  EXPECT_EQ(tables::rotary_angles64(position, 2, 10000.0, TablePrecision::float64).angles.front(), 0.1);
}

TEST(RotaryTable, InFloat32RoundsEveryOperation) {
  const Doubles positions{-3.0, 0.0, 1.0, 17.0};
  const AngleTable table = tables::rotary_angles32(positions, 6, 10000.0, TablePrecision::float32);
  for (std::size_t row = 0; row < positions.size(); ++row) {
    for (std::size_t k = 0; k < 3; ++k) {
      const float frequency = 1.0F / std::pow(10000.0F, static_cast<float>(2 * k) / 6.0F);
      const float angle = static_cast<float>(positions[row]) * frequency;
      EXPECT_EQ(table.angles[row * 3 + k], static_cast<double>(angle));
      EXPECT_EQ(table.cosine[row * 3 + k], static_cast<double>(std::cos(angle)));
      EXPECT_EQ(table.sine[row * 3 + k], static_cast<double>(std::sin(angle)));
    }
  }
  const AngleTable exact = tables::rotary_angles32(positions, 6, 10000.0, TablePrecision::float64);
  EXPECT_EQ(exact.angles, tables::rotary_angles64(positions, 6, 10000.0, TablePrecision::float64).angles);
}

// Qwen-Image scales last: scale (t f), which rounds differently from (scale t) f.
TEST(Sinusoid, ScaledLastStaysWithinTheBoundOfOneFrequencyUnit) {
  RecordedTable recorded("sinusoid_256_x1000");
  const Doubles timesteps = numbers(recorded.spec().at("timesteps"));
  const AngleTable narrow = tables::sinusoid(timesteps, 256, TablePrecision::float32, 1000.0);
  const SinusoidDifference difference = sinusoid_difference(narrow, recorded.values("fp32.0"));
  EXPECT_LE(difference.worst_share, 1.0);
  EXPECT_LE(difference.above_1e6, 15);
  const AngleTable exact = tables::sinusoid(timesteps, 256, TablePrecision::float64, 1000.0);
  EXPECT_LE(max_difference(cosine_then_sine(exact), recorded.values("exact.0")), 3e-12);
}

// Coordinates of the tokens of a grid as LTX takes them: as they are, or scaled and divided by a size.
Doubles ltx_fractions(const Json& spec, TablePrecision precision) {
  const Json& grid = spec.at("frames_height_width");
  const Doubles bases{20.0, 2048.0, 2048.0};
  Doubles fractions;
  const auto add = [&](std::size_t axis, std::int64_t coordinate) {
    if (spec.at("scale").is_null()) return fractions.push_back(static_cast<double>(coordinate));
    const double scale = spec.at("scale").at(axis).as_double();
    fractions.push_back(precision == TablePrecision::float64
                            ? static_cast<double>(coordinate) * scale / bases[axis]
                            : static_cast<double>(static_cast<float>(coordinate) * static_cast<float>(scale) /
                                                  static_cast<float>(bases[axis])));
  };
  for (std::int64_t f = 0; f < grid.at(0U).as_int(); ++f) {
    for (std::int64_t y = 0; y < grid.at(1U).as_int(); ++y) {
      for (std::int64_t x = 0; x < grid.at(2U).as_int(); ++x) {
        add(0, f);
        add(1, y);
        add(2, x);
      }
    }
  }
  return fractions;
}

TEST(FractionAngles, StayWithinTheBoundOfOneFrequencyUnitOfTheRecordedOnes) {
  for (const std::string name : {"ltx_rope_raw", "ltx_rope_scaled"}) {
    RecordedTable recorded(name);
    const std::int64_t width = recorded.spec().at("dim").as_int() / 2;
    const AngleTable table = tables::fraction_angles(ltx_fractions(recorded.spec(), TablePrecision::float32), 3, width,
                                                     10000.0, TablePrecision::float32);
    const HostArray cosine = recorded.values("fp32.0"), sine = recorded.values("fp32.1");
    int far = 0;
    for (std::size_t i = 0; i < table.angles.size(); ++i) {
      const double difference =
          std::max(std::abs(table.cosine[i] - cosine.values[2 * i]), std::abs(table.sine[i] - sine.values[2 * i]));
      // Measured: at most 2.3 units of 2^-24 of the angle, and five frequencies of 341 that differ at all.
      EXPECT_LE(difference, 2e-7 + 3.0 * std::ldexp(1.0, -24) * std::abs(table.angles[i])) << name << " " << i;
      if (difference > 1e-6) ++far;
    }
    EXPECT_LE(far, 5 * 3 * 4) << name;
  }
}

TEST(FractionAngles, InDoubleEqualTheRecordedExactOnes) {
  for (const std::string name : {"ltx_rope_raw", "ltx_rope_scaled"}) {
    RecordedTable recorded(name);
    const std::int64_t width = recorded.spec().at("dim").as_int() / 2;
    const AngleTable table = tables::fraction_angles(ltx_fractions(recorded.spec(), TablePrecision::float64), 3, width,
                                                     10000.0, TablePrecision::float64);
    const HostArray cosine = recorded.values("exact.0"), sine = recorded.values("exact.1");
    for (std::size_t i = 0; i < table.angles.size(); ++i) {
      // A frequency is the result of pow, which may differ by two units between libraries: 2^-52 of the angle each.
      const double bound = 1e-15 + std::ldexp(4.0, -52) * std::abs(table.angles[i]);
      ASSERT_NEAR(table.cosine[i], cosine.values[2 * i], bound) << name << " " << i;
      ASSERT_NEAR(table.sine[i], sine.values[2 * i], bound) << name << " " << i;
    }
  }
}

// D = 16: two pairs are left over, then two frequencies of three axes.
TEST(FractionAngles, EqualThePrintedVector) {
  const Doubles fractions{1 * 0.3 / 20, 2 * 32.0 / 2048, 3 * 32.0 / 2048};
  for (const TablePrecision precision : {TablePrecision::float32, TablePrecision::float64}) {
    const AngleTable table = tables::fraction_angles(fractions, 3, 8, 10000.0, precision);
    ASSERT_EQ(table.width, 8);
    expect_printed({table.cosine.begin(), table.cosine.begin() + 5}, {1, 1, 0.047106, 0.098017, 0.146730});
    expect_printed({table.sine.begin(), table.sine.begin() + 5}, {0, 0, -0.998890, -0.995185, -0.989177});
  }
  const AngleTable narrow = tables::fraction_angles(fractions, 3, 8, 10000.0, TablePrecision::float32);
  expect_printed({narrow.cosine.begin() + 5, narrow.cosine.end()}, {0.999999, 0.000257, -0.707046});
}

TEST(FractionAngles, MayTakeFrequenciesThatAreRoundedAtTheEnd) {
  const Doubles fractions{0.25};
  const auto of = [&](TablePrecision precision, FrequencyPrecision frequencies) {
    return tables::fraction_angles(fractions, 1, 33, 10000.0, precision, frequencies).angles;
  };
  const Doubles exact = of(TablePrecision::float64, FrequencyPrecision::of_table);
  const Doubles rounded = of(TablePrecision::float32, FrequencyPrecision::float64);
  for (std::size_t i = 0; i < exact.size(); ++i)
    EXPECT_EQ(rounded[i], static_cast<double>(static_cast<float>(exact[i] / -0.5) * -0.5F)) << i;
  EXPECT_NE(rounded, of(TablePrecision::float32, FrequencyPrecision::of_table));
  EXPECT_EQ(of(TablePrecision::float64, FrequencyPrecision::float64), exact);
}

TEST(FractionAngles, OfOneFrequencyOrNoneExist) {
  const Doubles fractions{0.0, 1.0, 1.0};
  const double quarter = std::acos(0.0);
  EXPECT_EQ(tables::fraction_angles(fractions, 3, 3, 10000.0, TablePrecision::float64).angles,
            (Doubles{-quarter, quarter, quarter}));
  EXPECT_EQ(tables::fraction_angles(fractions, 3, 2, 10000.0, TablePrecision::float32).angles, (Doubles{0, 0}));
  EXPECT_EQ(thrown_by([&] { tables::fraction_angles(fractions, 2, 4, 1e4, TablePrecision::float32); }),
            thrown(ErrorKind::config_error, "a rotary table of width 4 from 3 fractions on 2 axes"));
}

TEST(AngleTable, StandsOnADeviceWithEachValueRepeated) {
  HostDevice device;
  const AngleTable table = flux_row({1, 2, 3}, TablePrecision::float64);
  const Tensor cosine = tables::cosine_on(device, table, kFloat64, 2);
  EXPECT_EQ(cosine.shape(), (Shape{1, 16}));
  const Doubles values = ops::to_doubles(cosine);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], table.cosine[i / 2]) << i;
  EXPECT_EQ(tables::sine_on(device, table, kFloat32, 1).shape(), (Shape{1, 8}));
  EXPECT_EQ(ops::to_doubles(tables::sine_on(device, table, kFloat64, 1)), table.sine);
}

TEST(AngleTable, MayHaveNoRows) {
  HostDevice device;
  const AngleTable table = tables::sinusoid({}, 4, TablePrecision::float32);
  EXPECT_EQ(tables::cosine_on(device, table, kFloat64, 2).shape(), (Shape{0, 4}));
}

TEST(AngleTable, RefusesWidthsAndPartsThatCannotBe) {
  EXPECT_EQ(thrown_by([] { tables::sinusoid(Doubles{1}, 3, TablePrecision::float32); }),
            thrown(ErrorKind::config_error, "a sinusoid of width 3; it must be even and positive"));
  EXPECT_EQ(thrown_by([] { tables::rotary_angles64(Doubles{1}, 0, 1e4, TablePrecision::float32); }),
            thrown(ErrorKind::config_error, "rotary tables of width 0; it must be even and positive"));
  EXPECT_EQ(thrown_by([] { tables::rotary_angles32(Doubles{1}, 5, 1e4, TablePrecision::float32); }),
            thrown(ErrorKind::config_error, "rotary tables of width 5; it must be even and positive"));
  EXPECT_EQ(thrown_by([] { tables::side_by_side({}); }), thrown(ErrorKind::shape_error, "no tables to join"));
  const std::vector<AngleTable> parts{tables::sinusoid(Doubles{1}, 2, TablePrecision::float32),
                                      tables::sinusoid(Doubles{1, 2}, 2, TablePrecision::float32)};
  EXPECT_EQ(thrown_by([&] { tables::side_by_side(parts); }),
            thrown(ErrorKind::shape_error, "tables of 1 and 2 rows cannot stand side by side"));
}

}  // namespace
}  // namespace shardproof::test
