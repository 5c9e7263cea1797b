// Whole models in exact arithmetic: what is legal is EXACT, what is wrong is DIFFERENT on the first element that is,
// and what cannot be judged is not called either.
#include "verify/exact_verifier.h"

#include <functional>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "parallel/attention.h"
#include "tests/support/thrown_error.h"
#include "tests/verify/sweep.h"

namespace shardproof {
namespace {

using test::golden;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ParallelConfig context(const ContextParallelConfig& config) { return {.context_parallel_config = config}; }

ContextParallelPlan divided_tokens() {
  return {{{"", SplitEntries{{"hidden_states", ContextParallelInput{.split_dim = 1}}}},
           {"", GatherEntry(ContextParallelOutput{.gather_dim = 1})}}};
}

// A model that is one function of tokens [batch, tokens, channels].
class FunctionModel final : public Module, public AttentionSlot {
 public:
  using Function = std::function<Tensor(const Tensor& x, const ContextParallelState* state)>;
  explicit FunctionModel(Function function) : Module("FunctionModel"), function_(std::move(function)) {}
  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{"hidden_states"}};
    return kArguments;
  }
  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor("hidden_states");
    return Outputs(std::vector<Tensor>{function_(x, context_parallel())});
  }

 private:
  Function function_;
};

ModelType model_of(const FunctionModel::Function& function, std::int64_t batch = 1) {
  ModelType type;
  type.class_name = type.short_name = "FunctionModel";
  type.create = [function](const Json&, const ModelContext&) -> std::unique_ptr<Module> {
    return std::make_unique<FunctionModel>(function);
  };
  type.hostile_config = [] { return Json::object(); };
  type.hostile_cases = [batch](std::uint64_t seed, Device& host) {
    ModelCase made{"one", {}, {"sample"}};
    made.arguments.set("hidden_states", random_input(host, seed, "hidden_states", {batch, 8, 4}));
    return std::vector<ModelCase>{made};
  };
  return type;
}

VerificationResult verify(const FunctionModel::Function& function, const ContextParallelConfig& config) {
  Subject subject = Subject::of_model(model_of(function), 0);
  return ExactVerifier(subject, {}).verify("one", context(config), {.cp = divided_tokens()});
}

Tensor attended(const Tensor& x, const ContextParallelState* state) {
  const Tensor heads = x.unflatten(-1, 2, x.size(-1) / 2);
  return ops::reshape(attention(heads, heads, heads, {}, {}, state).out, x.shape());
}

TEST(ExactVerifier, CallsEveryLegalModeOfAModelExact) {
  for (const std::string& source : {golden("flux/uneven"), std::string("flux"), std::string("probe")}) {
    Subject subject = Subject::open(source, 3);
    ExactVerifier exact(subject, {});
    Verifier rounding(subject, {});
    const ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
    std::vector<ParallelConfig> configurations;
    for (const ContextParallelConfig& config : default_configurations()) configurations.push_back(context(config));
    if (plans.tp) {
      for (const ParallelConfig& config : default_tensor_parallel_configurations()) configurations.push_back(config);
    }
    for (const std::string& name : subject.case_names()) {
      for (const ParallelConfig& config : configurations) {
        const VerificationResult result = exact.verify(name, config, plans);
        const VerificationResult expected = rounding.verify(name, config, plans);
        const bool is_legal = expected.verdict == Verdict::rounding_equivalent;
        EXPECT_EQ(result.verdict, is_legal ? Verdict::exact : Verdict::refused)
            << source << " " << name << " " << result.mode << " " << result.mesh << ": " << result.reason;
        EXPECT_EQ(result.reason, expected.reason);
        EXPECT_EQ(result.tokens_per_rank, expected.tokens_per_rank);
        EXPECT_EQ(result.collectives, expected.collectives);
      }
    }
  }
}

TEST(ExactVerifier, SaysWhatWasRun) {
  Subject subject = Subject::open(golden("flux/uneven"), 0);
  const ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  const VerificationResult result =
      ExactVerifier(subject, {.seed = 5, .schedule_seed = 6})
          .verify("base", context({.ring_degree = 3, .convert_to_fp32 = false, .ring_anything = true}), plans);
  EXPECT_EQ(result.verdict, Verdict::exact) << result.reason;
  EXPECT_EQ(result.tier, "exact");
  EXPECT_EQ(result.dtype, "field");
  EXPECT_EQ(result.device, "field");
  EXPECT_EQ(result.seed, 5U);
  EXPECT_EQ(result.schedule_seed, 6U);
  EXPECT_FALSE(result.convert_to_fp32);
  EXPECT_EQ(result.figure, std::nullopt);
  EXPECT_THAT(result.tokens_per_rank, ElementsAre(13, 12, 11));
}

