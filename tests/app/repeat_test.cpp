// The line that repeats a result: every option that the result depends on, spelt for a shell, and none that it does
// not.
#include "app/repeat.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

VerificationResult result_of(const std::string& tier) {
  VerificationResult result;
  result.case_name = "base";
  result.tier = tier;
  result.dtype = "float32";
  result.device = "cpu";
  return result;
}

TEST(RepeatCommand, NamesTheConfiguration) {
  const Options options{.sources = {"exports/my flux"}};
  const ParallelConfig config{
      .context_parallel_config =
          ContextParallelConfig{
              .ring_degree = 3, .convert_to_fp32 = false, .rotate_method = "alltoall", .ring_anything = true},
      .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}};
  EXPECT_EQ(repeat_command(options, result_of("exact"), config, std::nullopt),
            "shardproof verify 'exports/my flux' --case base --ring-degree 3 --ring-anything --rotate-method alltoall "
            "--no-convert-to-fp32 --tp-degree 2 --tier exact --seed 0");
}

TEST(RepeatCommand, NamesWhatIsNotTheDefault) {
  const Options options{.sources = {"flux"}, .plan = "it's.json", .gather = GatherChoice::padded};
  const ParallelConfig config{.context_parallel_config =
                                  ContextParallelConfig{.mesh = Mesh::parse("ring=2,ulysses=2")}};
  VerificationResult result = result_of("rounding");
  result.seed = 7;
  result.schedule_seed = 5;
  EXPECT_EQ(
      repeat_command(options, result, config, ModelSize{.heads = 3}),
      "shardproof verify flux --size text=3,image=4,heads=3,layers=1,batch=1 --rotate-method allgather "
      "--mesh ring=2,ulysses=2 --plan 'it'\\''s.json' --tier rounding --dtype float32 --device cpu --gather padded "
      "--seed 7 --schedule-seed 5");
}

TEST(ShellWord, IsQuotedWhereItMustBe) {
  EXPECT_EQ(shell_word("a/b-c_1.json"), "a/b-c_1.json");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("a b"), "'a b'");
  EXPECT_EQ(shell_word("$(x)"), "'$(x)'");
  EXPECT_EQ(shell_word("a\nb"), "$'a\\x0ab'");
}

}  // namespace
}  // namespace shardproof
