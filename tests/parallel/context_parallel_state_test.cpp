// What a rank knows once context parallelism is set up: groups by mesh coordinates, refusals, and the record of what
// happened.
#include "parallel/context_parallel_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/attention_problem.h"
#include "tests/support/rank_results.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;
using testing::StartsWith;

struct Groups {
  std::vector<int> flat, ring, ulysses;
};

std::vector<Groups> groups_of(const ContextParallelConfig& config, int world_size) {
  return rank_results(world_size, [&](Communicator& world) {
    const ContextParallelState state(world, config);
    const auto members = [](const Communicator& group) {
      return std::vector<int>(group.members().begin(), group.members().end());
    };
    return Groups{members(state.flat()), members(state.ring()), members(state.ulysses())};
  });
}

TEST(ContextParallelState, HasTheGroupsOfTheTwoByTwoExample) {
  const auto groups = groups_of(unified_config(2, 2, "allgather"), 4);
  EXPECT_THAT(groups[3].flat, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(groups[0].ulysses, ElementsAre(0, 1));
  EXPECT_THAT(groups[3].ulysses, ElementsAre(2, 3));
  EXPECT_THAT(groups[0].ring, ElementsAre(0, 2));
  EXPECT_THAT(groups[3].ring, ElementsAre(1, 3));
}

TEST(ContextParallelState, FollowsACustomMeshInAnyOrderOfDimensions) {
  const auto groups = groups_of({.mesh = Mesh::parse("ulysses=2,dp=2,ring=2")}, 8);
  // rank = (ulysses * 2 + dp) * 2 + ring
  EXPECT_THAT(groups[0].flat, ElementsAre(0, 4, 1, 5));
  EXPECT_THAT(groups[2].flat, ElementsAre(2, 6, 3, 7));
  EXPECT_THAT(groups[7].ulysses, ElementsAre(3, 7));
  EXPECT_THAT(groups[7].ring, ElementsAre(6, 7));
}

TEST(ContextParallelState, GivesReplicasGroupsOfTheirOwn) {
  const auto groups = groups_of({.mesh = Mesh::parse("ring=2,ulysses=1,fsdp=4")}, 8);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_THAT(groups[static_cast<std::size_t>(rank)].ring, ElementsAre(rank % 4, rank % 4 + 4));
    EXPECT_EQ(groups[static_cast<std::size_t>(rank)].flat, groups[static_cast<std::size_t>(rank)].ring);
  }
}

TEST(ContextParallelState, KnowsItsDegreesAndWhetherLengthsMayDiffer) {
  const auto states = rank_results(2, [](Communicator& world) {
    const ContextParallelState equal(world, ring_config(2, "allgather"));
    const ContextParallelState ragged(world, ulysses_config(2, Lengths::anything));
    return std::tuple(equal.ring_degree(), equal.ulysses_degree(), equal.is_ragged(), ragged.is_ragged(),
                      ragged.mesh().text());
  });
  EXPECT_EQ(states[1], std::tuple(2, 1, false, true, std::string("ring=1,ulysses=2")));
}

std::string refusal(const ContextParallelConfig& config, int world_size) {
  const auto error = thrown_by([&] { groups_of(config, world_size); });
  return error ? std::string(error_kind_name(error->kind)) + ": " + error->message : "accepted";
}

TEST(ContextParallelState, NeedsAsManyRanksAsTheMeshHas) {
  EXPECT_THAT(
      refusal(unified_config(2, 2, "allgather"), 5),
      StartsWith("config_error: rank 0: ring_degree 2 x ulysses_degree 2 in the mesh 'ring=2,ulysses=2' needs 4 "
                 "ranks, but world has 5; they must be equal\n"));
  EXPECT_THAT(
      refusal(ulysses_config(4), 2),
      StartsWith("config_error: rank 0: ring_degree 1 x ulysses_degree 4 in the mesh 'ring=1,ulysses=4' needs 4 "
                 "ranks, but world has 2; they must be equal\n"));
  EXPECT_THAT(refusal({.mesh = Mesh::parse("ring=2,ulysses=1,dp=2")}, 2),
              StartsWith("config_error: rank 0: ring_degree 2 x ulysses_degree 1 in the mesh 'ring=2,ulysses=1,dp=2' "
                         "needs 4 ranks, but world has 2; they must be equal\n"));
}

TEST(ContextParallelState, ThrowsTheProblemsOfItsConfiguration) {
  EXPECT_THAT(refusal({}, 1), StartsWith("config_error: rank 0: either ring_degree or ulysses_degree must be greater"));
  EXPECT_THAT(refusal({.ring_degree = 2, .ulysses_anything = true}, 2),
              StartsWith("config_error: rank 0: ulysses_anything needs ulysses_degree greater than 1 (it is 1); also: "
                         "ulysses_anything needs ring_degree 1 (it is 2)\n"));
}

TEST(ContextParallelState, RecordsEachSkippedEntryOnceAndCountsExchanges) {
  const auto records = rank_results(2, [](Communicator& world) {
    const ContextParallelState state(world, ulysses_config(2));
    state.record_skipped({"", "timestep", "1 dimension, plan expects 2"});
    state.record_skipped({"", "timestep", "1 dimension, plan expects 2"});
    state.record_skipped({"blocks.0", "timestep", "1 dimension, plan expects 2"});
    state.record_omitted("blocks.0", "mask");
    state.record_omitted("blocks.0", "mask");
    const AttentionCall first{.q = {1, 7, 2, 4}, .k = {1, 9, 2, 4}}, second{.q = {1, 8, 2, 4}, .k = {1, 9, 2, 4}};
    for (const AttentionCall& call : {first, second, first}) state.record_attention_exchange(call);
    return std::tuple(state.skipped().size(), state.skipped()[1].module, state.omitted().size(),
                      state.attention_exchanges(), state.attention_tokens(), state.attention_calls().size(),
                      state.attention_sequence());
  });
  EXPECT_EQ(records[0], std::tuple(2U, std::string("blocks.0"), 1U, 3, 7, 2U, std::vector<int>{0, 1, 0}));
}

}  // namespace
}  // namespace shardproof::test
