#include "tests/symbols/symbol_table.h"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace shardproof::symbols {
namespace {

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

// "0000000000000010 T name", "                 U name"; a name may hold blanks only if it is demangled.
void add_line(std::string_view line, SymbolTable& table) {
  const std::size_t last = line.rfind(' ');
  if (last == std::string_view::npos || last < 2 || line[last - 2] != ' ') return;
  const char kind = line[last - 1];
  const std::string name(line.substr(last + 1));
  constexpr std::string_view kStrong = "TDBRGSC";
  if (kStrong.find(kind) != std::string_view::npos) table.strong.insert(name);
  if (kind == 'W' || kind == 'V' || kind == 'u') table.weak.insert(name);
  if (kind == 'U' || kind == 'w' || kind == 'v') table.referred.insert(name);
}

}  // namespace

SymbolTable table_from_nm(std::string_view library, std::string_view output) {
  SymbolTable table{.library = std::string(library), .strong = {}, .weak = {}, .referred = {}};
  while (!output.empty()) {
    const std::string_view line = output.substr(0, output.find('\n'));
    output.remove_prefix(std::min(output.size(), line.size() + 1));
    add_line(line, table);
  }
  return table;
}

std::string output_of(const std::string& command) {
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::string output;
  std::array<char, 65536> buffer{};
  for (std::size_t count = 1; pipe != nullptr && count > 0;) {
    count = std::fread(buffer.data(), 1, buffer.size(), pipe);
    output.append(buffer.data(), count);
  }
  if (pipe == nullptr || ::pclose(pipe) != 0) ADD_FAILURE() << command << " failed: " << output.substr(0, 1000);
  return output;
}

SymbolTable table_of_library(std::string_view library, const std::string& path) {
  return table_from_nm(library, output_of(fmt::format("'{}' '{}'", SHARDPROOF_NM, path)));
}

std::vector<std::string> symbols_shared_with(const SymbolTable& common, const SymbolTable& backend,
                                             const std::vector<SymbolTable>& below) {
  std::vector<std::string> findings;
  for (const std::string& name : common.referred) {
    const bool is_met = common.defines(name) || std::any_of(below.begin(), below.end(), [&](const SymbolTable& table) {
                          return table.defines(name);
                        });
    if (is_met || !backend.defines(name)) continue;
    findings.push_back(
        fmt::format("{} refers to {}, which {} defines", common.library, demangled(name), backend.library));
  }
  for (const std::string& name : common.strong) {
    if (backend.strong.contains(name))
      findings.push_back(fmt::format("{} and {} both define {}", common.library, backend.library, demangled(name)));
  }
  return findings;
}

}  // namespace shardproof::symbols
