// The checks of single files: layout, words that are not used here, scripts.
// The tables below name what is banned, where it is allowed all the same, and the reason that the finding gives.
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include <fmt/format.h>

#include "tests/tidy/checks.h"

namespace shardproof::tidy {

namespace {

// Assembled from halves, so that this file does not break its own rule.
const std::array kMarks{std::string("TO") + "DO", std::string("FIX") + "ME", std::string("NOLI") + "NT"};
const std::array kMachineStrings{std::string("/wo") + "rk/",   std::string("/ro") + "ot/",
                                 std::string("/ho") + "me/",   std::string("/tm") + "p/",
                                 std::string("pypi") + ".org", std::string("pytho") + "nhosted",
                                 std::string("/Use") + "rs/",  std::string("deb.deb") + "ian"};

struct BannedWord {
  std::string_view word;
  std::string_view folders;  // where it is allowed
  std::string_view reason;
};

constexpr std::string_view kRandom = "random values are counter-based: they depend on seed, name and index only";
constexpr std::string_view kThreads = "only sim/ and real/ start threads";
constexpr std::string_view kPrints = "a library does not print; results go through reports/";
constexpr std::string_view kEnds = "a library does not end the process; it throws shardproof::Error";

constexpr std::array kBannedWords{
    BannedWord{"rand", "", kRandom},
    BannedWord{"srand", "", kRandom},
    BannedWord{"random_device", "", kRandom},
    BannedWord{"mt19937", "", kRandom},
    BannedWord{"mt19937_64", "", kRandom},
    BannedWord{"default_random_engine", "", kRandom},
    BannedWord{"std::thread", "sim real tests property_tests bench", kThreads},
    BannedWord{"std::jthread", "sim real tests property_tests bench", kThreads},
    BannedWord{"std::async", "", kThreads},
    BannedWord{"std::cout", "app reports tests property_tests bench", kPrints},
    BannedWord{"std::cerr", "app reports tests property_tests bench", kPrints},
    BannedWord{"printf", "app reports tests property_tests bench", kPrints},
    BannedWord{"fmt::print", "app reports tests property_tests bench", kPrints},
    BannedWord{"std::exit", "app tests", kEnds},
    BannedWord{"std::quick_exit", "", kEnds},
    BannedWord{"std::abort", "tests", kEnds},
    BannedWord{"std::terminate", "", kEnds},
    BannedWord{"sleep_for", "real tests", "nothing in the simulator waits for time to pass"},
};

// Whether `text` has `word` with no identifier character on either side.
bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || !is_identifier(text[at - 1]);
    const bool ends = end == text.size() || !is_identifier(text[end]);
    if (begins && ends) return true;
  }
  return false;
}

std::size_t columns(std::string_view line) {
  return static_cast<std::size_t>(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }));
}

bool is_script(const SourceFile& file) { return file.extension() == ".sh" || file.path == ".ci/run"; }

// Calls visit(line number, line) for every line of code, comments and literals blanked.
template <class Visit>
void for_each_code_line(const SourceFile& file, Visit visit) {
  const std::string code = code_only(file.text);
  std::size_t number = 0;
  for (const std::string_view line : lines_of(code)) visit(++number, line);
}

void check_words_of_line(const SourceFile& file, std::size_t number, std::string_view line, Findings& findings) {
  for (const BannedWord& banned : kBannedWords) {
    if (lists(banned.folders, file.folder()) || !has_word(line, banned.word)) continue;
    findings.push_back({file.path, number, fmt::format("'{}' is not used here: {}", banned.word, banned.reason)});
  }
  if (file.is_header() && has_word(line, "using namespace")) {
    findings.push_back({file.path, number, "'using namespace' in a header"});
  }
  if (line.find("#pragma omp") != std::string_view::npos && line.find("reduction(") != std::string_view::npos) {
    findings.push_back({file.path, number, "an OpenMP reduction makes bits depend on the number of threads"});
  }
  if (line.find("DISABLED_") != std::string_view::npos) {
    findings.push_back({file.path, number, "a disabled test passes silently; skip it with a reason, or mend it"});
  }
  if (line.find("GTEST_SKIP();") != std::string_view::npos) {
    findings.push_back({file.path, number, "a skipped test says why: GTEST_SKIP() << reason"});
  }
}

// Whether a condition names a backend, alone or as a part of a longer macro: USE_NCCL, __CUDACC__; not COMPILER.
bool names_backend(std::string_view condition) {
  constexpr std::array kBackends{"CUDA", "NCCL", "MPI", "TORCH", "SHARDPROOF_WITH", "SHARDPROOF_USE"};
  return std::ranges::any_of(kBackends, [condition](std::string_view name) {
    const std::size_t at = condition.find(name);
    return at != std::string_view::npos &&
           (at == 0 || std::isalpha(static_cast<unsigned char>(condition[at - 1])) == 0);
  });
}

}  // namespace

