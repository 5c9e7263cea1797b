// JSON values: a small tree of our own, so that no third-party type shows in a header. Objects keep their order, and a
// parsed value remembers its file and key path, so that a wrong entry is reported as
// "config.json: key 'num_layers' must be an integer >= 1, got "x"". Integers and doubles are distinct kinds.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shardproof {

struct JsonMember;
struct JsonOrigin;

struct JsonLimits {
  std::size_t max_bytes = std::size_t{64} << 20U;
  int max_depth = 64;                  // nested arrays and objects
  std::size_t max_values = 2'000'000;  // values of any kind, so that a hostile file cannot fill the memory
};

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;

  // null
  Json() = default;
  Json(std::nullptr_t) {}
  template <std::same_as<bool> Bool>
  Json(Bool value) : value_(value) {}
  // Throws internal_error for an unsigned value beyond int64.
  template <std::integral Integer>
    requires(!std::same_as<Integer, bool>)
  Json(Integer value) : value_(checked_integer(value)) {}
  template <std::floating_point Float>
  Json(Float value) : value_(static_cast<double>(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  static Json array(Array items = {});
  static Json object(Object members = {});

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }

  // Reading. Each throws file_error, naming file, key path, value and what was expected.
  bool as_bool() const;
  std::int64_t as_int(std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                      std::int64_t max = std::numeric_limits<std::int64_t>::max()) const;
  double as_double() const;  // of an integer or a double
  const std::string& as_string() const;
  const Array& items() const;
  const Object& members() const;
  // The member of that name; linear in the number of members.
  const Json& at(std::string_view key) const;
  // The same, or nullptr if there is none (a member that is null is there); still an error if this is not an object.
  const Json* find(std::string_view key) const;
  // The element at `index` of an array.
  const Json& at(std::size_t index) const;
  // Refuses members with other names.
  void check_keys(std::initializer_list<std::string_view> known) const;
  // Entries of an array or object.
  std::size_t size() const;

  // "config.json: key 'layers[2].name'", or "config.json" for the whole document.
  std::string where() const;
  // Throws the file_error "<where> must be <expectation>, got <value>".
  [[noreturn]] void reject(std::string_view expectation) const;

  // Building. `set` replaces a member of that name; both throw internal_error on another kind of value.
  Json& set(std::string_view key, Json value);
  Json& append(Json value);

  // One line without spaces for indent 0, otherwise a line per member, arrays of scalars on one line. Doubles are
  // spelt as the shortest text that reads back as the same double, always with a point or exponent; NaN and infinities
  // as the strings "nan", "inf", "-inf". Invalid UTF-8 becomes U+FFFD.
  std::string dump(int indent = 0) const;

  // Equal kinds, values and order; where they came from does not matter.
  friend bool operator==(const Json& a, const Json& b);

 private:
  friend class JsonBuilder;

  template <std::integral Integer>
  static std::int64_t checked_integer(Integer value) {
    if (!std::in_range<std::int64_t>(value)) reject_large_integer();
    return static_cast<std::int64_t>(value);
  }
  [[noreturn]] static void reject_large_integer();
  void write(std::string& text, int indent, int depth) const;

  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
  std::shared_ptr<const JsonOrigin> origin_;  // of a scalar in an array: the array's
  std::int64_t index_ = -1;                   // of a scalar in an array
};

struct JsonMember {
  std::string key;
  Json value;
  friend bool operator==(const JsonMember& a, const JsonMember& b) = default;
};

// Throws file_error naming `source_name` and the byte offset or the key path: syntax, invalid UTF-8, a duplicate key,
// numbers outside int64 or double, a limit exceeded.
Json parse_json(std::string_view text, std::string_view source_name, const JsonLimits& limits = {});
Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

}  // namespace shardproof
