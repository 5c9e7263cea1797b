#include "reports/text_table.h"

#include <algorithm>

#include "core/file.h"
#include "core/utf8.h"

namespace shardproof {
namespace {

constexpr std::size_t kGap = 2;

std::string_view tone_code(Tone tone) {
  switch (tone) {
    case Tone::plain: return "";
    case Tone::good: return "\x1b[32m";
    case Tone::bad: return "\x1b[1;31m";
    case Tone::faint: return "\x1b[2m";
  }
  return "";
}

}  // namespace

std::string in_tone(std::string_view text, Tone tone) {
  if (tone == Tone::plain) return std::string(text);
  return std::string(tone_code(tone)) + std::string(text) + "\x1b[0m";
}

std::size_t width_of(std::string_view text) {
  std::size_t width = 0;
  for (std::size_t at = 0; at < text.size(); ++width) at += std::max<std::size_t>(utf8_length(text.substr(at)), 1);
  return width;
}

std::string wrapped(std::string_view text, std::string_view first, std::size_t indent, std::size_t width) {
  std::string result;
  std::string line(first);
  bool has_word = false;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (has_word && width_of(line) + 1 + width_of(word) > width) {
      result += line + "\n";
      line.assign(indent, ' ');
      has_word = false;
    }
    if (has_word) line += ' ';
    line += word;
    has_word = true;
  }
  return result + line + "\n";
}

void TextTable::add(std::vector<Cell> row) {
  for (Cell& cell : row) cell.text = printable(cell.text, std::string::npos);
  rows_.push_back(std::move(row));
}

bool TextTable::is_filled(std::size_t column) const {
  return std::ranges::any_of(rows_, [&](const std::vector<Cell>& row) { return !row[column].text.empty(); });
}

std::string TextTable::text(Colour colour) const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const std::vector<Cell>& row : rows_) {
    for (std::size_t i = 0; i < columns_.size(); ++i) widths[i] = std::max(widths[i], width_of(row.at(i).text));
  }
  std::string result;
  const auto add_line = [&](const auto& cell_of) {
    std::string line;
    std::size_t blanks = 0;  // owed before the next cell, so that no line ends with them
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (widths[i] == 0) continue;
      const Cell cell = cell_of(i);
      const std::size_t width = std::max(widths[i], width_of(columns_[i].title));
      const std::size_t pad = width - width_of(cell.text);
      if (columns_[i].align == Align::right) blanks += pad;
      if (!cell.text.empty()) {
        line.append(blanks, ' ');
        line += colour == Colour::on ? in_tone(cell.text, cell.tone) : cell.text;
        blanks = 0;
      }
      blanks += kGap + (columns_[i].align == Align::left ? pad : 0);
    }
    result += line + "\n";
  };
  add_line([&](std::size_t i) { return Cell{columns_[i].title, Tone::faint}; });
  for (const std::vector<Cell>& row : rows_) add_line([&](std::size_t i) { return row[i]; });
  return result;
}

}  // namespace shardproof
