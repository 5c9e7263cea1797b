// The tables of a report, for every printer that shows tables: which columns there are, and how a value is written. So
// a page shows the numbers of the terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reports/result.h"
#include "reports/text_table.h"

namespace shardproof {

// Refused configurations have nothing but a verdict to show.
enum class RefusedRows : std::uint8_t { left_out, shown };
TextTable verification_table(const Report& report, RefusedRows refused);
// Of every configuration the modules that are the farthest off. Empty if there are none, or too many.
TextTable module_table(const Report& report);
TextTable oracle_table(const Report& report);
// Without the lines of cases that did not run to the end.
TextTable plan_table(const Report& report);
bool is_end(const PlanRow& row);

Tone tone_of(Verdict verdict);
bool has_ring(const VerificationResult& result);
// The mesh without the dimensions ring and ulysses where they are 1: they say nothing.
std::string short_mesh(std::string_view mesh);
// "ring ring=2 allgather exact field".
std::string configuration_text(const VerificationResult& result);
// "6.81e-16" (float64), "1.75" (a multiple), "" if there is none.
std::string figure_text(const VerificationResult& result);
// "rank 1 [0,12,3]", or "".
std::string worst_text(const VerificationResult& result);
// "9,8,7"; of more than eight the first four and the count: "4,4,4,4,.. (1024)".
std::string sizes_text(const std::vector<std::int64_t>& sizes);
// "512 B", "48.3 KiB", "1.2 GiB"; 1 KiB is 1024 bytes.
std::string bytes_text(std::int64_t bytes);

}  // namespace shardproof
