// Each check of single files is fed a small sample that breaks its rule, and one that keeps it.
// Samples that the checks would find in this very file are put together from halves.
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tidy/checks.h"

namespace shardproof::tidy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string repeated(std::string_view piece, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += piece;
  return text;
}

TEST(Lines, AcceptTheLimitAndCountCharactersNotBytes) {
  const std::string umlauts = repeated("\xC3\xA4", kMaxLineLength) + "\n";
  const std::string prose = repeated("x", kMaxLineLength + 1) + "\n";
  EXPECT_THAT(texts_of(check_lines({{"core/a.h", umlauts}, {"README.md", prose}, {"core/empty.h", ""}})), IsEmpty());
}

TEST(Lines, NameEveryFaultOfLayout) {
  EXPECT_THAT(
      texts_of(check_lines({{"core/a.h", repeated("x", kMaxLineLength + 1) + "\n\tint a;\nint b; \nint c;\r\nint d;"},
                            {"README.md", "\ttab\n"}})),
      ElementsAre("core/a.h:1: the line has 121 columns, more than 120", "core/a.h:2: tab; indent with blanks",
                  "core/a.h:3: blanks at the end of the line",
                  "core/a.h:4: carriage return; lines end with a line feed", "core/a.h:5: the last line is not ended",
                  "README.md:1: tab; indent with blanks"));
}

TEST(OpeningComments, AreNotAskedOfASourceBesideItsHeader) {
  EXPECT_THAT(texts_of(check_opening_comments({{"core/a.h", "// What it is,\n// and why.\n#pragma once\n"},
                                               {"core/a.cpp", "#include \"core/a.h\"\n"},
                                               {"core/b.cpp", "// What it is,\n// and why.\n"},
                                               {"README.md", "Prose.\n"}})),
              IsEmpty());
}

TEST(OpeningComments, AreMissedInHeadersAndLoneSources) {
  constexpr const char* kRest = "lines of comment, expected at least 2: what it is, and why";
  EXPECT_THAT(
      texts_of(check_opening_comments({{"core/a.h", "#pragma once\n"}, {"core/b.cpp", "// One line.\nint a;\n"}})),
      ElementsAre(fmt::format("core/a.h:1: opens with 0 {}", kRest),
                  fmt::format("core/b.cpp:1: opens with 1 {}", kRest)));
}

TEST(PragmaOnce, StandsBehindTheComment) {
  EXPECT_THAT(texts_of(check_pragma_once({{"core/a.h", "// Why.\n\n#pragma once\n"}, {"core/a.cpp", "int a;\n"}})),
              IsEmpty());
}

TEST(PragmaOnce, IsMissedWhenAbsentLateOrCommentedOut) {
  constexpr const char* kMessage = "a header says #pragma once before anything but its comment";
  EXPECT_THAT(
      texts_of(check_pragma_once(
          {{"core/a.h", "int a;\n"}, {"core/b.h", "int a;\n#pragma once\n"}, {"core/c.h", "// #pragma once\n"}})),
      ElementsAre(fmt::format("core/a.h: {}", kMessage), fmt::format("core/b.h: {}", kMessage),
                  fmt::format("core/c.h: {}", kMessage)));
}

TEST(BannedWords, AcceptWordsInCommentsLiteralsAndLongerNames) {
  EXPECT_THAT(texts_of(check_banned_words({{"core/a.cpp",
                                            "// std::thread is not used.\nauto s = \"std::cout\";\nint operand = 1;\n"
                                            "std::snprintf(b, n, f);\nstd::this_thread::yield();\n"},
                                           {"sim/workers.cpp", "std::jthread worker;\n"},
                                           {"app/main.cpp", "using namespace std::literals;\nstd::cout << 1;\n"}})),
              IsEmpty());
}

TEST(BannedWords, NameRandomness) {
  constexpr const char* kReason = "random values are counter-based: they depend on seed, name and index only";
  EXPECT_THAT(texts_of(check_banned_words({{"tests/core/a_test.cpp", "int a = std::rand();\nstd::mt19937 engine;\n"}})),
              ElementsAre(fmt::format("tests/core/a_test.cpp:1: 'rand' is not used here: {}", kReason),
                          fmt::format("tests/core/a_test.cpp:2: 'mt19937' is not used here: {}", kReason)));
}

TEST(BannedWords, NameThreadsPrintsExitsAndSleepsInLibraries) {
  EXPECT_THAT(
      texts_of(
          check_banned_words({{"core/a.cpp", "std::thread t;\nstd::cout << 1;\nstd::exit(1);\nsleep_for(1s);\n"}})),
      ElementsAre("core/a.cpp:1: 'std::thread' is not used here: only sim/ and real/ start threads",
                  "core/a.cpp:2: 'std::cout' is not used here: a library does not print; results go through reports/",
                  "core/a.cpp:3: 'std::exit' is not used here: a library does not end the process; it throws "
                  "shardproof::Error",
                  "core/a.cpp:4: 'sleep_for' is not used here: nothing in the simulator waits for time to pass"));
}

TEST(BannedWords, NameUsingNamespaceInHeaders) {
  EXPECT_THAT(texts_of(check_banned_words({{"core/a.h", "using namespace std;\n"}})),
              ElementsAre("core/a.h:1: 'using namespace' in a header"));
}

