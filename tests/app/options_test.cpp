// Every option with every kind of wrong value: the status is 2, nothing is printed as a result, and the message names
// the option, the value and what is expected.
#include "app/options.h"

#include <limits>
#include <ostream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/program.h"

namespace shardproof {
namespace {

using test::ProgramRun;
using test::run_program;
using testing::HasSubstr;
using testing::StartsWith;

using Words = std::vector<std::string>;

void expect_usage_error(const Words& words, const std::string& message) {
  const ProgramRun run = run_program(words);
  EXPECT_EQ(run.status, 2) << fmt::format("{}", fmt::join(words, " "));
  EXPECT_EQ(run.output, "") << fmt::format("{}", fmt::join(words, " "));
  EXPECT_EQ(run.error, "shardproof: " + message + "\n");
}

struct IntegerOption {
  const char* name;
  std::int64_t min;
  std::int64_t max;
};

void PrintTo(const IntegerOption& option, std::ostream* stream) { *stream << option.name; }

std::string name_of(const char* option) {
  std::string name;
  for (const char* c = option; *c != '\0'; ++c) {
    if (*c != '-') name += *c;
  }
  return name;
}

class IntegerOptions : public testing::TestWithParam<IntegerOption> {};

TEST_P(IntegerOptions, RefuseWhatIsNoIntegerInTheirRange) {
  const auto [name, min, max] = GetParam();
  const std::string above =
      max == std::numeric_limits<std::int64_t>::max() ? "9223372036854775808" : std::to_string(max + 1);
  for (const std::string& value :
       {std::to_string(min - 1), above, std::string("-999999999999999999999"), std::string("99999999999999999999999"),
        std::string("two"), std::string("2x"), std::string("1.5"), std::string("1e3"), std::string("0x2"),
        std::string("+1"), std::string(" 1"), std::string(""), std::string("nan")}) {
    for (const char* command : {"verify", "plan"}) {
      if (command == std::string("plan") && value != "two") continue;
      expect_usage_error(
          {command, "flux", name, value},
          fmt::format("{}: '{}' is not possible; expected an integer from {} to {}", name, value, min, max));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, IntegerOptions,
                         testing::Values(IntegerOption{"--ring-degree", 1, 16384},
                                         IntegerOption{"--ulysses-degree", 1, 16384},
                                         IntegerOption{"--tp-degree", 1, 16384},
                                         IntegerOption{"--seed", 0, std::numeric_limits<std::int64_t>::max()},
                                         IntegerOption{"--schedule-seed", 0, std::numeric_limits<std::int64_t>::max()},
                                         IntegerOption{"--workers", 1, 256}),
                         [](const auto& parameter) { return name_of(parameter.param.name); });

struct ChoiceOption {
  const char* name;
  const char* choices;
};

void PrintTo(const ChoiceOption& option, std::ostream* stream) { *stream << option.name; }

class ChoiceOptions : public testing::TestWithParam<ChoiceOption> {};

TEST_P(ChoiceOptions, RefuseUnknownWords) {
  const auto [name, choices] = GetParam();
  for (const char* value : {"other", "", "-1", "FLOAT64", "all all"}) {
    expect_usage_error({"verify", "flux", name, value},
                       fmt::format("{}: '{}' is not known; expected one of {}", name, value, choices));
  }
}

INSTANTIATE_TEST_SUITE_P(, ChoiceOptions,
                         testing::Values(ChoiceOption{"--rotate-method", "allgather, alltoall"},
                                         ChoiceOption{"--dtype", "float64, float32, bfloat16, float16"},
                                         ChoiceOption{"--tier", "exact, rounding, all"},
                                         ChoiceOption{"--device", "reference, cpu, torch, cuda"},
                                         ChoiceOption{"--gather", "ragged, padded"}),
                         [](const auto& parameter) { return name_of(parameter.param.name); });

TEST(CommandLineOptions, RefuseAMeshThatIsNone) {
  const auto expect_refused = [](const char* mesh, const std::string& reason) {
    expect_usage_error({"verify", "flux", "--mesh", mesh},
                       fmt::format("--mesh: '{}' is not possible, expected NAME=SIZE,..: {}", mesh, reason));
  };
  const auto of_form = [](const char* mesh, const char* item) {
    return fmt::format("mesh '{}': '{}' is not of the form name=size, as in ring=2,ulysses=1", mesh, item);
  };
  for (const char* mesh : {"ring", "ring=x", "ring=99999999999"}) expect_refused(mesh, of_form(mesh, mesh));
  expect_refused("ring=2,", of_form("ring=2,", ""));
  expect_refused("ring=-2,ulysses=1", "mesh dimension 'ring' has size -2; it must be at least 1");
  expect_refused("ring=2,ring=2", "mesh dimension 'ring' is named twice");
  expect_refused("=2", "a mesh dimension has no name");
  expect_refused("ring=1048576,ulysses=2", "a mesh of more than 1048576 ranks is not supported");
}

TEST(CommandLineOptions, RefuseMoreRanksThanCanBeSimulated) {
  expect_usage_error({"verify", "flux", "--ring-degree", "16384", "--ulysses-degree", "16384"},
                     "--ring-degree x --ulysses-degree: 268435456 ranks are asked for; at most 16384 can be simulated");
  expect_usage_error({"plan", "flux", "--mesh", "ring=16384,ulysses=1,dp=2"},
                     "--mesh ring=16384,ulysses=1,dp=2: 32768 ranks are asked for; at most 16384 can be simulated");
}

TEST(CommandLineOptions, RefuseWhatThisBuildDoesNotHave) {
  for (const char* command : {"plan", "run"}) {
    expect_usage_error({command, "flux", "--tier", "exact"},
                       "--tier: 'exact' is possible with verify only; expected rounding or all");
  }
  for (const std::string device : {"torch", "cuda"}) {
    for (const Words& words : {Words{"verify", "flux", "--device", device}, Words{"oracle", "x", "--device", device}}) {
      const char* const command = words[0].c_str();
      if (torch_is_built()) {
        const char* const accepted[] = {"shardproof", command, words[1].c_str(), "--device", device.c_str()};
        EXPECT_EQ(parse_command_line(5, accepted).options->device, DeviceChoice::given);
        continue;
      }
      expect_usage_error(words, fmt::format("--device: '{}' needs LibTorch, which is not part of this build; run "
                                            "tools/setup_python.sh and configure again, or take reference or cpu",
                                            device));
    }
  }
}

TEST(CommandLineOptions, SayWhereLibTorchComputes) {
  if (!torch_is_built()) GTEST_SKIP() << "this build has no LibTorch, tools/setup_python.sh fetches it";
  const auto place_of = [](const char* device) {
    const char* const words[] = {"shardproof", "verify", "flux", "--device", device};
    const Options options = *parse_command_line(5, words).options;
    EXPECT_EQ(device_name(options), device);
    return options.torch.place;
  };
  EXPECT_EQ(place_of("torch"), TorchPlace::cpu);
  EXPECT_EQ(place_of("cuda"), TorchPlace::cuda);
  expect_usage_error({"run", "flux", "--backend", "mpi", "--device", "cuda"},
                     "--device cuda with --backend mpi: MPI moves host memory only; expected --backend nccl, or "
                     "--device torch");
  const ProgramRun run =
      run_program({"verify", "flux", "--device", "torch"}, {.environment = {"SHARDPROOF_TORCH_LIBRARY=/no/such"}});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.output, "");
  EXPECT_EQ(run.error,
            "shardproof: --device torch: the module with LibTorch is missing: there is no '/no/such'; build the target "
            "shardproof_torch, or say where it is with SHARDPROOF_TORCH_LIBRARY\n");
}

TEST(CommandLineOptions, RefuseTheReferenceDeviceForSixteenBits) {
  for (const char* dtype : {"bfloat16", "float16"}) {
    expect_usage_error({"verify", "flux", "--dtype", dtype, "--device", "reference"},
                       fmt::format("--device reference with --dtype {}: the reference device computes in float64 and "
                                   "float32 only; expected --device cpu",
                                   dtype));
  }
}

TEST(CommandLineOptions, RefuseTwoTensorParallelDegrees) {
  expect_usage_error({"verify", "flux", "--mesh", "ring=2,ulysses=1,tp=2", "--tp-degree", "4"},
                     "--tp-degree 4 contradicts --mesh ring=2,ulysses=1,tp=2, which has tp=2; expected the same, or "
                     "only one of them");
}

TEST(CommandLineOptions, RefuseAnUnknownCase) {
  expect_usage_error({"verify", "flux", "--case", "nope"},
                     "--case: 'nope' is no case of flux; expected one of even, uneven, controlnet, shortest");
  expect_usage_error({"plan", "flux", "--case", ""},
                     "--case: '' is no case of flux; expected one of even, uneven, controlnet, shortest");
}

TEST(CommandLine, NeedsASubcommand) {
  const std::string expected = "expected oracle, verify, plan, run, trace, launch or zoo (--help explains them)";
  expect_usage_error({}, "a subcommand is missing; " + expected);
  expect_usage_error({"--seed", "3"}, "a subcommand is missing; " + expected);
  expect_usage_error({"lunch"}, "'lunch' is no subcommand; " + expected);
  expect_usage_error({""}, "'' is no subcommand; " + expected);
  expect_usage_error({"verif\ny"}, "'verif\\x0ay' is no subcommand; " + expected);
}

TEST(CommandLine, NeedsOneSource) {
  const std::string source = "expected one export directory, or a model's name (drawn weights and inputs)";
  expect_usage_error({"verify"}, "verify: SOURCE is missing; " + source);
  expect_usage_error({"plan", "--seed", "1"}, "plan: SOURCE is missing; " + source);
  expect_usage_error({"run", "--"}, "run: SOURCE is missing; " + source);
  expect_usage_error({"oracle"}, "oracle: EXPORT_DIR is missing; expected folders with config.json, weights and cases");
  expect_usage_error({"verify", "flux", "probe"}, "verify: 'probe' is one SOURCE too many behind 'flux'; " + source);
  expect_usage_error({"verify", "--", "flux", "--seed"},
                     "verify: '--seed' is one SOURCE too many behind 'flux'; " + source);
}

TEST(CommandLine, TakesNoSourceForTheZoo) {
  expect_usage_error({"zoo", "flux"}, "zoo: 'flux' is one word too many; expected options only");
  expect_usage_error({"zoo", "--seed", "1", "a\nb"}, "zoo: 'a\\x0ab' is one word too many; expected options only");
}

TEST(CommandLineOptions, OfTheZooDoNotContradictEachOther) {
  expect_usage_error({"zoo", "--only", "LSE_MAX", "--full"},
                     "--only LSE_MAX with --full: one fault or all of them; expected only one of these options");
  for (const char* option : {"--full", "--only=LSE_MAX", "--json=out.json", "--junit=out.xml", "--html=out.html"}) {
    expect_usage_error(
        {"zoo", "--list", option},
        "--list: nothing is run; expected no --only, --full, --shrink, --json, --junit or --html beside it");
  }
  for (const char* option :
       {"--list", "--full", "--only=LSE_MAX", "--json=out.json", "--junit=out.xml", "--html=out.html", "--shrink"}) {
    expect_usage_error(
        {"zoo", "--write-fingerprints", "prints.json", option},
        "--write-fingerprints 'prints.json': it takes all faults and keeps no score; expected no --list, "
        "--only, --full, --shrink, --json, --junit or --html beside it");
  }
}

TEST(CommandLine, HasNoJunitWhereNothingIsCompared) {
  expect_usage_error({"plan", "flux", "--junit", "out.xml"},
                     "'--junit' is no option of plan; shardproof plan --help lists them");
  expect_usage_error({"trace", "summary", "x", "--junit", "out.xml"},
                     "'--junit' is no option of trace; shardproof trace --help lists them");
}

TEST(CommandLine, RefusesUnknownOptions) {
  expect_usage_error({"verify", "flux", "--bogus"},
                     "'--bogus' is no option of verify; shardproof verify --help lists them");
  expect_usage_error({"verify", "flux", "-x"}, "'-x' is no option of verify; shardproof verify --help lists them");
  expect_usage_error({"oracle", "x", "--seed=1"},
                     "'--seed' is no option of oracle; shardproof oracle --help lists them");
}

TEST(CommandLine, ExplainsItself) {
  const ProgramRun all = run_program({"--help"});
  EXPECT_EQ(all.status, 0);
  EXPECT_EQ(all.error, "");
  for (const char* command : {"oracle", "verify", "plan", "Exit status"}) EXPECT_THAT(all.output, HasSubstr(command));
  for (const char* command : {"verify", "plan"}) {
    const ProgramRun one = run_program({command, "--help"});
    EXPECT_EQ(one.status, 0);
    for (const char* option :
         {"--ring-degree", "--ulysses-degree", "--ulysses-anything", "--ring-anything", "--rotate-method",
          "--no-convert-to-fp32", "--tp-degree", "--mesh", "--plan", "--case", "--dtype", "--tier", "--device",
          "--gather", "--seed", "--schedule-seed", "--workers", "--json", "Exit status"})
      EXPECT_THAT(one.output, HasSubstr(option));
  }
  EXPECT_THAT(run_program({"oracle", "--help"}).output, HasSubstr("--json"));
}

TEST(CommandLine, TellsVersionAndFeatures) {
  const ProgramRun run = run_program({"--version"});
  EXPECT_EQ(run.status, 0);
  EXPECT_THAT(run.output, StartsWith("shardproof 0."));
  EXPECT_THAT(run.output, HasSubstr("\nfeatures   communicator:sim, "));
  const char* const torch = torch_is_built() ? ", device:torch" : "";
  EXPECT_THAT(run.output, HasSubstr(fmt::format("device:reference, device:cpu{}, tier:exact, tier:rounding\n", torch)));
  EXPECT_THAT(run.output,
              testing::ContainsRegex(torch_is_built() ? "\nnot built  (-|communicator)" : "\nnot built  device:torch"));
  // The libraries that the program was built with, each with its version.
  for (const char* library : {"fmt", "nlohmann/json", "CLI11", "Eigen", "oneDNN", "Boost.Context", "OpenMP"})
    EXPECT_THAT(run.output, testing::ContainsRegex(fmt::format("\nlibraries .*{} [0-9]+\\.[0-9]", library)));
  EXPECT_THAT(run.output, testing::ContainsRegex("MPI ([0-9]+\\.[0-9]+|not found)"));
}

TEST(ParseCommandLine, HasTheDefaultsOfTheContract) {
  const char* const words[] = {"shardproof", "verify", "flux"};
  const CommandLine line = parse_command_line(3, words);
  ASSERT_TRUE(line.options.has_value());
  const Options& options = *line.options;
  EXPECT_EQ(options.command, Command::verify);
  EXPECT_EQ(options.sources, (Words{"flux"}));
  EXPECT_EQ(options.plan, "default");
  EXPECT_EQ(options.dtype, kFloat64);
  EXPECT_EQ(options.device, DeviceChoice::reference);
  EXPECT_EQ(options.gather, GatherChoice::both);
  EXPECT_TRUE(options.convert_to_fp32);
  EXPECT_EQ(options.seed, 0U);
  EXPECT_EQ(options.schedule_seed, 0U);
  EXPECT_EQ(options.workers, 1);
  EXPECT_FALSE(options.case_name || options.json || options.rotate_method || options.mesh || options.ring_degree ||
               options.ulysses_degree || options.tp_degree);
}

TEST(ParseCommandLine, ReadsEveryOption) {
  const char* const words[] = {"shardproof",
                               "plan",
                               "x",
                               "--ring-degree",
                               "2",
                               "--ulysses-degree",
                               "3",
                               "--tp-degree",
                               "4",
                               "--mesh",
                               "ring=2,ulysses=3",
                               "--ulysses-anything",
                               "--ring-anything",
                               "--rotate-method",
                               "alltoall",
                               "--no-convert-to-fp32",
                               "--plan",
                               "p.json",
                               "--case",
                               "c",
                               "--dtype",
                               "float16",
                               "--tier",
                               "rounding",
                               "--device",
                               "cpu",
                               "--gather",
                               "padded",
                               "--seed",
                               "9223372036854775807",
                               "--schedule-seed",
                               "6",
                               "--workers",
                               "256",
                               "--json",
                               "out"};
  const CommandLine line = parse_command_line(static_cast<int>(std::size(words)), words);
  ASSERT_TRUE(line.options.has_value());
  const Options& options = *line.options;
  EXPECT_EQ(options.command, Command::plan);
  EXPECT_EQ(options.ring_degree, 2);
  EXPECT_EQ(options.ulysses_degree, 3);
  EXPECT_EQ(options.tp_degree, 4);
  EXPECT_EQ(options.mesh->text(), "ring=2,ulysses=3");
  EXPECT_TRUE(options.ulysses_anything);
  EXPECT_TRUE(options.ring_anything);
  EXPECT_EQ(options.rotate_method, "alltoall");
  EXPECT_FALSE(options.convert_to_fp32);
  EXPECT_EQ(options.plan, "p.json");
  EXPECT_EQ(options.case_name, "c");
  EXPECT_EQ(options.dtype, kFloat16);
  EXPECT_EQ(options.device, DeviceChoice::cpu);
  EXPECT_EQ(options.gather, GatherChoice::padded);
  EXPECT_EQ(options.seed, 9223372036854775807U);
  EXPECT_EQ(options.schedule_seed, 6U);
  EXPECT_EQ(options.workers, 256);
  EXPECT_EQ(options.json, "out");
}

TEST(ParseCommandLine, TakesTheCpuForNarrowTypes) {
  for (const char* dtype : {"float32", "bfloat16", "float16"}) {
    const char* const words[] = {"shardproof", "verify", "flux", "--dtype", dtype};
    EXPECT_EQ(parse_command_line(5, words).options->device, DeviceChoice::cpu);
  }
  const char* const words[] = {"shardproof", "verify", "flux", "--dtype", "float32", "--device", "reference"};
  EXPECT_EQ(parse_command_line(7, words).options->device, DeviceChoice::reference);
}

}  // namespace
}  // namespace shardproof
