// Every option that the program declares, of every subcommand, with every kind of wrong use: without its value, with
// values that its kind refuses, given twice. The list is the program's own, so an option that is added later is tested
// here without another word.
#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/options.h"
#include "core/file.h"
#include "tests/app/program.h"
#include "tests/core/files/test_files.h"

namespace shardproof {

// What a failing test calls its parameter.
void PrintTo(Command command, std::ostream* stream) { *stream << command_name(command); }
void PrintTo(const DeclaredOption& option, std::ostream* stream) {
  *stream << command_name(option.command) << ' ' << option.name;
}

namespace {

using test::golden;
using test::ProgramRun;
using test::run_program;
using test::TemporaryFolder;
using testing::HasSubstr;
using testing::StartsWith;

using Words = std::vector<std::string>;

constexpr const char* kHuge = "99999999999999999999999999";

// What no option of the kind accepts: negative, huge, not of its form. A file may have any name, so what is refused of
// an output file is where it lies.
Words wrong_values(OptionKind kind) {
  switch (kind) {
    case OptionKind::flag: return {"no", "-1", kHuge};
    case OptionKind::integer:
      return {"-1", kHuge, "-99999999999999999999999999", "two", "1.5", "0x2", "nan", " 1", "1\n"};
    case OptionKind::choice: return {"-1", kHuge, "other", "nan", "ring\x1b[31m"};
    case OptionKind::mesh: return {"-1", kHuge, "two", "ring=-1", "ring=two", "ring=1.5"};
    case OptionKind::case_name: return {"-1", kHuge, "no such case", "\n"};
    case OptionKind::size:
      return {"-1", kHuge, "two", "text=0", "text=-1", "image=1.5", "heads=99999", "text=", "text=1,text=2"};
    case OptionKind::plan: return {"-1", kHuge, "/no such folder/plan", "/", "/dev/null/plan"};
    case OptionKind::fault: return {"-1", kHuge, "no such fault", "\n"};
    case OptionKind::address: return {"-1", kHuge, "nowhere", "here:", ":1", "here:0", "here:65536", "here:\x1b[31m"};
    case OptionKind::output_file: return {"/no such folder/out", "/", "/dev/null/out", "./"};
  }
  return {};
}

class EveryOption : public testing::TestWithParam<DeclaredOption> {
 protected:
  // The subcommand with what it needs besides the option, and with a file to write.
  Words words() const {
    const DeclaredOption& option = GetParam();
    Words words{std::string(command_name(option.command))};
    if (option.command == Command::launch) {  // writes no file
      words.emplace_back("true");
      if (option.name != "--processes") words.insert(words.end(), {"--processes", "2"});
      return words;
    }
    if (option.command == Command::trace) words.emplace_back("summary");
    if (option.command != Command::zoo) words.push_back(option.command == Command::oracle ? golden("uneven") : "flux");
    if (option.command == Command::run && option.name != "--backend") words.insert(words.end(), {"--backend", "mpi"});
    if (option.name != "--json") words.insert(words.end(), {"--json", "out.json"});
    return words;
  }
  // Runs it in an empty folder: status 2, one message that opens with the option, nothing else printed or written.
  std::string refusal_of(const Words& more) const {
    const TemporaryFolder folder;
    Words all = words();
    all.insert(all.end(), more.begin(), more.end());
    const ProgramRun run = run_program(all, {.folder = folder.path()});
    EXPECT_EQ(run.status, 2) << fmt::format("{}", fmt::join(all, " "));
    EXPECT_EQ(run.output, "") << fmt::format("{}", fmt::join(all, " "));
    EXPECT_THAT(run.error, StartsWith("shardproof: " + GetParam().name)) << fmt::format("{}", fmt::join(all, " "));
    EXPECT_THAT(run.error, HasSubstr("expected "));
    EXPECT_EQ(std::count(run.error.begin(), run.error.end(), '\n'), 1) << run.error;
    EXPECT_EQ(folder.entry_count(), 0U) << "a file was written";
    return run.error;
  }
  bool is_flag() const { return GetParam().kind == OptionKind::flag; }
};

TEST_P(EveryOption, IsRefusedWithoutItsValue) {
  const std::string& name = GetParam().name;
  if (is_flag()) {  // which has none
    EXPECT_THAT(refusal_of({name + "="}), HasSubstr("it takes no value, but '' was given; expected " + name));
    return;
  }
  const std::string expected = fmt::format("expected {}, ", GetParam().placeholder);
  EXPECT_THAT(refusal_of({name}), HasSubstr("its value is missing at the end of the line; " + expected));
  EXPECT_THAT(refusal_of({name, "--seed"}), HasSubstr("its value is missing before '--seed'; " + expected));
  EXPECT_THAT(refusal_of({name + "="}), HasSubstr("its value is missing behind '='; " + expected));
}

TEST_P(EveryOption, NamesAValueThatItRefuses) {
  // Named by itself, as the value of the option; and, since a shell hands it on, as an empty word.
  Words values = wrong_values(GetParam().kind);
  ASSERT_FALSE(values.empty());
  if (!is_flag()) values.emplace_back("");
  // Real ranks start before these two are looked at, which takes most of a second each time.
  const bool is_slow = GetParam().command == Command::run &&
                       (GetParam().kind == OptionKind::plan || GetParam().kind == OptionKind::case_name);
  if (is_slow && test::kHasSanitizer) GTEST_SKIP() << "what MPI leaves allocated would be reported";
  if (is_slow) values = {values.front(), values.back()};
  // These two are refused by the program that the subcommand starts.
  const bool is_of_zoo_program = GetParam().command == Command::zoo && !is_flag() && GetParam().name != "--seed";
  if (is_of_zoo_program && test::kHasSanitizer) GTEST_SKIP() << "the program of the zoo is not built with sanitizers";
  for (const std::string& value : values) {
    const std::string joined = fmt::format("{}={}", GetParam().name, value);
    const std::string message = refusal_of(
        is_flag() || (value.starts_with("-") && value.size() > 2) ? Words{joined} : Words{GetParam().name, value});
    EXPECT_THAT(message, HasSubstr(fmt::format("'{}'", printable(value))));
  }
}

TEST_P(EveryOption, IsRefusedWhenGivenTwice) {
  const std::string& name = GetParam().name;
  if (is_flag()) {
    EXPECT_THAT(refusal_of({name, name}), HasSubstr(": given twice; expected once"));
    return;
  }
  EXPECT_THAT(refusal_of({name, "1", name, "2"}), HasSubstr(": given twice, with '1' and with '2'; expected once"));
  EXPECT_THAT(refusal_of({name, "1", name + "=1"}), HasSubstr(": given twice, with '1' and with '1'; expected once"));
}

INSTANTIATE_TEST_SUITE_P(, EveryOption, testing::ValuesIn(declared_options()), [](const auto& parameter) {
  std::string name(command_name(parameter.param.command));
  for (const char c : parameter.param.name) name += c == '-' ? '_' : c;
  return name;
});

// The walk above is as good as this list: it has every option that --help shows.
TEST(DeclaredOptions, AreThoseOfTheHelp) {
  const std::vector<DeclaredOption> declared = declared_options();
  for (const Command command :
       {Command::oracle, Command::verify, Command::plan, Command::run, Command::trace, Command::launch, Command::zoo}) {
    std::vector<std::string> names{"--help"};
    for (const DeclaredOption& option : declared) {
      if (option.command == command) names.push_back(option.name);
    }
    std::vector<std::string> shown;
    const std::string help = run_program({std::string(command_name(command)), "--help"}).output;
    for (std::size_t at = help.find(" --"); at != std::string::npos; at = help.find(" --", at + 1))
      shown.push_back(help.substr(at + 1, help.find_first_of(" \n", at + 1) - at - 1));
    for (std::size_t at = help.find(",--"); at != std::string::npos; at = help.find(",--", at + 1))
      shown.push_back(help.substr(at + 1, help.find_first_of(" \n", at + 1) - at - 1));
    EXPECT_THAT(shown, testing::UnorderedElementsAreArray(names)) << help;
  }
}

struct Contradiction {
  Words words;
  const char* message;
};

class ContradictoryOptions : public testing::TestWithParam<Command> {};

TEST_P(ContradictoryOptions, AreRefusedByName) {
  if (GetParam() == Command::run && test::kHasSanitizer) {
    GTEST_SKIP() << "what MPI leaves allocated would be reported";
  }
  const std::vector<Contradiction> contradictions{
      {{"--mesh", "ring=2,ulysses=1", "--ring-degree", "3"},
       "ring_degree is 3, but the mesh 'ring=2,ulysses=1' has ring=2"},
      {{"--mesh", "ring=2"}, "has no dimension 'ulysses'"},
      {{"--mesh", "ring=2,ulysses=1,tp=2", "--tp-degree", "4"},
       "--tp-degree 4 contradicts --mesh ring=2,ulysses=1,tp=2"},
      {{"--ulysses-anything", "--ring-anything", "--ring-degree", "2"},
       "ulysses_anything and ring_anything exclude each other"},
      {{"--ring-anything"}, "ring_anything needs ring_degree greater than 1 (it is 1)"},
      {{"--ring-degree", "1", "--ulysses-degree", "1"},
       "--ring-degree 1 --ulysses-degree 1: on one rank nothing is divided"},
      {{"--tp-degree", "1"},
       "--tp-degree 1: on one rank nothing is divided; expected at least one degree of 2 or more"},
      {{"--ring-degree", "16384", "--ulysses-degree", "16384"}, "268435456 ranks are asked for; at most 16384"},
      {{"--device", "reference", "--dtype", "bfloat16"}, "--device reference with --dtype bfloat16"},
  };
  for (const Contradiction& contradiction : contradictions) {
    Words words{std::string(command_name(GetParam())), "flux", "--case", "even"};
    if (GetParam() == Command::run) words.insert(words.end(), {"--backend", "mpi"});
    words.insert(words.end(), contradiction.words.begin(), contradiction.words.end());
    const ProgramRun run = run_program(words);
    EXPECT_EQ(run.status, 2) << fmt::format("{}", fmt::join(words, " "));
    EXPECT_THAT(run.error, HasSubstr(contradiction.message));
  }
}

INSTANTIATE_TEST_SUITE_P(, ContradictoryOptions, testing::Values(Command::verify, Command::plan, Command::run),
                         [](const auto& parameter) { return std::string(command_name(parameter.param)); });

}  // namespace
}  // namespace shardproof
