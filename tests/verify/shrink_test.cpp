// The search for the smallest failure: what it finds in plans that are known to be broken, in which order it looks, and
// the test that it writes.
#include "verify/shrink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thrown_error.h"
#include "verify/reproduction.h"
#include "verify/subject.h"

namespace shardproof {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ShrinkInput input_for(const std::string& model, const std::string& plan, const ParallelConfig& config) {
  ShrinkInput input;
  input.model = find_model_type(model);
  input.settings = input.model.hostile_config();
  input.plans = [type = input.model, plan](const Json& small) { return plans_of_model(type, small, plan); };
  input.config = config;
  return input;
}

ParallelConfig ring_of(int degree) { return {.context_parallel_config = ContextParallelConfig{.ring_degree = degree}}; }

TEST(Shrink, FindsTheFeatureThatAPlanForgets) {
  ShrinkInput input = input_for("ltx", "shipped", ring_of(4));
  input.features = {"key_mask", "shard_mask", "per_token", "coordinates"};
  input.stopped = true;
  const Shrunk shrunk = shrink(input);
  ASSERT_TRUE(shrunk.smallest);
  EXPECT_EQ(shrunk.smallest->size, (ModelSize{2, 2, 1, 1, 1, {"per_token"}}));
  EXPECT_EQ(effective_mesh(shrunk.smallest->config).size(), 2);
  EXPECT_EQ(shrunk.smallest->result.verdict, Verdict::different);
  EXPECT_THAT(shrunk.smallest->result.reason, HasSubstr("argument 'timestep'"));
  EXPECT_FALSE(shrunk.smallest->result.diagnosis.empty());
  EXPECT_FALSE(shrunk.was_cut_off);
  EXPECT_GT(shrunk.tried, 1);
}

// A plan that splits one stream of FLUX by the other's rule: text rows that every rank sees in whole.
TEST(Shrink, FindsASilentDifferenceInTheFewestTokens) {
  ShrinkInput input = input_for("flux", "default", ring_of(3));
  input.plans = [type = input.model](const Json& small) {
    ParallelPlans plans = plans_of_model(type, small, "default");
    auto& root = std::get<SplitEntries>(plans.cp->entries.front().second);
    std::erase_if(root, [](const auto& entry) { return entry.first == SplitKey("encoder_hidden_states"); });
    std::erase_if(root, [](const auto& entry) { return entry.first == SplitKey("txt_ids"); });
    return plans;
  };
  const Shrunk shrunk = shrink(input);
  ASSERT_TRUE(shrunk.smallest);
  EXPECT_EQ(shrunk.smallest->size, (ModelSize{1, 2, 1, 1, 1, {}}));
  EXPECT_EQ(effective_mesh(shrunk.smallest->config).size(), 2);
}

TEST(Shrink, FindsNothingWhereNothingFails) {
  const Shrunk shrunk = shrink(input_for("flux", "default", ring_of(2)));
  EXPECT_FALSE(shrunk.smallest);
  EXPECT_FALSE(shrunk.was_cut_off);
  EXPECT_GT(shrunk.tried, 10);
}

TEST(Shrink, EndsWhenItsTimeIsOver) {
  ShrinkInput input = input_for("ltx", "shipped", ring_of(4));
  input.features = {"per_token"};
  input.stopped = true;
  input.most_seconds = 0.0;
  const Shrunk shrunk = shrink(input);
  EXPECT_FALSE(shrunk.smallest);
  EXPECT_TRUE(shrunk.was_cut_off);
  EXPECT_EQ(shrunk.tried, 0);
}

TEST(Shrink, RefusesAModelWithoutSizes) {
  ShrinkInput input = input_for("flux", "default", ring_of(2));
  input.model.sized_case = nullptr;
  EXPECT_EQ(test::thrown_by([&] { shrink(input); }),
            test::thrown(ErrorKind::usage_error,
                         "FluxTransformer2DModel has no sizes; expected a model that has (ModelType::sized_case)"));
}

std::vector<std::string> texts_of(const std::vector<ParallelConfig>& configs) {
  std::vector<std::string> texts;
  for (const ParallelConfig& config : configs) texts.push_back(mode_name(config) + " " + effective_mesh(config).text());
  return texts;
}

TEST(SmallerConfigurations, AreThoseOfTheSameKindsWithTheFewestRanksFirst) {
  EXPECT_THAT(texts_of(smaller_configurations(ring_of(2))),
              ElementsAre("ring ring=2,ulysses=1", "ring ring=2,ulysses=1", "ulysses ring=1,ulysses=2",
                          "ring_anything ring=2,ulysses=1", "ring_anything ring=2,ulysses=1",
                          "ulysses_anything ring=1,ulysses=2", "ring ring=2,ulysses=1"));
  const ParallelConfig tp{.tensor_parallel_config = TensorParallelConfig{.tp_degree = 3}};
  EXPECT_THAT(texts_of(smaller_configurations(tp)), ElementsAre("tp tp=2", "tp tp=3", "tp tp=3"));
  const std::vector<std::string> of_four = texts_of(smaller_configurations(ring_of(4)));
  EXPECT_THAT(of_four, testing::Contains("unified ring=2,ulysses=2"));
  EXPECT_THAT(of_four, testing::Not(testing::Contains(HasSubstr("tp"))));
}

SmallestFailure failure_of(const ShrinkInput& input) {
  return {ModelSize{2, 2, 1, 1, 1, {"per_token"}}, input.config, {}};
}

TEST(ReproducingTest, HoldsEverythingInAtMostSixtyLines) {
  const ShrinkInput input = input_for("ltx", "shipped", ring_of(2));
  const std::string text = reproducing_test(input, failure_of(input), {"shipped", {}});
  EXPECT_THAT(text, HasSubstr("TEST(SmallestFailure, RingOn2Ranks) {"));
  EXPECT_THAT(text, HasSubstr("parse_model_size(\"text=2,image=2,heads=1,layers=1,batch=1,with=per_token\")"));
  EXPECT_THAT(text, HasSubstr("ContextParallelConfig{.ring_degree = 2, .rotate_method = \"allgather\"}"));
  EXPECT_THAT(text, HasSubstr("plans_of_model(subject.model(), subject.config(), \"shipped\")"));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 60);
}

