// Where a process stands, as the environment says it.
// Everything contradictory must be said by variable and value, for the person who wrote the job script.
#include "real/launcher.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::thrown_by;
using ::testing::HasSubstr;

class LaunchFromEnvironment : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* variable :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
      unsetenv(variable);
    }
  }
  static void set(const char* variable, const char* value) { setenv(variable, value, 1); }
  static std::string refusal() {
    const auto error = thrown_by([] { launch_from_environment(); });
    return error ? error->message : "accepted";
  }
};

TEST_F(LaunchFromEnvironment, IsTheOnlyRankWhereNobodyStartedSeveral) {
  const Launch launch = launch_from_environment();
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_EQ(launch.source, "none");
}

TEST_F(LaunchFromEnvironment, ReadsTheVariablesOfOpenMpi) {
  set("OMPI_COMM_WORLD_RANK", "5");
  set("OMPI_COMM_WORLD_SIZE", "8");
  set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
  const Launch launch = launch_from_environment();
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world_size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.source, "Open MPI");
}

TEST_F(LaunchFromEnvironment, NamesVariablesThatAreNoNumbers) {
  set("OMPI_COMM_WORLD_SIZE", "2");
  for (const char* value : {"", "x", "-1", "1x", "99999999999"}) {
    set("OMPI_COMM_WORLD_RANK", value);
    EXPECT_THAT(refusal(), HasSubstr("environment variable OMPI_COMM_WORLD_RANK is '" + std::string(value) + "'"));
  }
}

TEST_F(LaunchFromEnvironment, NamesTheVariableThatIsMissing) {
  set("OMPI_COMM_WORLD_RANK", "0");
  EXPECT_THAT(refusal(), HasSubstr("OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not"));
}

TEST_F(LaunchFromEnvironment, RefusesARankOutsideTheWorld) {
  set("OMPI_COMM_WORLD_RANK", "2");
  set("OMPI_COMM_WORLD_SIZE", "2");
  EXPECT_THAT(refusal(), HasSubstr("rank OMPI_COMM_WORLD_RANK=2 does not lie in OMPI_COMM_WORLD_SIZE=2"));
}

}  // namespace
}  // namespace shardproof
