// The first wrong place of a parallel run: healthy runs have none, whatever the layout; a module that computes
// something else on one rank, and a plan that gathers or divides wrongly, are named with the pattern of what is wrong.
#include "verify/diagnosis.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/ops.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class DiagnosisTest : public testing::Test {
 protected:
  DiagnosisInput input_of(Subject& subject, const std::string& case_name, const ParallelConfig& config) {
    context_ = {&subject.reference_device(), kFloat64, TablePrecision::float64};
    const ModelPlans plans = subject.model().plans(subject.config());
    DiagnosisInput input;
    input.dense_tree = input.rank_tree = [this, &subject] { return subject.make_tree(context_); };
    input.arguments = {subject.prepare(subject.load_case(case_name), context_)};
    input.plans = {.cp = plans.default_cp, .tp = plans.default_tp};
    input.options = {.config = config};
    return input;
  }

  ModelContext context_{};
};

// Multiplies the outputs of the module that it is set on.
class Spoiler final : public Hook {
 public:
  std::string_view class_name() const override { return "Spoiler"; }
  void post_forward(Module&, Outputs& outputs) override {
    for (Tensor& tensor : outputs.tensors) tensor = ops::multiply(tensor, 1.25);
  }
};

// Ends the run of a rank.
class Thrower final : public Hook {
 public:
  std::string_view class_name() const override { return "Thrower"; }
  void pre_forward(Module&, Arguments&) override { fail(ErrorKind::state_error, "the rank ends here"); }
};

class HealthyRun : public DiagnosisTest, public testing::WithParamInterface<const char*> {};

TEST_P(HealthyRun, HasNoWrongPlace) {
  Subject subject = Subject::open(GetParam(), 0);
  const std::vector<ParallelConfig> configs{
      {.context_parallel_config = ContextParallelConfig{.ring_degree = 3, .ring_anything = true}},
      {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}},
      {.context_parallel_config = ContextParallelConfig{.ring_degree = 2},
       .tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}},
      {.tensor_parallel_config = TensorParallelConfig{.tp_degree = 2}},
  };
  const ModelPlans plans = subject.model().plans(subject.config());
  int compared = 0;
  for (const ParallelConfig& config : configs) {
    const bool has_plans =
        (plans.default_cp || !config.context_parallel_config) && (plans.default_tp || !config.tensor_parallel_config);
    if (!has_plans) continue;
    for (const std::string& case_name : subject.case_names()) {
      const Diagnosis diagnosis = diagnose(input_of(subject, case_name, config));
      EXPECT_FALSE(diagnosis.found) << case_name << ' ' << diagnosis.lines().front();
      EXPECT_EQ(diagnosis.not_diagnosed, "");
      compared += diagnosis.compared > 20 && 20 * diagnosis.not_comparable <= diagnosis.compared ? 1 : 0;
    }
  }
  EXPECT_GE(compared, 2);
}

INSTANTIATE_TEST_SUITE_P(Models, HealthyRun,
                         testing::Values("flux", "flux2", "qwenimage", "qwenimage21", "wan", "ltx2", "helios",
                                         "minimax_h3"),
                         [](const auto& name) { return std::string(name.param); });

TEST_F(DiagnosisTest, NamesTheModuleThatComputesSomethingElse) {
  Subject subject = Subject::open("flux", 0);
  DiagnosisInput input = input_of(
      subject, "uneven", {.context_parallel_config = ContextParallelConfig{.ring_degree = 3, .ring_anything = true}});
  int trees = 0;
  input.rank_tree = [&] {
    std::unique_ptr<Module> tree = subject.make_tree(context_);
    if (trees++ == 1) {
      tree->find_module("transformer_blocks.1.ff.net.2")->hooks().register_hook("spoiler", std::make_unique<Spoiler>());
    }
    return tree;
  };
  const Diagnosis diagnosis = diagnose(input);
  EXPECT_TRUE(diagnosis.found);
  EXPECT_EQ(diagnosis.module, "transformer_blocks.1.ff.net.2");
  EXPECT_EQ(diagnosis.class_name, "Linear");
  ASSERT_THAT(diagnosis.ranks, SizeIs(1));
  EXPECT_EQ(diagnosis.ranks[0].rank, 2);
  EXPECT_EQ(diagnosis.ranks[0].extent, "every element");
  EXPECT_THAT(diagnosis.ranks[0].layout, HasSubstr("entries 9 to 12 of 13 along axis 1"));
  EXPECT_THAT(
      diagnosis.lines()[0],
      StartsWith("first wrong: output of module 'transformer_blocks.1.ff.net.2' (Linear), call 1, on rank 2; "));
  EXPECT_THAT(diagnosis.lines()[1], StartsWith("rank 2, which should have entries 9 to 12 of 13 along axis 1: every "
                                               "element; at ["));
}

