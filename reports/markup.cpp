#include "reports/markup.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/file.h"
#include "core/utf8.h"

namespace shardproof {
namespace {

// Code points that are valid UTF-8 and no characters: the last two of every plane and 32 more. XML does not allow
// U+FFFE and U+FFFF, HTML none of them.
bool is_noncharacter(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 3 && byte(0) == 0xEF) {
    return (byte(1) == 0xBF && byte(2) >= 0xBE) || (byte(1) == 0xB7 && byte(2) >= 0x90 && byte(2) <= 0xAF);
  }
  return character.size() == 4 && (byte(1) & 0x0FU) == 0x0F && byte(2) == 0xBF && byte(3) >= 0xBE;
}

std::string escaped(std::string_view raw, std::string_view line_end) {
  const std::string text = printable_lines(raw);
  std::string result;
  result.reserve(text.size());
  for (std::string_view left = text; !left.empty();) {
    const std::string_view character = left.substr(0, std::max<std::size_t>(utf8_length(left), 1));
    left.remove_prefix(character.size());
    switch (character.front()) {
      case '&': result += "&amp;"; continue;
      case '<': result += "&lt;"; continue;
      case '>': result += "&gt;"; continue;
      case '"': result += "&quot;"; continue;
      case '\n': result += line_end; continue;
      default: break;
    }
    if (!is_noncharacter(character)) {
      result += character;
      continue;
    }
    for (const char part : character) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(part));
  }
  return result;
}

}  // namespace

std::string markup_text(std::string_view text) { return escaped(text, "\n"); }

std::string markup_attribute(std::string_view text) { return escaped(text, "&#10;"); }

}  // namespace shardproof