Findings check_lines(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    const bool is_prose = file.extension() == ".md";
    if (file.extension() == ".json") continue;
    std::size_t number = 0;
    for (const std::string_view line : lines_of(file.text)) {
      const auto add = [&](std::string message) { findings.push_back({file.path, number, std::move(message)}); };
      ++number;
      if (!is_prose && columns(line) > kMaxLineLength) {
        add(fmt::format("the line has {} columns, more than {}", columns(line), kMaxLineLength));
      }
      if (line.find('\t') != std::string_view::npos) add("tab; indent with blanks");
      if (line.ends_with('\r')) add("carriage return; lines end with a line feed");
      if (line.ends_with(' ')) add("blanks at the end of the line");
    }
    if (!file.text.empty() && !file.text.ends_with('\n')) {
      findings.push_back({file.path, number, "the last line is not ended"});
    }
  }
  return findings;
}

Findings check_opening_comments(const SourceTree& tree) {
  Findings findings;
  const auto paths = paths_of(tree);
  for (const SourceFile& file : tree) {
    if (!file.is_code()) continue;
    if (!file.is_header() && paths.contains(file.own_header())) continue;
    const std::vector<std::string_view> lines = lines_of(file.text);
    const auto end = std::ranges::find_if_not(lines, [](std::string_view line) { return line.starts_with("// "); });
    const auto count = static_cast<std::size_t>(end - lines.begin());
    if (count < kMinOpeningComment) {
      findings.push_back({file.path, 1,
                          fmt::format("opens with {} lines of comment, expected at least {}: what it is, and why",
                                      count, kMinOpeningComment)});
    }
  }
  return findings;
}

Findings check_pragma_once(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (!file.is_header()) continue;
    const std::string code = code_only(file.text);
    const std::size_t begin = code.find_first_not_of(" \n");
    if (begin == std::string::npos || !std::string_view(code).substr(begin).starts_with("#pragma once\n")) {
      findings.push_back({file.path, 0, "a header says #pragma once before anything but its comment"});
    }
  }
  return findings;
}

Findings check_banned_words(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (file.extension() == ".json") continue;
    std::size_t number = 0;
    for (const std::string_view line : lines_of(file.text)) {
      ++number;
      for (const std::string& mark : kMarks) {
        if (line.find(mark) == std::string_view::npos) continue;
        findings.push_back({file.path, number, fmt::format("'{}': finish it, or leave no mark", mark)});
      }
    }
    if (!file.is_code()) continue;
    for_each_code_line(file, [&](std::size_t code_number, std::string_view line) {
      check_words_of_line(file, code_number, line, findings);
    });
  }
  return findings;
}

Findings check_conditional_compilation(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (!file.is_code()) continue;
    for_each_code_line(file, [&](std::size_t number, std::string_view line) {
      const std::size_t begin = line.find_first_not_of(' ');
      const std::string_view directive = begin == std::string_view::npos ? line : line.substr(begin);
      if (!directive.starts_with("#if") && !directive.starts_with("#elif")) return;
      if (!names_backend(directive)) return;
      findings.push_back(
          {file.path, number, fmt::format("'{}': a backend that is not built is a stub file that throws", directive)});
    });
  }
  return findings;
}

Findings check_function_lengths(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (!file.is_code() || lists(kTestFolders, file.folder())) continue;
    // clang-format puts the head and the closing brace of a function of namespace scope at the first column. A
    // namespace closes in the line of its comment, a type with a semicolon.
    std::size_t opened = 0;
    for_each_code_line(file, [&](std::size_t number, std::string_view line) {
      const std::size_t end = line.find_last_not_of(' ');
      if (end == std::string_view::npos) return;
      const bool is_namespace = line.starts_with("namespace") || line.starts_with("extern");
      if (line[end] == '{' && opened == 0 && !is_namespace) opened = number;
      if (line[0] != '}') return;
      if (opened != 0 && end == 0 && number - opened + 1 > kMaxFunctionLines) {
        findings.push_back({file.path, opened,
                            fmt::format("the function has {} lines, more than {}: push branches up and loops down",
                                        number - opened + 1, kMaxFunctionLines)});
      }
      opened = 0;
    });
  }
  return findings;
}

Findings check_machine_paths(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    std::size_t number = 0;
    for (const std::string_view line : lines_of(file.text)) {
      ++number;
      for (const std::string& forbidden : kMachineStrings) {
        if (line.find(forbidden) == std::string_view::npos) continue;
        findings.push_back({file.path, number, fmt::format("'{}' names a machine or a registry", forbidden)});
      }
    }
  }
  return findings;
}

Findings check_shell_scripts(const SourceTree& tree) {
  Findings findings;
  for (const SourceFile& file : tree) {
    if (!is_script(file)) continue;
    if (!file.text.starts_with("#!/usr/bin/env bash\n# ")) {
      findings.push_back(
          {file.path, 1, "a script begins with #!/usr/bin/env bash and a comment that says what it does"});
    }
    if (file.text.find("\nset -euo pipefail\n") == std::string::npos) {
      findings.push_back({file.path, 0, "a script stops at the first error: set -euo pipefail"});
    }
  }
  return findings;
}

}  // namespace shardproof::tidy