TEST_F(DiagnosisTest, TakesAPartThatIsNotGatheredForRight) {
  Subject subject = Subject::open("flux", 0);
  DiagnosisInput input =
      input_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}});
  std::erase_if(input.plans.cp->entries, [](const auto& entry) { return entry.first == "proj_out"; });
  const Diagnosis diagnosis = diagnose(input);
  EXPECT_FALSE(diagnosis.found);
  EXPECT_THAT(diagnosis.lines()[0], StartsWith("no module output differs where it can be compared ("));
}

TEST_F(DiagnosisTest, ComparesWhatRanksHadWhenTheRunFailed) {
  Subject subject = Subject::open("flux", 0);
  DiagnosisInput input =
      input_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}});
  int trees = 0;
  input.rank_tree = [&] {
    std::unique_ptr<Module> tree = subject.make_tree(context_);
    if (trees++ == 0) {
      tree->find_module("x_embedder")->hooks().register_hook("spoiler", std::make_unique<Spoiler>());
      tree->find_module("norm_out")->hooks().register_hook("thrower", std::make_unique<Thrower>());
    }
    return tree;
  };
  const Diagnosis diagnosis = diagnose(input);
  EXPECT_EQ(diagnosis.module, "x_embedder");
  EXPECT_EQ(diagnosis.compared, 0);
}

// Multiplies an argument before the module sees it.
class ArgumentSpoiler final : public Hook {
 public:
  explicit ArgumentSpoiler(const char* name) : name_(name) {}
  std::string_view class_name() const override { return "ArgumentSpoiler"; }
  void pre_forward(Module&, Arguments& arguments) override {
    const Name name(name_);
    arguments.set(name, ops::multiply(arguments.tensor(name), 1.25));
  }

 private:
  const char* name_;
};

TEST_F(DiagnosisTest, TellsWhatAModelComputesFromWhatItsPlanGathers) {
  Subject subject = Subject::open("flux", 0);
  DiagnosisInput input =
      input_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}});
  input.rank_tree = [&] {
    std::unique_ptr<Module> tree = subject.make_tree(context_);
    tree->find_module("proj_out")->hooks().register_hook("spoiler", std::make_unique<Spoiler>());
    return tree;
  };
  const Diagnosis diagnosis = diagnose(input);
  EXPECT_EQ(diagnosis.module, "proj_out");
  EXPECT_EQ(diagnosis.point, Point::output);
  EXPECT_EQ(diagnosis.origin.module, "proj_out");
  EXPECT_THAT(diagnosis.lines(), testing::Contains(HasSubstr("looks like a constant factor of 1.25: a scale")));
}

TEST_F(DiagnosisTest, SaysThatRanksEndedWhenThePlanDivided) {
  Subject subject = Subject::open("flux", 0);
  DiagnosisInput input =
      input_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}});
  for (auto& [id, entry] : input.plans.cp->entries) {
    auto* splits = std::get_if<SplitEntries>(&entry);
    for (std::size_t i = 0; splits != nullptr && i < splits->size(); ++i) {
      auto& [key, split] = (*splits)[i];
      // Three coordinates on two ranks.
      if (std::get<std::string>(key) == "img_ids") std::get<ContextParallelInput>(split).split_dim = 1;
    }
  }
  const Diagnosis diagnosis = diagnose(input);
  ASSERT_THAT(diagnosis.ended, SizeIs(2));
  EXPECT_EQ(diagnosis.ended[0].point, Point::division);
  EXPECT_THAT(diagnosis.lines(), testing::Contains("ranks 0, 1 ended before the forward of the whole model"));
}

