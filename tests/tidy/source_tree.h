// The repository as text: what the tidy checks read. A file is a path relative to the root and its contents, so that
// every check can be fed a made-up file as well as the real tree.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof::tidy {

struct SourceFile {
  std::string path;  // relative to the root, with forward slashes: "core/tensor.h"
  std::string text;

  std::string_view folder() const;     // first component of the path: "core"; empty for a file in the root
  std::string_view extension() const;  // ".h"; empty when there is none
  bool is_header() const;              // .h or .cuh
  bool is_code() const;                // a header, .cpp or .cu
  std::string own_header() const;      // "core/tensor.cpp" -> "core/tensor.h", whether or not that exists
};

using SourceTree = std::vector<SourceFile>;
using PathSet = std::set<std::string, std::less<>>;

// Every text file of ours below `root`, sorted by path. Build trees and hidden folders other than .ci are left out.
SourceTree read_tree(const std::filesystem::path& root);

PathSet paths_of(const SourceTree& tree);

// The lines of a text without their ends; a last line that is not ended counts too.
std::vector<std::string_view> lines_of(std::string_view text);

// Whether a character may stand in a name of C++.
bool is_identifier(char c);

// The words of a text, separated by blanks, line ends and parentheses; and whether a word is among them.
std::vector<std::string_view> words_of(std::string_view text);
bool lists(std::string_view text, std::string_view word);

// C++ source with the contents of comments and of string and character literals replaced by blanks, line by line at
// the same columns. What is left is what the compiler acts on.
std::string code_only(std::string_view text);

struct Include {
  std::string_view target;   // between the quotes or brackets
  bool quoted = false;       // "ours.h" rather than <theirs.h>
  bool conditional = false;  // between #if and #endif
  std::size_t line = 0;      // counted from 1
};

// The include directives of a C++ source that are not inside comments or literals. The views point into `file`.
std::vector<Include> includes_of(const SourceFile& file);

}  // namespace shardproof::tidy
