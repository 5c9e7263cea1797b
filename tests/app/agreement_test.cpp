// What ranks must have been given alike: every option that changes a result, and the words for one that differs. The
// ranks are simulated.
#include "app/agreement.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real/peer_failure.h"
#include "tests/support/rank_results.h"

namespace shardproof {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

Options options_of(std::vector<const char*> words) {
  words.insert(words.begin(), {"shardproof", "run", "flux", "--backend", "mpi"});
  return *parse_command_line(static_cast<int>(words.size()), words.data()).options;
}

TEST(Settings, DifferWithEveryOptionThatChangesAResult) {
  const std::uint64_t usual = hash_of(settings_of(options_of({})));
  const std::vector<std::vector<const char*>> changes{{"--ring-degree", "2"},
                                                      {"--ulysses-degree", "2"},
                                                      {"--tp-degree", "2"},
                                                      {"--mesh", "ring=2,ulysses=1"},
                                                      {"--ulysses-anything"},
                                                      {"--ring-anything"},
                                                      {"--rotate-method", "alltoall"},
                                                      {"--no-convert-to-fp32"},
                                                      {"--plan", "shipped"},
                                                      {"--case", "even"},
                                                      {"--dtype", "float32"},
                                                      {"--device", "cpu"},
                                                      {"--gather", "ragged"},
                                                      {"--gather", "padded"},
                                                      {"--seed", "1"},
                                                      {"--check", "off"},
                                                      {"--warmup", "1"},
                                                      {"--steps", "2"},
                                                      {"--trace", "file"}};
  std::vector<std::uint64_t> seen{usual};
  for (const std::vector<const char*>& change : changes) {
    const std::uint64_t hash = hash_of(settings_of(options_of(change)));
    EXPECT_THAT(seen, Each(testing::Ne(hash))) << change.front();
    seen.push_back(hash);
  }
  Options watched = options_of({});
  watched.cupti = true;  // which no backend of this kind admits
  EXPECT_NE(hash_of(settings_of(watched)), usual);
  // What each rank may choose for itself.
  for (const std::vector<const char*>& own :
       {std::vector<const char*>{"--json", "file"}, {"--timeout", "5"}, {"--workers", "2"}, {"--address", "here:1"}}) {
    EXPECT_EQ(hash_of(settings_of(options_of(own))), usual) << own.front();
  }
}

// What the ranks say to each other if rank 2 of three has these settings and the others have the first.
std::vector<std::string> said(const std::vector<Setting>& most, const std::vector<Setting>& third) {
  return test::rank_results(3, [&](Communicator& world) -> std::string {
    try {
      check_agreement(world, world.rank() == 2 ? third : most);
    } catch (const PeerFailure& error) {
      return error.what();
    }
    return "agreed";
  });
}

TEST(Agreement, IsFoundAmongEqualRanks) {
  const std::vector<Setting> settings{{"--dtype", "float64"}, {"--seed", "0"}};
  EXPECT_THAT(said(settings, settings), Each("agreed"));
}

TEST(Agreement, NamesTheRankTheSettingAndBothValues) {
  EXPECT_THAT(
      said({{"--dtype", "float64"}, {"--seed", "0"}}, {{"--dtype", "float64"}, {"--seed", "17"}}),
      Each("rank 2 was started with another configuration than rank 0: --seed is '17' there, and '0' on rank 0"));
}

TEST(Agreement, ShowsValuesThatAreLongOrStrange) {
  const std::string same(300, 'x');
  EXPECT_THAT(said({{"SOURCE", same + "a"}}, {{"SOURCE", same + "b"}}), Each(HasSubstr("SOURCE is 'xxx")));
  EXPECT_THAT(said({{"SOURCE", "a\nb"}}, {{"SOURCE", "\x1b[31m"}}),
              Each(HasSubstr("SOURCE is '\\x1b[31m' there, and 'a\\x0ab'")));
}

TEST(Agreement, NamesAnotherVersion) {
  EXPECT_THAT(said({{"a", "1"}, {"b", "2"}}, {{"a", "1"}}),
              Each("rank 2 is another version of the program than rank 0"));
  EXPECT_THAT(said({{"a", "1"}}, {{"b", "1"}}), Each("rank 2 is another version of the program than rank 0"));
}

}  // namespace
}  // namespace shardproof