TEST_F(DiagnosisTest, BlamesTheCallerForAnArgument) {
  Subject subject = Subject::open("flux", 0);
  DiagnosisInput input =
      input_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}});
  // Inside of what the diagnosis sees of the block's arguments, as the block's own code would.
  input.rank_tree = [&] {
    std::unique_ptr<Module> tree = subject.make_tree(context_);
    Module* block = tree->find_module("transformer_blocks.1");
    block->hooks().register_hook("spoiler", std::make_unique<ArgumentSpoiler>("hidden_states"));
    return tree;
  };
  const Diagnosis diagnosis = diagnose(input);
  ASSERT_TRUE(diagnosis.found);
  EXPECT_EQ(diagnosis.point, Point::argument);
  EXPECT_EQ(diagnosis.module, "transformer_blocks.1.norm1");
  EXPECT_EQ(diagnosis.origin.module, "transformer_blocks.1");
  EXPECT_THAT(diagnosis.lines()[0], HasSubstr("as module 'transformer_blocks.1"));
}

TEST_F(DiagnosisTest, SaysWhereTheRanksEnded) {
  Subject subject = Subject::open("flux", 0);
  DiagnosisInput input =
      input_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}});
  input.rank_tree = [&] {
    std::unique_ptr<Module> tree = subject.make_tree(context_);
    tree->find_module("transformer_blocks.0.attn")->hooks().register_hook("thrower", std::make_unique<Thrower>());
    return tree;
  };
  const Diagnosis diagnosis = diagnose(input);
  EXPECT_FALSE(diagnosis.found);
  ASSERT_THAT(diagnosis.ended, SizeIs(2));
  EXPECT_TRUE(diagnosis.ended[1].origin.attends);
  EXPECT_THAT(diagnosis.lines(),
              testing::Contains("ranks 0, 1 ended inside module 'transformer_blocks.0.attn' (FluxAttention)"));
}

TEST_F(DiagnosisTest, SuspectsWhatAPlanForgets) {
  Subject subject = Subject::open("flux", 0);
  DiagnosisInput input =
      input_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}});
  EXPECT_THAT(diagnose(input).suspects, testing::IsEmpty());
  for (auto& [id, entry] : input.plans.cp->entries) {
    if (auto* splits = std::get_if<SplitEntries>(&entry))
      std::erase_if(*splits, [](const auto& split) { return std::get<std::string>(split.first) == "img_ids"; });
  }
  std::erase_if(input.plans.cp->entries, [](const auto& entry) { return entry.first == "proj_out"; });
  const std::vector<Suspect> suspects = diagnose(input).suspects;
  ASSERT_THAT(suspects, SizeIs(1));
  EXPECT_EQ(suspects[0].value, "img_ids");
  EXPECT_THAT(suspects[0].text, HasSubstr("'img_ids' of the whole model stays whole"));
}

TEST_F(DiagnosisTest, SaysThatARunIsTooLargeForIt) {
  Subject subject = Subject::open("flux", 0);
  DiagnosisInput input =
      input_of(subject, "even", {.context_parallel_config = ContextParallelConfig{.ulysses_degree = 2}});
  input.most_bytes = 1 << 20;
  EXPECT_THAT(diagnose(input).lines(),
              ElementsAre("not diagnosed: the arguments and outputs of all modules take more than 1 MB"));
}

TEST(PlacesText, SaysThePattern) {
  const auto text = [](std::initializer_list<int> wrong) {
    return places_text(std::vector<bool>(wrong.begin(), wrong.end()));
  };
  EXPECT_EQ(text({1, 1, 1}), "all 3");
  EXPECT_EQ(text({0, 0}), "none of 2");
  EXPECT_EQ(text({0, 0, 1}), "2 of 3 (the last)");
  EXPECT_EQ(text({1, 0, 0}), "0 of 3 (the first)");
  EXPECT_EQ(text({0, 1, 0}), "1 of 3");
  EXPECT_EQ(text({0, 0, 1, 1}), "2 to 3 of 4 (the tail)");
  EXPECT_EQ(text({1, 1, 0, 0}), "0 to 1 of 4 (the beginning)");
  EXPECT_EQ(text({0, 1, 1, 0}), "1 to 2 of 4");
  EXPECT_EQ(text({0, 1, 0, 1, 0, 1}), "1, 3, 5 of 6 (one in 2)");
  EXPECT_EQ(text({1, 1, 0, 1}), "0, 1, 3 of 4");
}

}  // namespace
}  // namespace shardproof
