// Reads the fields of a model's config.json one by one and refuses what is left over, so that a field which would
// change the computation is never ignored.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace shardproof {

class ConfigReader {
 public:
  // Sizes beyond this are typing errors; the bound keeps products of a few of them inside 64 bits.
  static constexpr std::int64_t kLargestSize = 1 << 20;
  static constexpr std::int64_t kLargestLayers = 1000;

  explicit ConfigReader(const Json& json);
  // Each leaves `value` as it is where the field is absent or null, and throws file_error naming file, field and value
  // where it is not of that kind or outside [min, max].
  void read(std::string_view field, std::int64_t& value, std::int64_t min, std::int64_t max = kLargestSize);
  void read(std::string_view field, bool& value);
  void read(std::string_view field, double& value);
  // Refuses what is not above zero or not finite.
  void read_positive(std::string_view field, double& value);
  void read(std::string_view field, std::string& value);
  void read(std::string_view field, std::vector<std::int64_t>& value, std::int64_t min);
  // Absent or null is none.
  void read(std::string_view field, std::optional<std::int64_t>& value, std::int64_t min,
            std::int64_t max = kLargestSize);
  // Three numbers, as of (frame, height, width).
  void read(std::string_view field, std::array<std::int64_t, 3>& value, std::int64_t min,
            std::int64_t max = kLargestSize);
  // unsupported_error where the field is anything but the one value that is offered.
  void read_only(std::string_view field, std::string_view offered);
  // Throws config_error naming the fields that nothing has read (names with a leading underscore are the library's
  // own).
  void finish() const;
  // config_error unless the rotary widths of the axes, which stand in `field`, are even and add up to
  // attention_head_dim.
  void check_rope_axes(const std::vector<std::int64_t>& axes, std::int64_t head_dim,
                       std::string_view field = "axes_dims_rope") const;
  // config_error unless there are as many rotary widths as axes of (frame, height, width).
  void check_three_axes(const std::vector<std::int64_t>& axes, std::string_view field = "axes_dims_rope") const;

 private:
  const Json* find(std::string_view field);
  const Json& json_;
  std::vector<std::string> known_;
};

}  // namespace shardproof
