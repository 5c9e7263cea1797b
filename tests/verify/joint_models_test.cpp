// The models with joint attention over [text, image] besides FLUX.1, on simulated ranks: every configuration is
// verified or refused by a rule; what their shipped plans lack is called by its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "tests/verify/sweep.h"

namespace shardproof {
namespace {

using test::golden;
using test::kFloat32OnCpu;
using test::sweep;
using test::SweepCounts;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Flux2Sweep, VerifiesWhatIsLegalAndRefusesTheRest) {
  EXPECT_EQ(sweep("flux2", {}), (SweepCounts{34, 26}));
  EXPECT_EQ(sweep(golden("flux2/uneven"), {}), (SweepCounts{16, 24}));
  EXPECT_EQ(sweep("flux2", kFloat32OnCpu), (SweepCounts{34, 26}));
}

const test::StreamNames kQwenImageStreams{
    .text = {"argument 'encoder_hidden_states'", "output 1 of module 'pos_embed'"},
    .image = {"argument 'hidden_states'", "output 0 of module 'pos_embed'", "argument 'controlnet_block_samples"}};

TEST(QwenImageSweep, VerifiesWhatIsLegalAndRefusesTheRest) {
  EXPECT_EQ(sweep("qwenimage", {}, kQwenImageStreams), (SweepCounts{88, 32}));
  EXPECT_EQ(sweep(golden("qwenimage/zero_cond_t"), {}, kQwenImageStreams), (SweepCounts{32, 8}));
  EXPECT_EQ(sweep("qwenimage", kFloat32OnCpu, kQwenImageStreams), (SweepCounts{88, 32}));
}

TEST(ShippedPlan, OfQwenImageDoesNotCoverControlNetResiduals) {
  Subject subject = Subject::open("qwenimage", 0);
  Verifier verifier(subject, {});
  const ContextParallelPlan shipped = *subject.model().plans(subject.config()).shipped_cp;
  EXPECT_EQ(verifier.verify("even_masked", {.ring_degree = 2}, shipped).verdict, Verdict::rounding_equivalent);
  const VerificationResult result = verifier.verify("controlnet", {.ulysses_degree = 2}, shipped);
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason,
              HasSubstr("argument 'controlnet_block_samples.0' of module '' (QwenImageTransformer2DModel) is float64"));
}

// A model with one of its cases changed.
ModelType with_changed_case(ModelType model, const std::function<void(Arguments&)>& change) {
  const auto cases = model.hostile_cases;
  model.hostile_cases = [cases, change](std::uint64_t seed, Device& host) {
    std::vector<ModelCase> made = cases(seed, host);
    made.resize(1);
    change(made.front().arguments);
    return made;
  };
  return model;
}

VerificationResult verified(const ModelType& model, const ContextParallelConfig& config, const ModelPlans& plans) {
  Subject subject = Subject::of_model(model, 0);
  return Verifier(subject, {}).verify(subject.case_names().front(), config, *plans.default_cp);
}

TEST(Flux2, RefusesKeyValueCachesByRule) {
  for (const char* mode : {"extract", "cached"}) {
    const ModelType model = with_changed_case(
        find_model_type("flux2"), [&](Arguments& arguments) { arguments.set("kv_cache_mode", std::string(mode)); });
    const VerificationResult result = verified(model, {.ring_degree = 2}, model.plans(model.hostile_config()));
    EXPECT_EQ(result.verdict, Verdict::refused);
    EXPECT_THAT(result.reason, AllOf(HasSubstr("argument 'kv_cache_mode' of Flux2Transformer2DModel must be none"),
                                     HasSubstr("key-value caches call attention outside context parallelism")));
  }
}

struct ForgottenTable {
  const char* model;
  const char* module;  // whose entries of the default plan are left out
  std::vector<SplitKey> keys;
  const char* message;
};

ContextParallelPlan plan_without(const ForgottenTable& forgotten, ContextParallelPlan plan) {
  for (auto& [id, entry] : plan.entries) {
    if (id != forgotten.module || !std::holds_alternative<SplitEntries>(entry)) continue;
    for (const SplitKey& key : forgotten.keys) {
      EXPECT_EQ(std::erase_if(std::get<SplitEntries>(entry), [&](const auto& split) { return split.first == key; }), 1U)
          << forgotten.model;
    }
  }
  return plan;
}

