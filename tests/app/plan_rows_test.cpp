// The records of all ranks as lines of one table.
// Runs are made by hand; the program's own plans are checked in commands_test.
#include "app/plan_rows.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

RankOutcome rank_with(std::int64_t local, std::vector<SkippedEntry> skipped) {
  RankOutcome rank;
  rank.applied = {{AppliedEntry::Action::split, "", "hidden_states", 1, 17, 0, local},
                  {AppliedEntry::Action::gather, "proj_out", "0", 1, 17, 0, local}};
  rank.skipped = std::move(skipped);
  return rank;
}

TEST(PlanRows, PutTheSizesOfAllRanksSideBySide) {
  ParallelRun run;
  run.ranks = {rank_with(9, {}), rank_with(8, {})};
  const std::vector<PlanRow> rows = plan_rows(run, "base", "ring_anything", "ring=2,ulysses=1");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].case_name, "base");
  EXPECT_EQ(rows[0].mode, "ring_anything");
  EXPECT_EQ(rows[0].mesh, "ring=2,ulysses=1");
  EXPECT_EQ(rows[0].module, "");
  EXPECT_EQ(rows[0].argument, "hidden_states");
  EXPECT_EQ(rows[0].action, "split");
  EXPECT_EQ(rows[0].axis, 1);
  EXPECT_EQ(rows[0].total, 17);
  EXPECT_EQ(rows[0].per_rank, (std::vector<std::int64_t>{9, 8}));
  EXPECT_EQ(rows[1].module, "proj_out");
  EXPECT_EQ(rows[1].action, "gather");
}

TEST(PlanRows, ListWhatWasSkippedOnceForAllRanks) {
  const SkippedEntry entry{"", "timestep", "1 dimension, plan expects 2"};
  ParallelRun run;
  run.ranks = {rank_with(9, {entry}), rank_with(8, {entry})};
  const std::vector<PlanRow> rows = plan_rows(run, "base", "ring", "ring=2,ulysses=1");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[2].action, "skipped");
  EXPECT_EQ(rows[2].argument, "timestep");
  EXPECT_EQ(rows[2].note, "1 dimension, plan expects 2");
  EXPECT_FALSE(rows[2].axis || rows[2].total);
}

TEST(PlanRows, EndWithTheArgumentsThatWereNotGiven) {
  ParallelRun run;
  run.ranks = {rank_with(9, {{"", "timestep", "1 dimension, plan expects 2"}})};
  run.ranks.front().omitted = {{"blocks.0", "mask", "not given"}};
  const std::vector<PlanRow> rows = plan_rows(run, "base", "ring", "ring=2,ulysses=1");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[2].argument, "timestep");
  EXPECT_EQ(rows[3].action, "skipped");
  EXPECT_EQ(rows[3].module, "blocks.0");
  EXPECT_EQ(rows[3].argument, "mask");
  EXPECT_EQ(rows[3].note, "not given");
}

TEST(PlanRows, AreOneLineForARunThatDidNotComplete) {
  ParallelRun run;
  run.ranks = {rank_with(9, {})};
  run.reason = "why";
  run.end = RunEnd::refused;
  std::vector<PlanRow> rows = plan_rows(run, "base", "ring", "ring=2,ulysses=1");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].action, "refused");
  EXPECT_EQ(rows[0].note, "why");
  EXPECT_EQ(rows[0].case_name, "base");
  run.end = RunEnd::failed;
  rows = plan_rows(run, "base", "ring", "ring=2,ulysses=1");
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].action, "failed");
}

}  // namespace
}  // namespace shardproof
