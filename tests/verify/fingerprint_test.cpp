// Fingerprints are functions of the model, the configuration and the plans alone, and correct code has those of its
// dense runs.
#include "verify/fingerprint.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verify/verifier.h"

namespace shardproof {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Fingerprinter::Plans plans_named(const ModelType& model, const char* name) {
  return [&model, name](const Json& config) { return plans_of_model(model, config, name); };
}

// The configuration that has this in its text.
std::size_t configuration_with(const std::string& words) {
  const auto& all = fingerprint_configurations();
  std::size_t i = 0;
  while (i < all.size() && all[i].text().find(words) == std::string::npos) ++i;
  EXPECT_LT(i, all.size()) << words;
  return i;
}

TEST(FingerprintConfigurations, AreOfEveryKind) {
  std::set<std::string> kinds, texts;
  for (const FingerprintConfiguration& configuration : fingerprint_configurations()) {
    kinds.insert(mode_name(configuration.config));
    texts.insert(configuration.text());
  }
  EXPECT_EQ(texts.size(), fingerprint_configurations().size());
  EXPECT_EQ(kinds, (std::set<std::string>{"ring", "ring_anything", "tp", "tp+ring_anything", "tp+ulysses_anything",
                                          "ulysses", "ulysses_anything", "unified"}));
  EXPECT_THAT(texts, testing::Contains(HasSubstr("unified with ring=2,ulysses=2, alltoall; all features")));
}

TEST(Fingerprint, IsThatOfTheDenseRunForCorrectCode) {
  for (const char* name : {"flux", "probe", "qwenimage21"}) {
    const ModelType& model = find_model_type(name);
    Fingerprinter fingerprinter(model);
    int taken = 0;
    for (std::size_t i = 0; i < fingerprint_configurations().size(); ++i) {
      const Fingerprint print = fingerprinter.take(i, plans_named(model, "default"));
      if (print.print.empty()) continue;
      EXPECT_EQ(print.print, fingerprinter.dense(i)) << name << ", " << fingerprint_configurations()[i].text();
      EXPECT_EQ(print.print.size(), 16U);
      ++taken;
    }
    EXPECT_GE(taken, 2) << name;
  }
}

TEST(Fingerprint, IsTheSameEveryTimeAndOfItsPlan) {
  const ModelType& model = find_model_type("flux");
  const std::size_t ring = configuration_with("ring with ring=3,ulysses=1, alltoall; all features");
  Fingerprinter first(model), second(model);
  const std::string print = first.take(ring, plans_named(model, "default")).print;
  EXPECT_EQ(first.take(ring, plans_named(model, "default")).print, print);
  EXPECT_EQ(second.take(ring, plans_named(model, "default")).print, print);
  // The shipped plan leaves the residuals of a ControlNet whole.
  const Fingerprint other = first.take(ring, plans_named(model, "shipped"));
  EXPECT_NE(other.print, print);
}

TEST(Fingerprint, TellsHowARunEnded) {
  const ModelType& model = find_model_type("ltx");
  Fingerprinter fingerprinter(model);
  const std::size_t ring = configuration_with("ring with ring=3,ulysses=1, alltoall; all features");
  const Fingerprint stopped = fingerprinter.take(ring, plans_named(model, "shipped"));
  EXPECT_THAT(stopped.print, StartsWith("stopped "));
  EXPECT_THAT(stopped.reason, HasSubstr("timestep"));
  ModelType uneven = model;
  uneven.sized_case = [&](const Json& config, ModelSize size, std::uint64_t seed, Device& host) {
    ++size.image;
    return model.sized_case(config, size, seed, host);
  };
  const std::size_t ulysses = configuration_with("ulysses with ring=1,ulysses=2; all features");
  const Fingerprint refused = Fingerprinter(uneven).take(ulysses, plans_named(uneven, "default"));
  EXPECT_THAT(refused.print, StartsWith("refused "));
  EXPECT_THAT(refused.reason, HasSubstr("which 2 ranks cannot divide equally"));
}

TEST(Fingerprint, IsEmptyWhereAModelHasNoneOfTheKind) {
  const ModelType& model = find_model_type("ltx");
  Fingerprinter fingerprinter(model);
  const std::size_t tp = configuration_with("tp with tp=2");
  EXPECT_EQ(fingerprinter.take(tp, plans_named(model, "default")).print, "");
  EXPECT_NE(fingerprinter.dense(tp), "");
  ModelType without = model;
  without.sized_case = nullptr;
  Fingerprinter none(without);
  EXPECT_EQ(none.take(0, plans_named(model, "default")).print, "");
  EXPECT_EQ(none.dense(0), "");
}

}  // namespace
}  // namespace shardproof
