#include "core/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/utf8.h"

namespace shardproof {

// One step of a key path; the root has no parent and carries the name of the source.
struct JsonOrigin {
  std::shared_ptr<const JsonOrigin> parent;
  std::string name;         // key of a member, or the source of the root
  std::int64_t index = -1;  // of an array's element
};

namespace {

std::string key_path(const JsonOrigin* origin) {
  std::vector<const JsonOrigin*> steps;
  for (; origin != nullptr && origin->parent != nullptr; origin = origin->parent.get()) steps.push_back(origin);
  std::string path;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if ((*step)->index >= 0) {
      path += fmt::format("[{}]", (*step)->index);
    } else {
      path += (path.empty() ? "" : ".") + printable((*step)->name);
    }
  }
  return path;
}

const std::string& source_of(const JsonOrigin* origin) {
  while (origin->parent != nullptr) origin = origin->parent.get();
  return origin->name;
}

std::string location(const JsonOrigin* origin, std::int64_t index) {
  if (origin == nullptr) return "JSON value";
  if (origin->parent == nullptr && index < 0) return source_of(origin);
  std::string path = key_path(origin);
  if (index >= 0) path += fmt::format("[{}]", index);
  return fmt::format("{}: key '{}'", source_of(origin), path);
}

void write_string(std::string& text, std::string_view value) {
  text += '"';
  while (!value.empty()) {
    const std::size_t length = utf8_length(value);
    const char first = value.front();
    if (length == 0) {
      text += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      text += '\\';
      text += first;
    } else if (first == '\n') {
      text += "\\n";
    } else if (first == '\t') {
      text += "\\t";
    } else if (static_cast<unsigned char>(first) < 0x20 || first == 0x7F) {
      text += fmt::format("\\u{:04x}", static_cast<unsigned>(first));
    } else {
      text += value.substr(0, length);
    }
    value.remove_prefix(std::max<std::size_t>(length, 1));
  }
  text += '"';
}

void write_double(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "\"nan\"";
  } else if (std::isinf(value)) {
    text += value > 0 ? "\"inf\"" : "\"-inf\"";
  } else {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    const std::string_view spelling(digits.data(), static_cast<std::size_t>(end - digits.data()));
    text += spelling;
    if (spelling.find_first_of(".e") == std::string_view::npos) text += ".0";
  }
}

}  // namespace

// Receives the events of the third-party parser and builds the tree. Member names and signatures are the parser's.
class JsonBuilder {
 public:
  JsonBuilder(std::string_view source, std::string_view text, const JsonLimits& limits)
      : text_(text),
        limits_(limits),
        root_(std::make_shared<const JsonOrigin>(JsonOrigin{nullptr, printable(source, 1000), -1})) {}

  Json take() { return std::move(result_); }

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(std::int64_t value) { return add(Json(value)); }
  bool number_unsigned(std::uint64_t value) {
    if (!std::in_range<std::int64_t>(value)) refuse_integer(std::to_string(value));
    return add(Json(value));
  }
  bool number_float(double value, const std::string& spelling) {
    // The parser hands on integers beyond 64 bits as doubles.
    if (spelling.find_first_of(".eE") == std::string::npos) refuse_integer(spelling);
    return add(Json(value));
  }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(std::vector<std::uint8_t>&) { return false; }

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool key(std::string& name) {
    std::get<Json::Object>(open_.back().value_).push_back({std::move(name), Json()});
    return true;
  }
  bool end_array() { return close(); }
  bool end_object() {
    std::vector<std::string_view> keys;
    const Json& object = open_.back();
    for (const JsonMember& member : std::get<Json::Object>(object.value_)) keys.emplace_back(member.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) {
      const JsonOrigin path{object.origin_, std::string(*twice), -1};
      fail(ErrorKind::file_error, "{}: key '{}' stands twice", source_of(&path), key_path(&path));
    }
    return close();
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
    // What the parser says has the form "[...] parse error at line 1, column 2: syntax error ...".
    std::string_view detail = error.what();
    if (const auto bracket = detail.find("] "); bracket != std::string_view::npos) detail.remove_prefix(bracket + 2);
    if (const auto colon = detail.find(": "); detail.starts_with("parse error at") && colon != std::string_view::npos) {
      detail.remove_prefix(colon + 2);
    }
    const std::string_view before = text_.substr(0, position == 0 ? 0 : position - 1);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
    fail(ErrorKind::file_error, "{}: not valid JSON at byte {} (line {}, column {}): {}", root_->name, before.size(),
         line, column, printable(detail));
  }

