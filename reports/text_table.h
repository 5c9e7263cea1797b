// A table of text with aligned columns, for the terminal printer: a column is as wide as its widest cell, one that is
// empty in every row is left out, and colour never counts as width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardproof {

enum class Tone : std::uint8_t { plain, good, bad, faint };

// The text in the terminal's colour for the tone.
std::string in_tone(std::string_view text, Tone tone);

// Characters of a UTF-8 text.
std::size_t width_of(std::string_view text);

// Words broken into lines of at most `width` characters (a longer word stays whole), every line led by `indent`
// blanks and ended. The first line is led by `first` instead, which should be as wide.
std::string wrapped(std::string_view text, std::string_view first, std::size_t indent, std::size_t width);

class TextTable {
 public:
  enum class Align : std::uint8_t { left, right };
  enum class Colour : std::uint8_t { off, on };
  struct Column {
    std::string title;
    Align align = Align::left;
  };
  struct Cell {
    std::string text;
    Tone tone = Tone::plain;
    std::optional<double> number = std::nullopt;  // which the text stands for, where it does: rows can be sorted by it
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell for each column. Control characters of a cell are escaped, with or without colour.
  void add(std::vector<Cell> row);
  bool empty() const { return rows_.empty(); }
  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<std::vector<Cell>>& rows() const { return rows_; }
  // Whether a row has something in this column.
  bool is_filled(std::size_t column) const;
  // Title line and rows, every line ended and without blanks at its end.
  std::string text(Colour colour) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace shardproof
