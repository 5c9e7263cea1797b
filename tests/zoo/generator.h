// Makes the copy of a source file in which every fault's statement stands behind a switch:
// `statement;` becomes `{ if (zoo::active(..)) { replacement } else { statement; } }`, an expression becomes
// `(zoo::active(..) ? (replacement) : (expression))`.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "tests/zoo/fault.h"

namespace shardproof::zoo {

// The copy of `source`, the text of `file`, with all edits of the faults that concern this file. config_error naming
// the fault, the file and the statement for one that does not stand there, or not exactly once, and for two faults
// whose statements overlap without being the same.
std::string with_switches(std::string_view file, std::string_view source, std::span<const Fault> faults);

// config_error for a fault whose edit names a file that is not among `files`, which would leave it without effect.
void check_files_are_listed(std::span<const Fault> faults, std::span<const std::string_view> files);

}  // namespace shardproof::zoo
