// The rules of the repository that a compiler does not check: which folder may include and link which, layout of
// files, words and headers that are not used here. Each check takes files and returns what it found wrong.
// CONTRIBUTING.md says the rules in prose; tidy_test.cpp shows for each a sample that breaks it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/source_tree.h"

namespace shardproof::tidy {

struct Finding {
  std::string path;
  std::size_t line = 0;  // counted from 1; 0 when the finding concerns the whole file
  std::string message;   // what is wrong and what is expected

  std::string text() const;  // "path:line: message"
};

using Findings = std::vector<Finding>;
std::vector<std::string> texts_of(const Findings& findings);

constexpr std::size_t kMaxLineLength = 120;    // columns; Markdown and JSON are free
constexpr std::size_t kMaxFunctionLines = 70;  // from the opening to the closing brace; tests are free
constexpr std::string_view kTestFolders = "tests property_tests bench";
constexpr std::size_t kMinOpeningComment = 2;  // lines at the top of a code file

// Quoted includes name an existing file from the root, in a folder that the including folder may use. A header named
// NAME_body.h is what several sources of one folder share, and is included by these only.
Findings check_include_arrows(const SourceTree& tree);
// No file includes itself by way of others. Every cycle is reported once, with its files.
Findings check_include_cycles(const SourceTree& tree);
// Own header, standard headers, third party, ours: in this order. A test may open with the header it is about, and
// conditional includes may stand anywhere.
Findings check_include_order(const SourceTree& tree);
// Headers of heavy libraries stay in the folders made for them, and out of our headers but the NAME_body.h.
Findings check_third_party_headers(const SourceTree& tree);
// The CMakeLists.txt of a folder links only folders that it may use. Tests may have libraries of their own besides.
Findings check_link_arrows(const SourceTree& tree);
// Every .cpp and .cu is named by a CMakeLists.txt of its folder or of one above it, and every such file is reachable.
Findings check_reachable_from_cmake(const SourceTree& tree);
// Line length, tabs, blanks at the end of a line, carriage returns, a last line that is ended.
Findings check_lines(const SourceTree& tree);
// Code opens with a comment that says what the file is. A .cpp beside its own header may leave that to the header.
Findings check_opening_comments(const SourceTree& tree);
// Headers say #pragma once, before anything but the opening comment.
Findings check_pragma_once(const SourceTree& tree);
// Identifiers and marks that are not used here, or not in this folder.
Findings check_banned_words(const SourceTree& tree);
// A backend that is not built is a stub file: no conditional compilation on the backends.
Findings check_conditional_compilation(const SourceTree& tree);
// No function is longer than kMaxFunctionLines.
Findings check_function_lengths(const SourceTree& tree);
// No path of somebody's machine and no package registry's host in any file.
Findings check_machine_paths(const SourceTree& tree);
// The dependencies that the build looks for, those that tools/setup.sh installs and the table in docs/ are the same.
Findings check_dependency_lists(const SourceTree& tree);
// Shell scripts stop at the first error and name their interpreter portably.
Findings check_shell_scripts(const SourceTree& tree);

}  // namespace shardproof::tidy
