// What a static library defines and what it refers to, as `nm` prints it, and the rule about it: the algorithms and the
// models are one set of object files for simulated and for real ranks, so they refer to nothing of either.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof::symbols {

using Names = std::set<std::string, std::less<>>;

struct SymbolTable {
  std::string library;  // for messages: "parallel"
  Names strong;         // defined here and nowhere else
  Names weak;           // inline functions and templates: whoever uses one defines it
  Names referred;       // used, and not defined by the object file that uses them

  bool defines(std::string_view name) const { return strong.contains(name) || weak.contains(name); }
};

// From the output of `nm` on a library, in its own (BSD) format with mangled names.
SymbolTable table_from_nm(std::string_view library, std::string_view output);

// What a command line writes; a test failure if it ends with another status than 0.
std::string output_of(const std::string& command);

// The table of a library file; a test failure if nm cannot read it.
SymbolTable table_of_library(std::string_view library, const std::string& path);

// One line for each symbol that `common` refers to and `backend` defines, unless `common` itself or one of `below`
// (libraries that both use) defines it too; and for each that both define as the only one to do so.
std::vector<std::string> symbols_shared_with(const SymbolTable& common, const SymbolTable& backend,
                                             const std::vector<SymbolTable>& below);

}  // namespace shardproof::symbols
