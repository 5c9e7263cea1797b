// The legal set of attention configurations, over every factoring of up to four ranks: verified on every rank == legal
// by the table that is written from the specification, refused by one of the broken rules' words == the rest. The
// counts are pinned, so that neither side can shrink unseen.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/eigen_device.h"
#include "tests/support/attention_problem.h"
#include "tests/support/legal_configurations.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::Pair;

constexpr std::array kHeads{1, 2, 3, 4, 5, 6};
constexpr std::array kText{0, 1, 2, 3, 4, 5, 6};
constexpr std::array kImage{1, 2, 3, 4, 5, 6, 7, 8};
constexpr std::array<std::array<int, 2>, 8> kFactorings{
    {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {1, 4}, {4, 1}, {2, 2}}};
constexpr std::array kRotateMethods{"allgather", "alltoall"};

// The mask of one kind on a problem for `ranks` ranks.
HostArray bias_of(MaskKind kind, const AttentionProblem& problem, int ranks) {
  const auto keys = problem.keys();
  switch (kind) {
    case MaskKind::none: return {};
    case MaskKind::key: return key_bias(problem, [](auto b, auto key) { return (key + b) % 3 != 1; });
    case MaskKind::whole_shard: {
      const std::vector<Indices> pieces = pieces_of(problem.key_streams, ranks);
      HostArray bias = key_bias(problem, [](auto, auto) { return true; });
      const std::size_t masked = static_cast<std::size_t>(problem.heads()) % pieces.size();
      for (const std::int64_t key : pieces[masked]) bias.values[static_cast<std::size_t>(key)] = -INFINITY;
      return bias;
    }
    case MaskKind::cross_cutting:
    case MaskKind::local_rows:
      // Half of the keys, from a place that moves with the query and the head; query 0 sees none.
      return full_bias(problem, [keys](auto, auto h, auto q, auto key) {
        return q != 0 && (key + 2 * q + h) % keys < (keys + 1) / 2;
      });
  }
  return {};
}

class Census {
 public:
  explicit Census(Device& device) : device_(device) {}

  void judge(const AttentionConfiguration& c, const AttentionProblem& problem, const DenseAttention& dense,
             const std::string& rotate_method) {
    const std::vector<const LegalityRule*> broken = broken_rules(c);
    for (const LegalityRule* rule : broken) ++by_rule_[std::string(rule->name)];
    const AttentionRun run{.config = {.ring_degree = c.ring,
                                      .ulysses_degree = c.ulysses,
                                      .rotate_method = rotate_method,
                                      .ulysses_anything = c.ulysses_anything,
                                      .ring_anything = c.ring_anything},
                           .device = &device_,
                           .key_axis = c.mask == MaskKind::cross_cutting ? KeyAxis::global : KeyAxis::local};
    double worst = 0;
    const auto error = thrown_by([&] { worst = worst_difference(problem, dense, run_parallel(problem, run)); });
    if (error) {
      ++refused_;
      if (!is_one_of(broken, *error)) complain(c, rotate_method, "refused: " + error->message);
    } else {
      ++verified_;
      if (!broken.empty()) complain(c, rotate_method, "runs, but breaks: " + std::string(broken.front()->name));
      if (!(worst <= 1e-12)) complain(c, rotate_method, "differs by " + std::to_string(worst));
    }
  }

  int verified() const { return verified_; }
  int refused() const { return refused_; }
  const std::map<std::string, int>& by_rule() const { return by_rule_; }
  const std::vector<std::string>& complaints() const { return complaints_; }

 private:
  static bool is_one_of(const std::vector<const LegalityRule*>& rules, const ThrownError& error) {
    return std::any_of(rules.begin(), rules.end(), [&](const LegalityRule* rule) {
      return error.kind == rule->kind && error.message.find(rule->words) != std::string::npos;
    });
  }
  void complain(const AttentionConfiguration& c, const std::string& rotate_method, const std::string& what) {
    if (complaints_.size() >= 20) return;
    complaints_.push_back("ring " + std::to_string(c.ring) + " ulysses " + std::to_string(c.ulysses) + " " +
                          (c.ulysses_anything ? "ulysses_anything " : "") + (c.ring_anything ? "ring_anything " : "") +
                          rotate_method + " heads " + std::to_string(c.heads) + " text " + std::to_string(c.text) +
                          " image " + std::to_string(c.image) + " mask " + std::to_string(static_cast<int>(c.mask)) +
                          ": " + what);
  }

  Device& device_;
  int verified_ = 0;
  int refused_ = 0;
  std::map<std::string, int> by_rule_;
  std::vector<std::string> complaints_;
};

// All factorings, flags and rotations of one problem and kind of mask.
void judge_all(Census& census, AttentionProblem problem, MaskKind mask) {
  std::map<int, DenseAttention> dense_of;  // by ranks: the masked shard moves with them
  for (const auto& [ring, ulysses] : kFactorings) {
    const int ranks = ring * ulysses;
    problem.bias = bias_of(mask, problem, ranks);
    if (!dense_of.contains(ranks)) dense_of[ranks] = problem.dense();
    for (const auto& [ulysses_anything, ring_anything] : {std::pair{false, false}, {true, false}, {false, true}}) {
      const AttentionConfiguration c{ring,
                                     ulysses,
                                     ulysses_anything,
                                     ring_anything,
                                     problem.heads(),
                                     problem.query_streams[0],
                                     problem.query_streams[1],
                                     mask};
      for (const char* rotate_method : kRotateMethods) census.judge(c, problem, dense_of[ranks], rotate_method);
    }
  }
}

TEST(LegalConfigurations, AreVerifiedAndAllOthersRefusedByName) {
  const std::unique_ptr<Device> device = make_reference_device(kFloat64);
  Census census(*device);
  std::uint64_t seed = 0;
  for (const int heads : kHeads) {
    for (const int text : kText) {
      for (const int image : kImage) {
        const AttentionProblem problem = random_problem({.heads = heads, .width = 2, .streams = {text, image}}, ++seed);
        for (int mask = 0; mask < kMaskKinds; ++mask) judge_all(census, problem, static_cast<MaskKind>(mask));
      }
    }
  }
  EXPECT_THAT(census.complaints(), testing::IsEmpty());
  const int all = static_cast<int>(kHeads.size() * kText.size() * kImage.size()) * kMaskKinds *
                  static_cast<int>(kFactorings.size()) * 3 * 2;
  EXPECT_EQ(all, 80640);
  EXPECT_EQ(census.verified() + census.refused(), all);
  EXPECT_EQ(census.verified(), 8832);
  // How many of them break each rule; some break several.
  EXPECT_THAT(
      census.by_rule(),
      testing::ElementsAre(Pair("Ring Anything with Ulysses", 13440), Pair("Ring Anything without a ring", 13440),
                           Pair("Ulysses Anything with a ring", 13440), Pair("Ulysses Anything without Ulysses", 13440),
                           Pair("every rank has a head", 5600), Pair("heads divide equally", 16800),
                           Pair("image divides equally", 15960), Pair("image reaches every rank", 12600),
                           Pair("one rank", 10080), Pair("query rows need the global key axis", 16128),
                           Pair("text divides equally", 13920), Pair("text reaches every rank", 14400)));
}

}  // namespace
}  // namespace shardproof::test
