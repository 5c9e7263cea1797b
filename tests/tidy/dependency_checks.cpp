// The check that the three lists of dependencies say the same: what the build looks for, what the set-up installs, and
// what the documentation shows.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tests/tidy/checks.h"

namespace shardproof::tidy {

namespace {

constexpr std::string_view kBuildList = "cmake/ShardproofDependencies.cmake";
constexpr std::string_view kSetupList = "tools/setup.sh";
constexpr std::string_view kTable = "docs/dependencies.md";

const SourceFile* file_at(const SourceTree& tree, std::string_view path) {
  for (const SourceFile& file : tree) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

// A dependency but for its version: what its row has to say.
struct Dependency {
  std::size_t line = 0;
  std::string name;
  std::string packages;
  std::string need;
  std::string purpose;
};

// The parts of a text between quotes, and the words outside of them.
std::vector<std::string> parts_of_call(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    if (text.front() == '"') {
      const std::size_t end = text.find('"', 1);
      if (end == std::string_view::npos) break;
      parts.emplace_back(text.substr(1, end - 1));
      text.remove_prefix(end + 1);
    } else if (text.front() == ' ') {
      text.remove_prefix(1);
    } else {
      const std::size_t end = std::min(text.find_first_of(" \""), text.size());
      parts.emplace_back(text.substr(0, end));
      text.remove_prefix(end);
    }
  }
  return parts;
}

std::vector<Dependency> dependencies_of_build(const SourceFile& file, Findings& findings) {
  constexpr std::string_view kCall = "shardproof_dependency(";
  std::vector<Dependency> dependencies;
  std::size_t number = 0;
  for (std::string_view line : lines_of(file.text)) {
    ++number;
    if (!line.starts_with(kCall) || !line.ends_with(')')) continue;
    line = line.substr(kCall.size(), line.size() - kCall.size() - 1);
    const std::vector<std::string> parts = parts_of_call(line);
    if (parts.size() == 5) {
      dependencies.push_back({number, parts[0], parts[2], parts[3], parts[4]});
    } else {
      findings.push_back(
          {file.path, number, fmt::format("{} parts; expected name, version, packages, need, purpose", parts.size())});
    }
  }
  if (dependencies.empty()) findings.push_back({file.path, 0, "no shardproof_dependency(..) stands here"});
  return dependencies;
}

// The cells of a row of a Markdown table, without the blanks around them.
std::vector<std::string> cells_of(std::string_view row) {
  std::vector<std::string> cells;
  while (row.starts_with("| ") && row.size() > 2) {
    row.remove_prefix(2);
    const std::size_t end = row.find(" |");
    if (end == std::string_view::npos) return {};
    cells.emplace_back(row.substr(0, end));
    row.remove_prefix(end + 1);
  }
  return cells;
}

std::set<std::string> packages_of_setup(const SourceFile& file) {
  std::set<std::string> packages;
  bool is_inside = false;
  for (std::string_view line : lines_of(file.text)) {
    line = line.substr(0, line.find('#'));
    if (is_inside && line.starts_with(')')) break;
    if (is_inside) {
      for (const std::string_view word : words_of(line)) packages.emplace(word);
    }
    is_inside = is_inside || line.starts_with("packages=(");
  }
  return packages;
}

void compare_packages(const std::vector<Dependency>& dependencies, const SourceFile& setup, Findings& findings) {
  std::set<std::string> left = packages_of_setup(setup);
  const std::set<std::string> installed = left;
  for (const Dependency& dependency : dependencies) {
    for (const std::string_view package : words_of(dependency.packages)) {
      left.erase(std::string(package));
      if (installed.contains(std::string(package))) continue;
      findings.push_back(
          {std::string(kBuildList), dependency.line,
           fmt::format("{} needs the package {}, which {} does not install", dependency.name, package, kSetupList)});
    }
  }
  for (const std::string& package : left) {
    findings.push_back(
        {setup.path, 0, fmt::format("the package {} belongs to no dependency in {}", package, kBuildList)});
  }
}

void compare_table(const std::vector<Dependency>& dependencies, const SourceFile& table, Findings& findings) {
  std::map<std::string, std::vector<std::string>> rows;
  std::map<std::string, std::size_t> line_of;
  std::size_t number = 0;
  for (const std::string_view line : lines_of(table.text)) {
    ++number;
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() != 5 || cells[0] == "name") continue;
    rows[cells[0]] = {cells[1], cells[3], cells[4]};
    line_of[cells[0]] = number;
  }
  for (const Dependency& dependency : dependencies) {
    const auto row = rows.find(dependency.name);
    if (row == rows.end()) {
      findings.push_back({table.path, 0, fmt::format("{} is missing; {} has it", dependency.name, kBuildList)});
      continue;
    }
    const std::vector<std::string> expected{dependency.packages, dependency.need, dependency.purpose};
    if (row->second != expected) {
      findings.push_back({table.path, line_of[dependency.name],
                          fmt::format("{} says '{}'; {} says '{}'", dependency.name, fmt::join(row->second, " | "),
                                      kBuildList, fmt::join(expected, " | "))});
    }
    rows.erase(row);
  }
  for (const auto& [name, cells] : rows) {
    findings.push_back({table.path, line_of[name], fmt::format("{} is unknown to {}", name, kBuildList)});
  }
}

}  // namespace

Findings check_dependency_lists(const SourceTree& tree) {
  Findings findings;
  const SourceFile* const build = file_at(tree, kBuildList);
  const SourceFile* const setup = file_at(tree, kSetupList);
  const SourceFile* const table = file_at(tree, kTable);
  if (build == nullptr) return {{std::string(kBuildList), 0, "the file is missing"}};
  if (setup == nullptr) return {{std::string(kSetupList), 0, "the file is missing"}};
  if (table == nullptr) return {{std::string(kTable), 0, "the file is missing"}};
  const std::vector<Dependency> dependencies = dependencies_of_build(*build, findings);
  compare_packages(dependencies, *setup, findings);
  compare_table(dependencies, *table, findings);
  return findings;
}

}  // namespace shardproof::tidy