TEST(ExactVerifier, NeitherScheduleSeedNorWorkersNorSeedsChangeTheVerdict) {
  Subject subject = Subject::open("probe", 0);
  const ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  for (const ExactOptions& options :
       {ExactOptions{.seed = 1}, ExactOptions{.schedule_seed = 9}, ExactOptions{.workers = 3}, ExactOptions{.seeds = 4},
        ExactOptions{.gather = GatherChoice::padded}, ExactOptions{.gather = GatherChoice::ragged}}) {
    ExactVerifier verifier(subject, options);
    for (const ContextParallelConfig& config :
         {ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2},
          ContextParallelConfig{.ring_degree = 3, .rotate_method = "alltoall", .ring_anything = true}}) {
      const VerificationResult result = verifier.verify("even_masked", context(config), plans);
      EXPECT_EQ(result.verdict, Verdict::exact) << result.reason;
    }
  }
}

TEST(ExactVerifier, ChecksEveryReplicaOnInputsOfItsOwn) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  const ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  const VerificationResult result =
      ExactVerifier(subject, {}).verify("base", context({.mesh = Mesh::parse("ring=2,ulysses=1,fsdp=3")}), plans);
  EXPECT_EQ(result.verdict, Verdict::exact) << result.reason;
  EXPECT_EQ(result.tokens_per_rank.size(), 6U);
}

TEST(ExactVerifier, CallsAPlanThatReplicatesTheTextDifferent) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  std::erase_if(std::get<SplitEntries>(plans.cp->entries[0].second), [&](const auto& entry) {
    const std::string argument = split_key_text(entry.first);
    return argument == "txt_ids" || argument == "encoder_hidden_states";
  });
  const VerificationResult result = ExactVerifier(subject, {}).verify("base", context({.ring_degree = 2}), plans);
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, AllOf(HasSubstr("has 32 query tokens over the ranks, the dense one 24"),
                                   HasSubstr("output 'sample' on rank 0: "), HasSubstr(" elements differ, indices "),
                                   HasSubstr(", the first is ")));
  EXPECT_TRUE(result.worst);
}

TEST(ExactVerifier, CallsAttentionThatExchangesNothingDifferent) {
  EXPECT_EQ(verify(attended, {.ring_degree = 2}).verdict, Verdict::exact);
  const VerificationResult deaf =
      verify([](const Tensor& x, const ContextParallelState*) { return attended(x, nullptr); }, {.ulysses_degree = 2});
  EXPECT_EQ(deaf.verdict, Verdict::different);
  EXPECT_THAT(deaf.reason, StartsWith("plan splits tokens but no attention collective was issued; output 'sample' on "
                                      "rank 0: 32 elements differ, indices [0, 0, 0] to [0, 7, 3], the first is "));
}

// A scale that follows what a rank holds, and a constant added on one rank alone: neither is far off, both are wrong.
TEST(ExactVerifier, NoticesTheSmallestLocalMistake) {
  const VerificationResult scaled = verify(
      [](const Tensor& x, const ContextParallelState* state) {
        return ops::multiply(attended(x, state), 1.0 + 0x1p-50 * static_cast<double>(x.size(1)));
      },
      {.ring_degree = 2});
  EXPECT_EQ(scaled.verdict, Verdict::different);
  const VerificationResult shifted = verify(
      [](const Tensor& x, const ContextParallelState* state) {
        const bool is_second = state != nullptr && !state->is_one_rank() && state->flat().rank() == 1;
        return ops::add(attended(x, state), is_second ? 1e-300 : 0.0);
      },
      {.ring_degree = 2});
  EXPECT_EQ(shifted.verdict, Verdict::different);
  EXPECT_THAT(shifted.reason, HasSubstr("indices [0, 4, 0] to [0, 7, 3]"));
}

TEST(ExactVerifier, CallsOutputsThatDifferBetweenRanksDifferent) {
  Subject subject = Subject::of_model(model_of(attended), 0);
  ContextParallelPlan plan = divided_tokens();
  plan.entries.pop_back();
  const VerificationResult result = ExactVerifier(subject, {}).verify("one", context({.ring_degree = 2}), {.cp = plan});
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("output 'sample' differs between ranks 0 and 1: 16 elements differ"));
}