 private:
  // Puts the value into its place and tells it where that is.
  bool add(Json value) {
    place(value);
    store(std::move(value));
    return true;
  }

  void place(Json& value) {
    if (++values_ > limits_.max_values) {
      fail(ErrorKind::file_error, "{}: more than {} JSON values, the most that is read", root_->name,
           limits_.max_values);
    }
    if (open_.empty()) {
      value.origin_ = root_;
      return;
    }
    const Json& parent = open_.back();
    if (parent.is_object()) {
      const std::string& name = std::get<Json::Object>(parent.value_).back().key;
      value.origin_ = std::make_shared<const JsonOrigin>(JsonOrigin{parent.origin_, name, -1});
      return;
    }
    const auto index = static_cast<std::int64_t>(std::get<Json::Array>(parent.value_).size());
    if (value.is_array() || value.is_object()) {
      value.origin_ = std::make_shared<const JsonOrigin>(JsonOrigin{parent.origin_, {}, index});
    } else {
      value.origin_ = parent.origin_;
      value.index_ = index;
    }
  }

  void store(Json value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (Json& parent = open_.back(); parent.is_object()) {
      std::get<Json::Object>(parent.value_).back().value = std::move(value);
    } else {
      std::get<Json::Array>(parent.value_).push_back(std::move(value));
    }
  }

  bool open(Json container) {
    place(container);
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      fail(ErrorKind::file_error, "{}: JSON nested deeper than {} levels", root_->name, limits_.max_depth);
    }
    open_.push_back(std::move(container));
    return true;
  }

  bool close() {
    Json value = std::move(open_.back());
    open_.pop_back();
    store(std::move(value));
    return true;
  }

  [[noreturn]] void refuse_integer(const std::string& spelling) {
    Json value;
    place(value);
    fail(ErrorKind::file_error, "{}: {}integer {} does not fit 64 bits", value.where(),
         open_.empty() ? "the top level: " : "", printable(spelling, 60));
  }

  std::string_view text_;
  JsonLimits limits_;
  std::shared_ptr<const JsonOrigin> root_;
  std::vector<Json> open_;
  std::size_t values_ = 0;
  Json result_;
};

Json Json::array(Array items) {
  Json json;
  json.value_ = std::move(items);
  return json;
}

Json Json::object(Object members) {
  Json json;
  json.value_ = std::move(members);
  return json;
}

void Json::reject_large_integer() { fail(ErrorKind::internal_error, "a JSON integer must fit signed 64 bits"); }

std::string Json::where() const { return location(origin_.get(), index_); }

void Json::reject(std::string_view expectation) const {
  const bool is_root = origin_ != nullptr && origin_->parent == nullptr && index_ < 0;
  fail(ErrorKind::file_error, "{}{} must be {}, got {}", where(), is_root ? ": the top level" : "", expectation,
       printable(dump(), 80));
}

bool Json::as_bool() const {
  if (!is_bool()) reject("true or false");
  return std::get<bool>(value_);
}

std::int64_t Json::as_int(std::int64_t min, std::int64_t max) const {
  if (is_integer()) {
    const std::int64_t value = std::get<std::int64_t>(value_);
    if (value >= min && value <= max) return value;
  }
  const bool bounded_below = min != std::numeric_limits<std::int64_t>::min();
  const bool bounded_above = max != std::numeric_limits<std::int64_t>::max();
  if (bounded_below && bounded_above) reject(fmt::format("an integer from {} to {}", min, max));
  if (bounded_below) reject(fmt::format("an integer >= {}", min));
  if (bounded_above) reject(fmt::format("an integer <= {}", max));
  reject("an integer");
}

double Json::as_double() const {
  if (is_integer()) return static_cast<double>(std::get<std::int64_t>(value_));
  if (!is_double()) reject("a number");
  return std::get<double>(value_);
}

const std::string& Json::as_string() const {
  if (!is_string()) reject("a string");
  return std::get<std::string>(value_);
}

const Json::Array& Json::items() const {
  if (!is_array()) reject("a list");
  return std::get<Array>(value_);
}

const Json::Object& Json::members() const {
  if (!is_object()) reject("an object");
  return std::get<Object>(value_);
}

