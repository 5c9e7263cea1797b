// The checks, run on the repository itself: this is the test that a change to the tree meets.
// What it prints on failure is the list of findings, each with its file and line.
#include <array>
#include <cstdio>
#include <ostream>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/tidy/checks.h"

namespace shardproof::tidy {
namespace {

struct NamedCheck {
  const char* name;
  Findings (*check)(const SourceTree&);
};

void PrintTo(const NamedCheck& check, std::ostream* stream) { *stream << check.name; }

class Repository : public testing::TestWithParam<NamedCheck> {};

TEST_P(Repository, KeepsTheRule) {
  std::string report;
  for (const Finding& finding : GetParam().check(read_tree(SHARDPROOF_SOURCE_DIR))) report += finding.text() + "\n";
  EXPECT_TRUE(report.empty()) << '\n' << report;
}

INSTANTIATE_TEST_SUITE_P(
    , Repository,
    testing::Values(
        NamedCheck{"IncludeArrows", check_include_arrows}, NamedCheck{"IncludeCycles", check_include_cycles},
        NamedCheck{"IncludeOrder", check_include_order}, NamedCheck{"ThirdPartyHeaders", check_third_party_headers},
        NamedCheck{"LinkArrows", check_link_arrows}, NamedCheck{"ReachableFromCMake", check_reachable_from_cmake},
        NamedCheck{"Lines", check_lines}, NamedCheck{"OpeningComments", check_opening_comments},
        NamedCheck{"PragmaOnce", check_pragma_once}, NamedCheck{"BannedWords", check_banned_words},
        NamedCheck{"ConditionalCompilation", check_conditional_compilation},
        NamedCheck{"FunctionLengths", check_function_lengths}, NamedCheck{"DependencyLists", check_dependency_lists},
        NamedCheck{"MachinePaths", check_machine_paths}, NamedCheck{"ShellScripts", check_shell_scripts}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

struct CommandResult {
  std::string output;
  int status = 0;  // 0 when the command ended well
};

CommandResult run_command(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  SHARDPROOF_CHECK(pipe != nullptr, internal_error, "{}: cannot be started", command);
  CommandResult result;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe) != nullptr) result.output += buffer.data();
  result.status = pclose(pipe);
  return result;
}

// "23.1.5", from the comment at the top of .clang-format.
std::string pinned_clang_format() {
  const CommandResult file = run_command(fmt::format("cat '{}/.clang-format'", SHARDPROOF_SOURCE_DIR));
  constexpr std::string_view kBegin = "# clang-format ";
  if (!file.output.starts_with(kBegin)) return "";
  const std::size_t end = file.output.find(". ", kBegin.size());
  return file.output.substr(kBegin.size(), end - kBegin.size());
}

TEST(Formatting, IsThatOfThePinnedClangFormat) {
  const std::string pinned = pinned_clang_format();
  ASSERT_NE(pinned, "") << ".clang-format names no version in its first line";
  const CommandResult found = run_command("clang-format --version 2>&1");
  if (found.output.find("version " + pinned) == std::string::npos) {
    GTEST_SKIP() << "clang-format " << pinned << " is not on the path (pip installs it); found: " << found.output;
  }
  std::string command = fmt::format("cd '{}' && clang-format --dry-run -Werror", SHARDPROOF_SOURCE_DIR);
  for (const SourceFile& file : read_tree(SHARDPROOF_SOURCE_DIR)) {
    if (file.is_code()) command += fmt::format(" '{}'", file.path);
  }
  const CommandResult formatted = run_command(command + " 2>&1");
  EXPECT_EQ(formatted.status, 0) << formatted.output;
}

}  // namespace
}  // namespace shardproof::tidy
