// The checks of structure: what includes, links and compiles what.
// The table of arrows below is the one place that says which folder may use which.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/tidy/checks.h"

namespace shardproof::tidy {

namespace {

struct FolderRule {
  std::string_view folder;
  std::string_view may_use;  // besides itself
};

// The arrows: what a folder may include and link.
constexpr std::array kFolderRules{
    FolderRule{"core", ""},
    FolderRule{"parallel", "core"},
    FolderRule{"models", "core parallel"},
    FolderRule{"reference", "core"},
    FolderRule{"sim", "core"},
    FolderRule{"real", "core"},
    FolderRule{"reports", "core"},
    FolderRule{"verify", "core parallel models reference sim reports"},
    FolderRule{"app", "core parallel models reference sim real reports verify"},
    FolderRule{"tests", "core parallel models reference sim real reports verify app property_tests"},
    FolderRule{"property_tests", "core parallel models reference sim real reports verify app tests"},
    FolderRule{"bench", "core parallel models reference sim real reports verify app tests"},
};

const FolderRule* rule_of(std::string_view folder) {
  const auto* const rule = std::ranges::find(kFolderRules, folder, &FolderRule::folder);
  return rule == kFolderRules.end() ? nullptr : rule;
}

bool may_use(const FolderRule& rule, std::string_view used) { return used == rule.folder || lists(rule.may_use, used); }

std::string uses_text(const FolderRule& rule) {
  if (rule.may_use.empty()) return fmt::format("{} may use no other folder", rule.folder);
  return fmt::format("{} may use: {}", rule.folder, rule.may_use);
}

struct ThirdPartyRule {
  std::string_view prefix;          // of the name between the brackets
  std::string_view folders;         // whose .cpp files may include it
  std::string_view header_folders;  // whose headers may include it
};

constexpr std::array kThirdPartyRules{
    ThirdPartyRule{"Eigen/", "reference sim tests property_tests bench", ""},
    ThirdPartyRule{"nlohmann/", "core parallel reports verify tests property_tests", ""},
    ThirdPartyRule{"CLI/", "app", ""},
    ThirdPartyRule{"boost/", "sim", ""},
    ThirdPartyRule{"rapidcheck", "tests property_tests", "tests property_tests"},
    ThirdPartyRule{"torch/", "real tests", ""},
    ThirdPartyRule{"ATen/", "real tests", ""},
    ThirdPartyRule{"c10/", "real tests", ""},
    ThirdPartyRule{"cuda", "real tests", ""},
    ThirdPartyRule{"nccl", "real tests", ""},
    ThirdPartyRule{"nvtx3/", "real tests", ""},
    ThirdPartyRule{"mpi", "real tests", ""},
};

std::string_view folder_of_path(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

bool is_cmake(const SourceFile& file) {
  return file.extension() == ".cmake" || file.path == "CMakeLists.txt" || file.path.ends_with("/CMakeLists.txt");
}

// A header named NAME_body.h is what several .cpp files of one folder share: implementation, no interface.
bool is_body(std::string_view path) { return path.ends_with("_body.h"); }

std::string without_hash_comments(std::string_view text) {
  std::string rest;
  for (const std::string_view line : lines_of(text)) {
    rest += line.substr(0, line.find('#'));
    rest += '\n';
  }
  return rest;
}

// The header that a source file implements, or that a test opens with because it is about it.
bool is_subject(const Include& include, const SourceFile& file) {
  if (include.target == file.own_header()) return true;
  return file.path.ends_with("_test.cpp") && includes_of(file).front().target == include.target;
}

enum class IncludeGroup { own, standard, third_party, ours };

// Headers of the C library and the system look like foreign ones; they may stand in either group, so they count as
// standard as long as nothing foreign came before.
IncludeGroup group_of(const Include& include, const SourceFile& file, IncludeGroup last) {
  if (include.quoted) return is_subject(include, file) ? IncludeGroup::own : IncludeGroup::ours;
  const bool has_suffix = include.target.ends_with(".h") || include.target.ends_with(".hpp");
  const bool has_folder = include.target.find('/') != std::string_view::npos;
  const bool is_system = has_suffix && (!has_folder || include.target.starts_with("sys/"));
  if (is_system) return last <= IncludeGroup::standard ? IncludeGroup::standard : IncludeGroup::third_party;
  return has_suffix || has_folder ? IncludeGroup::third_party : IncludeGroup::standard;
}

// Depth-first search over quoted includes. A file on the path that is reached again closes a cycle.
class CycleSearch {
 public:
  explicit CycleSearch(const SourceTree& tree) {
    for (const SourceFile& file : tree) files_[file.path] = &file;
  }

  Findings run() {
    for (const auto& [path, file] : files_) visit(path);
    return std::move(findings_);
  }

 private:
  void visit(std::string_view path) {
    const auto found = files_.find(path);
    if (found == files_.end() || done_.contains(path)) return;
    const auto closes = std::ranges::find(path_, path);
    if (closes != path_.end()) {
      std::vector<std::string_view> cycle(closes, path_.end());
      cycle.push_back(path);
      findings_.push_back({std::string(path), 0, fmt::format("include cycle: {}", fmt::join(cycle, " -> "))});
      return;
    }
    path_.push_back(found->first);
    if (found->second->is_code()) {
      for (const Include& include : includes_of(*found->second)) {
        if (include.quoted) visit(include.target);
      }
    }
    path_.pop_back();
    done_.insert(found->first);
  }

  std::map<std::string_view, const SourceFile*> files_;
  std::set<std::string_view> done_;
  std::vector<std::string_view> path_;
  Findings findings_;
};

}  // namespace

std::vector<std::string> texts_of(const Findings& findings) {
  std::vector<std::string> texts;
  for (const Finding& finding : findings) texts.push_back(finding.text());
  return texts;
}

std::string Finding::text() const {
  return line == 0 ? fmt::format("{}: {}", path, message) : fmt::format("{}:{}: {}", path, line, message);
}

Findings check_include_arrows(const SourceTree& tree) {
  Findings findings;
  const auto paths = paths_of(tree);
  for (const SourceFile& file : tree) {
    const FolderRule* const rule = rule_of(file.folder());
    if (!file.is_code()) continue;
    if (rule == nullptr) {
      findings.push_back({file.path, 0, "code lies in a folder that the table of arrows does not know"});
      continue;
    }
    for (const Include& include : includes_of(file)) {
      const SourceFile target{std::string(include.target), ""};
      if (!include.quoted) {
        if (rule_of(target.folder()) != nullptr) {
          findings.push_back({file.path, include.line, fmt::format("<{}> is ours: use quotes", target.path)});
        }
      } else if (!paths.contains(target.path)) {
        findings.push_back(
            {file.path, include.line, fmt::format("\"{}\" is no file of ours, named from the root", target.path)});
      } else if (!may_use(*rule, target.folder())) {
        findings.push_back(
            {file.path, include.line, fmt::format("\"{}\" is against the arrows; {}", target.path, uses_text(*rule))});
      } else if (is_body(target.path) && (file.is_header() || file.folder() != target.folder())) {
        findings.push_back({file.path, include.line,
                            fmt::format("\"{}\" is shared by source files of {}/ only", target.path, target.folder())});
      }
    }
  }
  return findings;
}

Findings check_include_cycles(const SourceTree& tree) { return CycleSearch(tree).run(); }

Findings check_include_order(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (!file.is_code()) continue;
    IncludeGroup last = IncludeGroup::own;
    for (const Include& include : includes_of(file)) {
      if (include.conditional) continue;
      const IncludeGroup group = group_of(include, file, last);
      if (group < last) {
        findings.push_back(
            {file.path, include.line,
             fmt::format("{} stands too late; the order is own header, standard, third party, ours", include.target)});
      }
      last = std::max(last, group);
    }
  }
  return findings;
}

Findings check_third_party_headers(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (!file.is_code()) continue;
    for (const Include& include : includes_of(file)) {
      for (const ThirdPartyRule& rule : kThirdPartyRules) {
        const bool is_public = file.is_header() && !is_body(file.path);
        const std::string_view allowed = is_public ? rule.header_folders : rule.folders;
        if (include.quoted || !include.target.starts_with(rule.prefix) || lists(allowed, file.folder())) continue;
        const std::string places = allowed.empty() ? "in none" : fmt::format("in those of: {}", allowed);
        findings.push_back(
            {file.path, include.line,
             fmt::format("<{}> is allowed in {} files {}", include.target, is_public ? "header" : "source", places)});
      }
    }
  }
  return findings;
}