const Json* Json::find(std::string_view key) const {
  for (const JsonMember& member : members()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  const Json* const value = find(key);
  if (value != nullptr) return *value;
  const JsonOrigin path{origin_, std::string(key), -1};
  if (origin_ == nullptr) fail(ErrorKind::file_error, "JSON value: key '{}' is missing", printable(key));
  fail(ErrorKind::file_error, "{}: key '{}' is missing", source_of(&path), key_path(&path));
}

const Json& Json::at(std::size_t index) const {
  const Array& array = items();
  SHARDPROOF_CHECK(index < array.size(), file_error, "{} has {} entries; entry {} was asked for", where(), array.size(),
                   index);
  return array[index];
}

void Json::check_keys(std::initializer_list<std::string_view> known) const {
  for (const JsonMember& member : members()) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    std::string names;
    for (const std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
    fail(ErrorKind::file_error, "{} is not known here; known: {}", member.value.where(), names);
  }
}

std::size_t Json::size() const {
  if (is_array()) return std::get<Array>(value_).size();
  if (is_object()) return std::get<Object>(value_).size();
  reject("a list or an object");
}

Json& Json::set(std::string_view key, Json value) {
  SHARDPROOF_CHECK(is_object(), internal_error, "a member is set in a JSON value that is not an object");
  for (JsonMember& member : std::get<Object>(value_)) {
    if (member.key == key) {
      member.value = std::move(value);
      return *this;
    }
  }
  std::get<Object>(value_).push_back({std::string(key), std::move(value)});
  return *this;
}

Json& Json::append(Json value) {
  SHARDPROOF_CHECK(is_array(), internal_error, "an item is appended to a JSON value that is not a list");
  std::get<Array>(value_).push_back(std::move(value));
  return *this;
}

void Json::write(std::string& text, int indent, int depth) const {
  const auto is_container = [](const Json& json) { return json.is_array() || json.is_object(); };
  const auto new_line = [&](int level) {
    text += '\n';
    text.append(static_cast<std::size_t>(indent) * static_cast<std::size_t>(level), ' ');
  };
  if (is_null()) {
    text += "null";
  } else if (is_bool()) {
    text += std::get<bool>(value_) ? "true" : "false";
  } else if (is_integer()) {
    text += std::to_string(std::get<std::int64_t>(value_));
  } else if (is_double()) {
    write_double(text, std::get<double>(value_));
  } else if (is_string()) {
    write_string(text, std::get<std::string>(value_));
  } else if (is_array()) {
    const Array& array = std::get<Array>(value_);
    const bool lines = indent > 0 && std::any_of(array.begin(), array.end(), is_container);
    text += '[';
    for (std::size_t i = 0; i < array.size(); ++i) {
      if (i > 0) text += lines || indent == 0 ? "," : ", ";
      if (lines) new_line(depth + 1);
      array[i].write(text, indent, depth + 1);
    }
    if (lines) new_line(depth);
    text += ']';
  } else {
    const Object& object = std::get<Object>(value_);
    text += '{';
    for (std::size_t i = 0; i < object.size(); ++i) {
      if (i > 0) text += ',';
      if (indent > 0) new_line(depth + 1);
      write_string(text, object[i].key);
      text += indent > 0 ? ": " : ":";
      object[i].value.write(text, indent, depth + 1);
    }
    if (indent > 0 && !object.empty()) new_line(depth);
    text += '}';
  }
}

std::string Json::dump(int indent) const {
  std::string text;
  write(text, indent, 0);
  return text;
}

bool operator==(const Json& a, const Json& b) { return a.value_ == b.value_; }

Json parse_json(std::string_view text, std::string_view source_name, const JsonLimits& limits) {
  SHARDPROOF_CHECK(text.size() <= limits.max_bytes, file_error, "{}: {} bytes of JSON; at most {} are read",
                   printable(source_name, 1000), text.size(), limits.max_bytes);
  // The parser would take a NUL byte for the end of the text and ignore what follows.
  const std::size_t nul = text.find('\0');
  SHARDPROOF_CHECK(nul == std::string_view::npos, file_error, "{}: not valid JSON at byte {}: a NUL byte",
                   printable(source_name, 1000), nul);
  JsonBuilder builder(source_name, text, limits);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), path.native(), limits);
}

}  // namespace shardproof
