// A report as text for people: what was run, one aligned table, then what needs words (differences, refusals with their
// reasons, skipped plan entries, what was not checked), and a last line with the counts and the largest figure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reports/result.h"
#include "reports/text_table.h"

namespace shardproof {

struct TerminalOptions {
  TextTable::Colour colour = TextTable::Colour::off;
  // Running text is broken at this many characters. Tables are as wide as what they hold (up to about 160).
  std::size_t width = 120;
};

std::string terminal_text(const Report& report, const TerminalOptions& options = {});

// "9,8,7"; of more than eight the first four and the count: "4,4,4,4,.. (1024)".
std::string sizes_text(const std::vector<std::int64_t>& sizes);
// "512 B", "48.3 KiB", "1.2 GiB"; 1 KiB is 1024 bytes.
std::string bytes_text(std::int64_t bytes);

}  // namespace shardproof
