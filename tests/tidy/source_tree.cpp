#include "tests/tidy/source_tree.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <iterator>

#include "core/error.h"

namespace shardproof::tidy {

bool is_identifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

namespace {

namespace fs = std::filesystem;

constexpr std::array kTextExtensions{".h",  ".cpp", ".cu", ".cuh",  ".cmake", ".txt",
                                     ".md", ".sh",  ".py", ".json", ".yml",   ".yaml"};

bool is_text_of_ours(const fs::path& relative) {
  if (relative == fs::path(".ci") / "run") return true;
  return std::ranges::find(kTextExtensions, relative.extension().string()) != kTextExtensions.end();
}

bool is_skipped_folder(const fs::path& relative) {
  const std::string name = relative.filename().string();
  return relative == "build" || (name.starts_with('.') && name != ".ci");
}

// Whether the quote at `at` separates digits, as in 65'536: then its token begins with a digit.
bool separates_digits(std::string_view text, std::size_t at) {
  std::size_t begin = at;
  while (begin > 0 && (is_identifier(text[begin - 1]) || text[begin - 1] == '\'')) --begin;
  return begin < at && std::isdigit(static_cast<unsigned char>(text[begin])) != 0;
}

// Whether the quote at `at` opens a raw string: an R before it that is not the end of a longer name.
bool opens_raw_string(std::string_view text, std::size_t at) {
  if (at == 0 || text[at - 1] != 'R') return false;
  std::size_t begin = at - 1;
  while (begin > 0 && is_identifier(text[begin - 1])) --begin;
  const std::string_view prefix = text.substr(begin, at - 1 - begin);
  return prefix.empty() || prefix == "u8" || prefix == "u" || prefix == "U" || prefix == "L";
}

// Each of the next three returns the position just behind the comment or literal that begins at `at`.
std::size_t end_of_comment(std::string_view text, std::size_t at) {
  const bool to_end_of_line = text[at + 1] == '/';
  const std::size_t end = to_end_of_line ? text.find('\n', at) : text.find("*/", at + 2);
  if (end == std::string_view::npos) return text.size();
  return to_end_of_line ? end : end + 2;
}

std::size_t end_of_raw_string(std::string_view text, std::size_t at) {
  const std::size_t open = text.find('(', at);
  if (open == std::string_view::npos) return text.size();
  const std::string close = ")" + std::string(text.substr(at + 1, open - at - 1)) + "\"";
  const std::size_t end = text.find(close, open);
  return end == std::string_view::npos ? text.size() : end + close.size();
}

std::size_t end_of_literal(std::string_view text, std::size_t at) {
  const char quote = text[at];
  for (std::size_t i = at + 1; i < text.size() && text[i] != '\n'; ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      return i + 1;
    }
  }
  return std::min(text.size(), text.find('\n', at));
}

}  // namespace

std::string_view SourceFile::folder() const {
  const std::string_view view = path;
  const std::size_t slash = view.find('/');
  return slash == std::string_view::npos ? std::string_view() : view.substr(0, slash);
}

std::string_view SourceFile::extension() const {
  const std::string_view view = path;
  const std::size_t dot = view.rfind('.');
  const std::size_t slash = view.rfind('/');
  if (dot == std::string_view::npos || (slash != std::string_view::npos && slash > dot)) return {};
  return view.substr(dot);
}

bool SourceFile::is_header() const { return extension() == ".h" || extension() == ".cuh"; }

bool SourceFile::is_code() const { return is_header() || extension() == ".cpp" || extension() == ".cu"; }

std::string SourceFile::own_header() const { return path.substr(0, path.size() - extension().size()) + ".h"; }

SourceTree read_tree(const fs::path& root) {
  SourceTree tree;
  for (auto entry = fs::recursive_directory_iterator(root); entry != fs::recursive_directory_iterator(); ++entry) {
    const fs::path relative = entry->path().lexically_relative(root);
    if (entry->is_directory()) {
      if (is_skipped_folder(relative)) entry.disable_recursion_pending();
    } else if (is_text_of_ours(relative)) {
      std::ifstream stream(entry->path(), std::ios::binary);
      SHARDPROOF_CHECK(stream.is_open(), file_error, "{}: cannot be read", entry->path().string());
      tree.push_back({relative.generic_string(), std::string(std::istreambuf_iterator<char>(stream), {})});
    }
  }
  std::ranges::sort(tree, {}, &SourceFile::path);
  return tree;
}

PathSet paths_of(const SourceTree& tree) {
  PathSet paths;
  for (const SourceFile& file : tree) paths.insert(file.path);
  return paths;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kSeparators = " \t\n()";
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; (begin = text.find_first_not_of(kSeparators, begin)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.size(), text.find_first_of(kSeparators, begin));
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

bool lists(std::string_view text, std::string_view word) {
  const std::vector<std::string_view> words = words_of(text);
  return std::ranges::find(words, word) != words.end();
}

std::string code_only(std::string_view text) {
  std::string code(text);
  for (std::size_t at = 0; at < text.size();) {
    const char next = at + 1 < text.size() ? text[at + 1] : '\0';
    std::size_t end = at;
    if (text[at] == '/' && (next == '/' || next == '*')) {
      end = end_of_comment(text, at);
    } else if (text[at] == '"') {
      end = opens_raw_string(text, at) ? end_of_raw_string(text, at) : end_of_literal(text, at);
    } else if (text[at] == '\'' && !separates_digits(text, at)) {
      end = end_of_literal(text, at);
    }
    for (std::size_t i = at; i < end; ++i) {
      if (text[i] != '\n') code[i] = ' ';
    }
    at = std::max(end, at + 1);
  }
  return code;
}

std::vector<Include> includes_of(const SourceFile& file) {
  constexpr std::string_view kDirective = "#include";
  const std::string code = code_only(file.text);
  const std::vector<std::string_view> code_lines = lines_of(code);
  const std::vector<std::string_view> text_lines = lines_of(file.text);
  std::vector<Include> includes;
  std::size_t depth = 0;
  for (std::size_t i = 0; i < code_lines.size(); ++i) {
    if (code_lines[i].starts_with("#if")) ++depth;
    if (code_lines[i].starts_with("#endif") && depth > 0) --depth;
    if (!code_lines[i].starts_with(kDirective)) continue;  // clang-format writes it at the first column, in one piece
    const std::string_view rest = text_lines[i].substr(kDirective.size());
    const std::size_t open = rest.find_first_of("\"<");
    if (open == std::string_view::npos) continue;
    const bool quoted = rest[open] == '"';
    const std::size_t close = rest.find(quoted ? '"' : '>', open + 1);
    if (close == std::string_view::npos) continue;
    includes.push_back({rest.substr(open + 1, close - open - 1), quoted, depth > 0, i + 1});
  }
  return includes;
}

}  // namespace shardproof::tidy