TEST(ExactVerifier, NamesMemoryThatWasReadBeforeItWasWritten) {
  const VerificationResult result = verify(
      [](const Tensor& x, const ContextParallelState* state) {
        const Tensor y = attended(x, state);
        if (state == nullptr || state->is_one_rank()) return y;
        return ops::concat({y.narrow(1, 0, 1), ops::padding(x.device(), {1, y.size(1) - 1, y.size(2)}, y.dtype())}, 1);
      },
      {.ring_degree = 4});
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason,
              HasSubstr("16 elements differ, 16 of them poison (from memory that nothing wrote), indices "
                        "[0, 1, 0] to [0, 7, 3]"));
}

TEST(ExactVerifier, JudgesNothingByADenseRunThatIsNoMeasure) {
  const auto reason_of = [](const FunctionModel::Function& function) {
    const VerificationResult result = verify(function, {.ring_degree = 2});
    EXPECT_EQ(result.verdict, Verdict::not_checked);
    return result.reason;
  };
  EXPECT_EQ(reason_of([](const Tensor& x, const ContextParallelState*) {
              return ops::padding(x.device(), x.shape(), x.dtype());
            }),
            "output 'sample' of the dense run is not defined everywhere");
  EXPECT_EQ(reason_of([](const Tensor& x, const ContextParallelState*) { return ops::multiply(x, 0.0); }),
            "the dense run has one value in all elements of its output, so that equality with it says nothing");
  EXPECT_EQ(reason_of([](const Tensor& x, const ContextParallelState*) { return x.narrow(1, 0, 0); }),
            "output 'sample' of the dense run has no elements");
  EXPECT_EQ(reason_of([](const Tensor& x, const ContextParallelState*) {
              return x.device().unary(UnaryOp::clamp_finite, x);
            }),
            "FunctionModel, case 'one', dense run: clamp_finite: not defined in exact arithmetic");
}

TEST(ExactVerifier, IsNotExactWhereMovementCannotBeFollowed) {
  Subject subject = Subject::of_model(model_of(attended, 65), 0);
  const VerificationResult result =
      ExactVerifier(subject, {}).verify("one", context({.ring_degree = 2}), {.cp = divided_tokens()});
  EXPECT_EQ(result.verdict, Verdict::not_checked);
  EXPECT_THAT(result.reason,
              AllOf(StartsWith("equal in exact arithmetic, but its movement was not followed: attention"),
                    HasSubstr("is too large for identities")));
}

TEST(ExactVerifier, ReportsWhatGoesWrongInARunAndRefusesByRule) {
  const VerificationResult failed = verify(
      [](const Tensor& x, const ContextParallelState* state) {
        SHARDPROOF_CHECK(state == nullptr || state->is_one_rank(), shape_error, "it broke");
        return attended(x, state);
      },
      {.ring_degree = 2});
  EXPECT_EQ(failed.verdict, Verdict::different);
  EXPECT_THAT(failed.reason, HasSubstr("it broke"));
  const VerificationResult refused = verify(attended, {.ring_degree = 3});
  EXPECT_EQ(refused.verdict, Verdict::refused);
  EXPECT_THAT(refused.reason, HasSubstr("3 ranks cannot divide"));
  EXPECT_TRUE(refused.tokens_per_rank.empty());
}

TEST(ExactVerifier, DoesNotTakeAModelThatWouldFillTheMemory) {
  Subject subject = Subject::open("probe", 0);
  const ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  const VerificationResult result =
      ExactVerifier(subject, {.most_weight_bytes = 16000}).verify("even", context({.ring_degree = 2}), plans);
  EXPECT_EQ(result.verdict, Verdict::not_checked);
  EXPECT_THAT(result.reason, HasSubstr(" parameters are too many for exact arithmetic on 2 seeds, at most 1000 are "
                                       "taken: fewer blocks of the same layers prove as much"));
}

TEST(ExactVerifier, WantsTwoSeedsAtLeast) {
  Subject subject = Subject::open("probe", 0);
  EXPECT_EQ(test::thrown_by([&] { ExactVerifier(subject, {.seeds = 1}); }),
            test::thrown(ErrorKind::usage_error, "1 seeds for the exact tier; expected at least 2"));
}

}  // namespace
}  // namespace shardproof