Findings check_link_arrows(const SourceTree& tree) {
  constexpr std::string_view kPrefix = "shardproof::";
  Findings findings;
  for (const SourceFile& file : tree) {
    const FolderRule* const rule = rule_of(file.folder());
    if (!is_cmake(file) || rule == nullptr) continue;
    const std::string text = without_hash_comments(file.text);
    std::size_t number = 0;
    for (const std::string_view line : lines_of(text)) {
      ++number;
      for (const std::string_view word : words_of(line)) {
        if (!word.starts_with(kPrefix)) continue;
        const std::string_view library = word.substr(kPrefix.size());
        const bool is_test_support = rule_of(library) == nullptr && lists(kTestFolders, rule->folder);
        if (is_test_support || may_use(*rule, library)) continue;
        findings.push_back({file.path, number, fmt::format("{} is against the arrows; {}", word, uses_text(*rule))});
      }
    }
  }
  return findings;
}

Findings check_reachable_from_cmake(const SourceTree& tree) {
  std::map<std::string_view, std::string> lists_of_folder;  // folder -> its CMakeLists.txt without comments
  for (const SourceFile& file : tree) {
    if (file.path == "CMakeLists.txt" || file.path.ends_with("/CMakeLists.txt")) {
      lists_of_folder[folder_of_path(file.path)] = without_hash_comments(file.text);
    }
  }
  // Whether the list of a folder at or above `path` names the rest of the path.
  const auto is_named = [&lists_of_folder](std::string_view path) {
    for (std::string_view above = folder_of_path(path);; above = folder_of_path(above)) {
      const auto found = lists_of_folder.find(above);
      const std::string_view rest = above.empty() ? path : path.substr(above.size() + 1);
      if (found != lists_of_folder.end() && lists(found->second, rest)) return true;
      if (above.empty()) return false;
    }
  };
  Findings findings;
  for (const SourceFile& file : tree) {
    if ((file.extension() == ".cpp" || file.extension() == ".cu") && !is_named(file.path)) {
      findings.push_back({file.path, 0, "no CMakeLists.txt lists this file, so nothing compiles it"});
    }
  }
  for (const auto& [folder, text] : lists_of_folder) {
    // A project of its own is built by whoever uses it, here by a test.
    const bool is_project = text.find("project(") != std::string::npos;
    if (!folder.empty() && !is_project && !is_named(folder)) {
      findings.push_back({std::string(folder) + "/CMakeLists.txt", 0, "no CMakeLists.txt above adds this folder"});
    }
  }
  return findings;
}

}  // namespace shardproof::tidy