TEST(BannedWords, NameOpenMpReductions) {
  EXPECT_THAT(texts_of(check_banned_words({{"sim/a.cpp", "#pragma omp parallel for reduction(+ : sum)\n"}})),
              ElementsAre("sim/a.cpp:1: an OpenMP reduction makes bits depend on the number of threads"));
}

TEST(BannedWords, NameTestsThatPassSilently) {
  EXPECT_THAT(texts_of(check_banned_words({{"tests/a_test.cpp", "TEST(A, DISABLED_B) {}\nGTEST_SKIP();\n"}})),
              ElementsAre("tests/a_test.cpp:1: a disabled test passes silently; skip it with a reason, or mend it",
                          "tests/a_test.cpp:2: a skipped test says why: GTEST_SKIP() << reason"));
}

TEST(BannedWords, NameMarksOfUnfinishedWorkEvenInCommentsAndProse) {
  const std::string to_do = std::string("TO") + "DO";
  const std::string fix_me = std::string("FIX") + "ME";
  const std::string no_lint = std::string("NOLI") + "NT";
  EXPECT_THAT(texts_of(check_banned_words({{"core/a.cpp", "// " + to_do + "\nint a;  // " + no_lint + "NEXTLINE\n"},
                                           {"README.md", fix_me + "\n"}})),
              ElementsAre("core/a.cpp:1: '" + to_do + "': finish it, or leave no mark",
                          "core/a.cpp:2: '" + no_lint + "': finish it, or leave no mark",
                          "README.md:1: '" + fix_me + "': finish it, or leave no mark"));
}

TEST(ConditionalCompilation, MayAskForSanitizersAndCompilers) {
  EXPECT_THAT(texts_of(check_conditional_compilation(
                  {{"sim/fiber.cpp",
                    "#ifdef __SANITIZE_ADDRESS__\n#endif\n#if defined(__GNUC__)\n#elif THE_COMPILER\n#endif\n"}})),
              IsEmpty());
}

TEST(ConditionalCompilation, NamesABackend) {
  constexpr const char* kRest = "a backend that is not built is a stub file that throws";
  EXPECT_THAT(texts_of(check_conditional_compilation(
                  {{"app/main.cpp", "#ifdef SHARDPROOF_WITH_GPU\n#elif defined(USE_NCCL)\n  #if HAVE_MPI\n#endif\n"}})),
              ElementsAre(fmt::format("app/main.cpp:1: '#ifdef SHARDPROOF_WITH_GPU': {}", kRest),
                          fmt::format("app/main.cpp:2: '#elif defined(USE_NCCL)': {}", kRest),
                          fmt::format("app/main.cpp:3: '#if HAVE_MPI': {}", kRest)));
}

// A function of the given number of lines, inside a namespace as clang-format lays it out.
std::string function_of(std::size_t lines) {
  return "namespace shardproof {\n\nvoid f() {\n" + repeated("  g();\n", lines - 2) + "}\n\n}  // namespace\n";
}

TEST(FunctionLengths, AcceptTheLimitTypesAndTests) {
  const std::string type = "class A {\n" + repeated("  int a();\n", 2 * kMaxFunctionLines) + "};\n";
  EXPECT_THAT(texts_of(check_function_lengths({{"core/a.cpp", function_of(kMaxFunctionLines)},
                                               {"core/b.h", type},
                                               {"tests/core/a_test.cpp", function_of(2 * kMaxFunctionLines)}})),
              IsEmpty());
}

TEST(FunctionLengths, NameALongFunction) {
  EXPECT_THAT(texts_of(check_function_lengths({{"core/a.cpp", function_of(kMaxFunctionLines + 1)}})),
              ElementsAre("core/a.cpp:3: the function has 71 lines, more than 70: push branches up and loops down"));
}

TEST(MachinePaths, AreNamedInEveryKindOfFile) {
  const std::string home = std::string("/ho") + "me/";
  const std::string registry = std::string("pypi") + ".org";
  EXPECT_THAT(texts_of(check_machine_paths({{"tools/a.sh", "cd " + home + "somebody\n"},
                                            {"docs/a.md", "Prose.\nhttps://" + registry + "/\n"},
                                            {"core/a.cpp", "// usr/share is no machine's own\n"}})),
              ElementsAre("tools/a.sh:1: '" + home + "' names a machine or a registry",
                          "docs/a.md:2: '" + registry + "' names a machine or a registry"));
}

TEST(ShellScripts, BeginWellAndStopAtErrors) {
  const std::string good = "#!/usr/bin/env bash\n# What it does.\nset -euo pipefail\n";
  EXPECT_THAT(texts_of(check_shell_scripts({{"tools/a.sh", good}, {".ci/run", good}, {"docs/a.md", ""}})), IsEmpty());
}

TEST(ShellScripts, AreNamedWhenTheyDoNot) {
  EXPECT_THAT(texts_of(check_shell_scripts({{"tools/a.sh", "#!/bin/sh\nset -e\n"}})),
              ElementsAre("tools/a.sh:1: a script begins with #!/usr/bin/env bash and a comment that says what it does",
                          "tools/a.sh: a script stops at the first error: set -euo pipefail"));
}

}  // namespace
}  // namespace shardproof::tidy
