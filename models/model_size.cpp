#include "models/model_size.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/file.h"

namespace shardproof {
namespace {

// Larger sizes are models of their own, not small ones.
constexpr std::int64_t kMost = 4096;

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(separator, start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::int64_t number_of(std::string_view part, std::string_view value) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  SHARDPROOF_CHECK(error == std::errc() && end == value.data() + value.size() && number >= 1 && number <= kMost,
                   usage_error, "'{}' has the value '{}'; expected an integer from 1 to {}", printable(part),
                   printable(value), kMost);
  return number;
}

}  // namespace

bool ModelSize::has(std::string_view feature) const {
  return std::find(with.begin(), with.end(), feature) != with.end();
}

std::string size_text(const ModelSize& size) {
  std::string text = fmt::format("text={},image={},heads={},layers={},batch={}", size.text, size.image, size.heads,
                                 size.layers, size.batch);
  if (!size.with.empty()) text += fmt::format(",with={}", fmt::join(size.with, "+"));
  return text;
}

ModelSize parse_model_size(std::string_view text) {
  ModelSize size;
  std::vector<std::string_view> seen;
  const std::pair<std::string_view, std::int64_t*> numbers[] = {{"text", &size.text},
                                                                {"image", &size.image},
                                                                {"heads", &size.heads},
                                                                {"layers", &size.layers},
                                                                {"batch", &size.batch}};
  for (const std::string_view part : parts_of(text, ',')) {
    const std::size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const auto* number =
        std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& known) { return known.first == name; });
    SHARDPROOF_CHECK(equals != std::string_view::npos && (name == "with" || number != std::end(numbers)), usage_error,
                     "'{}' is no part of a size; expected NAME=NUMBER with text, image, heads, layers or batch, or "
                     "with=FEATURE+..",
                     printable(part));
    SHARDPROOF_CHECK(std::find(seen.begin(), seen.end(), name) == seen.end(), usage_error,
                     "'{}' is given twice; expected once", name);
    seen.push_back(name);
    const std::string_view value = part.substr(equals + 1);
    if (number != std::end(numbers)) {
      *number->second = number_of(name, value);
      continue;
    }
    for (const std::string_view feature : parts_of(value, '+')) size.with.emplace_back(feature);
  }
  return size;
}

}  // namespace shardproof