// A device of the caller's own is made by the caller's words.
TEST(ReproducingTest, MakesTheGivenDevice) {
  ShrinkInput input = input_for("ltx", "shipped", ring_of(2));
  input.tier = ShrinkTier::rounding;
  input.rounding = {.dtype = kFloat32, .device = DeviceChoice::given};
  const std::string text =
      reproducing_test(input, failure_of(input), {"shipped", {}}, {"real/torch_device.h", "make_torch_device()"});
  EXPECT_THAT(text, HasSubstr("#include \"real/torch_device.h\"\n#include \"verify/"));
  EXPECT_THAT(text, HasSubstr("  const std::unique_ptr<Device> device = make_torch_device();\n"));
  EXPECT_THAT(text, HasSubstr(".device = DeviceChoice::given, .given_device = device.get(), .seed"));
}

// Of a plan file, whatever its length, no line is too long.
TEST(ReproducingTest, HoldsThePlanOfAFile) {
  const ShrinkInput input = input_for("ltx", "shipped", ring_of(2));
  const ParallelPlans plans = plans_of_model(input.model, input.settings, "shipped");
  const std::string text = reproducing_test(input, failure_of(input), {"plan.json", plans});
  EXPECT_THAT(text, HasSubstr("plan_from_json(parse_json("));
  EXPECT_THAT(text, HasSubstr("encoder_attention_mask"));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 60);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    EXPECT_LE(end - at, 120U) << text.substr(at, end - at);
    at = end + 1;
  }
}

}  // namespace
}  // namespace shardproof
