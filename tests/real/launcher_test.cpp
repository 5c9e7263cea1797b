// Where a process stands, as options and the environment say it: every source, their order, and everything that is
// contradictory, which must be said by variable and value, for the person who wrote the job script.
#include "real/launcher.h"

#include <cstdlib>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::thrown_by;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;

using Environment = std::map<std::string, std::string>;

Launch launch_in(const Environment& environment, const LaunchOptions& options = {}) {
  return launch_from(options, [&](std::string_view variable) -> std::optional<std::string> {
    const auto found = environment.find(std::string(variable));
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string refusal_in(const Environment& environment, const LaunchOptions& options = {}) {
  const auto error = thrown_by([&] { launch_in(environment, options); });
  if (!error) return "accepted";
  EXPECT_EQ(error->kind, ErrorKind::usage_error);
  return error->message;
}

Environment joined(Environment environment, const Environment& more) {
  environment.insert(more.begin(), more.end());
  return environment;
}

const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                           {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};
const Environment kOwn{{"SHARDPROOF_RANK", "5"},
                       {"SHARDPROOF_WORLD_SIZE", "8"},
                       {"SHARDPROOF_LOCAL_RANK", "1"},
                       {"SHARDPROOF_LOCAL_SIZE", "4"},
                       {"SHARDPROOF_ADDRESS", "127.0.0.1:4711"}};
const Environment kTorchrun{{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "localhost"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "none"}};
const Environment kPmi{{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};
const Environment kSlurm{{"SLURM_STEP_ID", "0"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_PROCID", "5"},
                         {"SLURM_STEP_NUM_TASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NTASKS", "99"},
                         {"SLURM_STEP_NODELIST", "node[07-08]"}};

TEST(Launcher, SaysTheOnlyRankWhereNobodyStartedSeveral) {
  const Launch launch = launch_in({});
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_EQ(launch.source, "none");
  EXPECT_FALSE(launch.address.is_known());
}

TEST(Launcher, ReadsEverySource) {
  const std::vector<std::pair<std::string, Environment>> sources{
      {"SHARDPROOF_*", kOwn}, {"torchrun", kTorchrun}, {"Open MPI", kOpenMpi}, {"PMI", kPmi}, {"SLURM", kSlurm}};
  for (const auto& [name, environment] : sources) {
    const Launch launch = launch_in(environment);
    EXPECT_EQ(launch.source, name);
    EXPECT_EQ(launch.rank, 5) << name;
    EXPECT_EQ(launch.world_size, 8) << name;
    EXPECT_EQ(launch.local_rank, 1) << name;
    EXPECT_EQ(launch.local_size, name == "SLURM" ? 8 : 4) << name;
    EXPECT_EQ(launch.has_mpi_launcher, name == "Open MPI" || name == "PMI") << name;
  }
  EXPECT_EQ(launch_in(kOpenMpi).claim, "OMPI_COMM_WORLD_RANK=5, OMPI_COMM_WORLD_SIZE=8");
}

TEST(Launcher, TakesOptionsFirstAndCompletesThemFromTheEnvironment) {
  const Launch launch = launch_in(kOpenMpi, {.rank = 5, .world_size = 8});
  EXPECT_EQ(launch.source, "options");
  EXPECT_EQ(launch.claim, "--rank=5, --world-size=8");
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_TRUE(launch.has_mpi_launcher);
}

TEST(Launcher, TakesAllRanksForLocalIfNobodySaysOtherwise) {
  const Launch launch = launch_in({}, {.rank = 2, .world_size = 3});
  EXPECT_EQ(launch.local_rank, 2);
  EXPECT_EQ(launch.local_size, 3);
}

TEST(Launcher, ShowsBothSidesOfAContradiction) {
  Environment environment = joined(kTorchrun, kOpenMpi);
  EXPECT_EQ(launch_in(environment).source, "torchrun");
  environment["OMPI_COMM_WORLD_SIZE"] = "16";
  EXPECT_EQ(refusal_in(environment),
            "torchrun and Open MPI contradict each other about the number of ranks: WORLD_SIZE=8, but "
            "OMPI_COMM_WORLD_SIZE=16; unset what does not belong to this run");
  environment["OMPI_COMM_WORLD_SIZE"] = "8";
  environment["OMPI_COMM_WORLD_RANK"] = "6";
  EXPECT_THAT(refusal_in(environment), HasSubstr("about the rank: RANK=5, but OMPI_COMM_WORLD_RANK=6"));
  environment["OMPI_COMM_WORLD_RANK"] = "5";
  environment["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  EXPECT_THAT(refusal_in(environment), HasSubstr("about the local rank: LOCAL_RANK=1, but OMPI_COMM_WORLD_LOCAL_RANK"));
  environment["OMPI_COMM_WORLD_LOCAL_RANK"] = "1";
  environment["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_THAT(refusal_in(environment), HasSubstr("about the number of local ranks: LOCAL_WORLD_SIZE=4"));
  EXPECT_THAT(
      refusal_in(kOwn, {.rank = 4, .world_size = 8}),
      HasSubstr("options and SHARDPROOF_* contradict each other about the rank: --rank=4, but SHARDPROOF_RANK=5"));
  EXPECT_THAT(refusal_in(joined(kOwn, {{"PMI_RANK", "5"}, {"PMI_SIZE", "9"}})),
              HasSubstr("SHARDPROOF_* and PMI contradict each other"));
}

TEST(Launcher, LeavesTheMeetingToMpiWhereSlurmWasToldTo) {
  EXPECT_FALSE(launch_in(kSlurm).has_mpi_launcher);  // srun --mpi=none
  Environment with_pmix = kSlurm;
  with_pmix["PMIX_RANK"] = "5";
  EXPECT_TRUE(launch_in(with_pmix).has_mpi_launcher);
}

TEST(Launcher, TakesSlurmInsideAStepOnly) {
  Environment environment = kSlurm;
  environment.erase("SLURM_STEP_ID");
  EXPECT_EQ(launch_in(environment).source, "none");
  environment["SLURM_STEP_ID"] = "4294967291";  // the batch script
  EXPECT_EQ(launch_in(environment).source, "none");
}

TEST(Launcher, DoesNotTakeTheTaskOfAnotherLauncherForARank) {
  // Two tasks of a step, in each of which a launcher starts four ranks.
  Environment step = kSlurm;
  step["SLURM_PROCID"] = "1";
  step["SLURM_STEP_NUM_TASKS"] = "2";
  for (const Environment& inner : {kTorchrun, kOpenMpi, kPmi}) EXPECT_EQ(launch_in(joined(inner, step)).world_size, 8);
  EXPECT_THAT(refusal_in(joined(kOwn, step)), HasSubstr("SHARDPROOF_WORLD_SIZE=8, but SLURM_STEP_NUM_TASKS=2"));
}

TEST(Launcher, NamesVariablesThatAreNoNumbers) {
  for (const char* value : {"", "x", "-1", "1x", "99999999999", " 1"}) {
    EXPECT_THAT(refusal_in({{"OMPI_COMM_WORLD_RANK", value}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
                HasSubstr("environment variable OMPI_COMM_WORLD_RANK is '" + std::string(value) + "'"));
    EXPECT_THAT(refusal_in({{"RANK", "0"}, {"WORLD_SIZE", value}}), HasSubstr("environment variable WORLD_SIZE is '"));
  }
  EXPECT_THAT(refusal_in({}, {.rank = -1, .world_size = 2}), HasSubstr("option --rank is '-1'"));
}

TEST(Launcher, NamesWhatIsMissing) {
  EXPECT_THAT(refusal_in({{"OMPI_COMM_WORLD_RANK", "0"}}),
              HasSubstr("OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not; mpirun sets both"));
  EXPECT_THAT(refusal_in({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is set, but RANK is not; torchrun sets both"));
  EXPECT_THAT(refusal_in({{"SHARDPROOF_RANK", "0"}}), HasSubstr("but SHARDPROOF_WORLD_SIZE is not; expected both"));
  EXPECT_THAT(refusal_in({}, {.world_size = 2}), HasSubstr("option --world-size is set, but --rank is not"));
  EXPECT_THAT(refusal_in({}, {.local_rank = 0}), HasSubstr("--local-rank is given without --rank and --world-size"));
  EXPECT_THAT(refusal_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "here"}}),
              HasSubstr("MASTER_ADDR is set, but MASTER_PORT is not; torchrun sets both"));
}

TEST(Launcher, RefusesARankOutsideTheWorld) {
  EXPECT_THAT(refusal_in({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
              HasSubstr("rank OMPI_COMM_WORLD_RANK=2 does not lie in OMPI_COMM_WORLD_SIZE=2"));
  EXPECT_THAT(refusal_in({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}}),
              HasSubstr("local rank LOCAL_RANK=3 does not lie in LOCAL_WORLD_SIZE=2"));
}

TEST(LauncherAddress, ComesFromTheOptionThenFromOurVariable) {
  EXPECT_EQ(launch_in(kOwn).address.text(), "127.0.0.1:4711");
  EXPECT_EQ(launch_in(kOwn, {.address = "[::1]:5"}).address.text(), "[::1]:5");
  EXPECT_EQ(launch_in(joined(kTorchrun, {{"SHARDPROOF_ADDRESS", "here:6"}})).address.text(), "here:6");
  EXPECT_FALSE(launch_in(kOpenMpi).address.is_known());
}

TEST(LauncherAddress, MayListenAlready) {
  EXPECT_EQ(launch_in(kOwn).store_socket, std::nullopt);
  EXPECT_EQ(launch_in(joined(kOwn, {{"SHARDPROOF_STORE_SOCKET", "7"}})).store_socket, 7);
  EXPECT_THAT(refusal_in(joined(kOwn, {{"SHARDPROOF_STORE_SOCKET", "x"}})),
              HasSubstr("environment variable SHARDPROOF_STORE_SOCKET is 'x'"));
}

TEST(LauncherAddress, NeverUsesThePortOfTorchrunsAgent) {
  for (const int port : {29500, 20000, 20003, 24000, 65535, 1}) {
    Environment environment = kTorchrun;
    environment["MASTER_PORT"] = std::to_string(port);
    const StoreAddress address = launch_in(environment).address;
    EXPECT_EQ(address.host, "localhost");
    EXPECT_THAT(address.ports, AllOf(Not(testing::Contains(port)), Each(AllOf(Ge(20000), Le(31999)))));
    EXPECT_GE(address.ports.size(), 7U);
  }
  EXPECT_THAT(launch_in(kTorchrun).address.ports, ElementsAre(28000, 28001, 28002, 28003, 28004, 28005, 28006, 28007));
  EXPECT_EQ(launch_in(kTorchrun).address.text(), "localhost:28000 or one of 7 more ports up to 28007");
}

TEST(LauncherAddress, KeepsRunsOfTorchrunApart) {
  const std::uint64_t run = launch_in(kTorchrun).run;
  EXPECT_EQ(launch_in(kTorchrun).run, run);
  for (const auto& [variable, value] :
       Environment{{"MASTER_PORT", "29501"}, {"TORCHELASTIC_RUN_ID", "other"}, {"TORCHELASTIC_RESTART_COUNT", "1"}}) {
    Environment environment = kTorchrun;
    environment[variable] = value;
    EXPECT_NE(launch_in(environment).run, run) << variable;
  }
}

TEST(LauncherAddress, FollowsFromTheStepUnderSlurm) {
  const Launch launch = launch_in(kSlurm);
  EXPECT_EQ(launch.address.host, "node07");
  EXPECT_THAT(launch.address.ports, SizeIs(8));
  Environment other = kSlurm;
  other["SLURM_STEP_ID"] = "1";
  EXPECT_NE(launch_in(other).run, launch.run);
  const Environment hosts{
      {"alone", "alone"}, {"a,b", "a"}, {"n[3,5-6]", "n3"}, {"x,n[1-2]", "x"}, {"r1n[001-4],z", "r1n001"}};
  for (const auto& [list, first] : hosts) {
    other["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ(launch_in(other).address.host, first);
  }
}

TEST(LauncherAddress, NamesWhatIsNoAddress) {
  for (const char* text : {"", "here", ":1", "here:", "here:0", "here:65536", "here:x", "a:b:1", "[]:1", "::1:5x"}) {
    EXPECT_THAT(refusal_in({}, {.address = text}), HasSubstr("--address: '" + std::string(text) + "' is not possible"));
    EXPECT_THAT(refusal_in({{"SHARDPROOF_ADDRESS", text}}),
                HasSubstr("environment variable SHARDPROOF_ADDRESS: '" + std::string(text) + "' is not possible"));
  }
  Environment environment = kTorchrun;
  environment["MASTER_PORT"] = "x";
  EXPECT_THAT(refusal_in(environment), HasSubstr("environment variable MASTER_PORT: 'x' is not possible"));
}

TEST(Launcher, ReadsTheEnvironmentOfTheProcess) {
  ASSERT_EQ(setenv("SHARDPROOF_RANK", "1", 1), 0);
  ASSERT_EQ(setenv("SHARDPROOF_WORLD_SIZE", "2", 1), 0);
  EXPECT_EQ(launch_from_environment().rank, 1);
  unsetenv("SHARDPROOF_RANK");
  unsetenv("SHARDPROOF_WORLD_SIZE");
}

}  // namespace
}  // namespace shardproof