// What a plan forgets most easily: the tables of positions. Attention cannot see which argument is missing in the plan,
// so the model says what its tables are made from.
TEST(RotaryTables, NameTheModuleAndWhatTheyAreMadeFromWhenAPlanLeavesThemWhole) {
  const std::vector<ForgottenTable> plans{
      {"flux",
       "",
       {"img_ids", "txt_ids"},
       "argument 'image_rotary_emb' of module 'transformer_blocks.0.attn' (FluxAttention) has rotary tables of 36 rows "
       "for 18 tokens; they are made from arguments 'txt_ids' and 'img_ids' of module '': a plan must divide these as "
       "it "
       "divides the tokens"},
      {"flux2",
       "",
       {"img_ids", "txt_ids"},
       "(Flux2Attention) has rotary tables of 36 rows for 18 tokens; they are made from arguments 'txt_ids' and "
       "'img_ids' "
       "of module ''"},
      {"qwenimage", "pos_embed", {0, 1}, "they are made from the two outputs of module 'pos_embed': a plan must"},
      {"wan", "rope", {0, 1}, "they are made from the two outputs of module 'rope': a plan must"},
      {"ltx", "rope", {0, 1}, "'video_coords', make a rotary table of 24 tokens, but hidden_states has 12"},
      {"minimax_h3", "rope", {0, 1}, "they are made from the two outputs of module 'rope': a plan must"},
      {"helios", "blocks.*.attn1", {"rotary_emb"}, "they are made from the output of module 'rope': a plan must"},
  };
  for (const ForgottenTable& forgotten : plans) {
    const ModelType& model = find_model_type(forgotten.model);
    Subject subject = Subject::of_model(model, 0);
    const ContextParallelPlan plan = *model.plans(model.hostile_config()).default_cp;
    const VerificationResult result =
        Verifier(subject, {})
            .verify(subject.case_names().front(), {.ring_degree = 2, .ring_anything = true},
                    plan_without(forgotten, plan));
    EXPECT_EQ(result.verdict, Verdict::different) << forgotten.model;
    EXPECT_THAT(result.reason, HasSubstr(forgotten.message)) << forgotten.model;
  }
}

// 2-D ids stay whole under a plan that expects a batch axis, and then fit no rank's tokens.
TEST(Flux2, RefusesIdsWithoutABatchAxis) {
  const ModelType model = with_changed_case(find_model_type("flux2"), [](Arguments& arguments) {
    for (const char* name : {"img_ids", "txt_ids"})
      arguments.set(name, arguments.tensor(name).narrow(0, 0, 1).squeeze(0));
  });
  const VerificationResult result = verified(model, {.ulysses_degree = 2}, model.plans(model.hostile_config()));
  EXPECT_EQ(result.verdict, Verdict::refused);
  EXPECT_THAT(result.reason, HasSubstr("argument 'img_ids' of module '' was skipped: 2 dimensions, plan expects 3"));
}

// Whatever plan is tried: its mask has rows of queries over all keys.
TEST(QwenImage21, RefusesContextParallelismByRule) {
  Subject subject = Subject::open("qwenimage21", 0);
  Verifier verifier(subject, {});
  const ContextParallelPlan tokens{
      {{"transformer_blocks.0",
        SplitEntries{{"hidden_states", ContextParallelInput{.split_dim = 1, .expected_dims = 3}}}},
       {"proj_out", GatherEntry(ContextParallelOutput{.gather_dim = 1, .expected_dims = 3})}}};
  for (const ContextParallelPlan& plan : {ContextParallelPlan{}, tokens}) {
    for (const ContextParallelConfig& config : default_configurations()) {
      const VerificationResult result = verifier.verify("condition_masked", config, plan);
      EXPECT_EQ(result.verdict, Verdict::refused) << result.mode << " " << result.mesh;
      EXPECT_EQ(result.reason,
                "the attention of module 'transformer_blocks.0.attn' (QwenImage21Attention) does not support context "
                "parallelism: its mask is block causal and needs all queries and keys on one rank; the nearest legal "
                "configuration is one rank, or tensor parallelism");
    }
  }
}

}  // namespace
}  // namespace shardproof
