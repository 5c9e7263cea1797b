// A report as text for people: what was run, one aligned table, then what needs words (differences, refusals with their
// reasons, skipped plan entries, what was not checked), and a last line with the counts and the largest figure.
#pragma once

#include <string>

#include "reports/result.h"
#include "reports/text_table.h"

namespace shardproof {

struct TerminalOptions {
  TextTable::Colour colour = TextTable::Colour::off;
  // Running text is broken at this many characters. Tables are as wide as what they hold (up to about 160).
  std::size_t width = 120;
};

std::string terminal_text(const Report& report, const TerminalOptions& options = {});

}  // namespace shardproof
