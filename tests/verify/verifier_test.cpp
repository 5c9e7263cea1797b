// Whole models on simulated ranks against their dense runs: what is legal is verified, everything else is refused, and
// what is wrong is called DIFFERENT, with the reason.
#include "verify/verifier.h"

#include <filesystem>
#include <limits>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/safetensors.h"
#include "parallel/attention.h"
#include "tests/core/files/test_files.h"
#include "tests/support/thrown_error.h"
#include "tests/verify/sweep.h"

namespace shardproof {
namespace {

using test::golden;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ContextParallelPlan default_plan(Subject& subject) { return *subject.model().plans(subject.config()).default_cp; }

TEST(DefaultSweep, VerifiesWhatIsLegalAndRefusesTheRestInFloat64) {
  EXPECT_EQ(test::sweep(golden("flux/tiny"), {}), (test::SweepCounts{64, 16}));
  EXPECT_EQ(test::sweep(golden("flux/uneven"), {}), (test::SweepCounts{16, 24}));
  EXPECT_EQ(test::sweep(golden("flux/guidance"), {}), (test::SweepCounts{48, 12}));
  EXPECT_EQ(test::sweep("flux", {}), (test::SweepCounts{52, 28}));
  EXPECT_EQ(test::sweep("probe", {}), (test::SweepCounts{62, 18}));
}

TEST(DefaultSweep, VerifiesWhatIsLegalAndRefusesTheRestInFloat32) {
  const VerifierOptions float32{.dtype = kFloat32, .device = DeviceChoice::cpu};
  EXPECT_EQ(test::sweep(golden("flux/tiny"), float32), (test::SweepCounts{64, 16}));
  EXPECT_EQ(test::sweep("flux", float32), (test::SweepCounts{52, 28}));
  EXPECT_EQ(test::sweep("probe", float32), (test::SweepCounts{62, 18}));
}

TEST(DefaultSweep, GivesTheSameFiguresOnBothDevicesForms) {
  Subject subject = Subject::open(golden("flux/uneven"), 0);
  for (const GatherChoice gather : {GatherChoice::ragged, GatherChoice::padded}) {
    Verifier verifier(subject, {.gather = gather});
    const VerificationResult result =
        verifier.verify("base", {.ring_degree = 3, .ring_anything = true}, default_plan(subject));
    EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
    EXPECT_THAT(result.tokens_per_rank, ElementsAre(13, 12, 11));
  }
}

TEST(Verifier, PaddedGathersMoveMoreBytesThanRaggedOnes) {
  Subject subject = Subject::open(golden("flux/uneven"), 0);
  const ContextParallelConfig config{.ring_degree = 3, .ring_anything = true};
  Verifier ragged(subject, {.gather = GatherChoice::ragged}), padded(subject, {.gather = GatherChoice::padded});
  const auto of_ragged = ragged.run("base", config, default_plan(subject), GatherForm::ragged);
  const auto of_padded = padded.run("base", config, default_plan(subject), GatherForm::padded);
  std::int64_t bytes_ragged = 0, bytes_padded = 0;
  for (int rank = 0; rank < 3; ++rank) {
    bytes_ragged += of_ragged.ranks[static_cast<std::size_t>(rank)].statistics.bytes_sent;
    bytes_padded += of_padded.ranks[static_cast<std::size_t>(rank)].statistics.bytes_sent;
  }
  EXPECT_GT(bytes_padded, bytes_ragged);
}

TEST(Verifier, NeitherScheduleSeedNorWorkersChangeAnyFigure) {
  Subject subject = Subject::open("probe", 0);
  const ContextParallelConfig config{.ring_degree = 2, .ulysses_degree = 2};
  std::optional<VerificationResult> first;
  for (const auto& [seed, workers] :
       std::vector<std::pair<std::uint64_t, int>>{{0, 1}, {1, 1}, {2, 2}, {3, 3}, {99, 2}}) {
    Verifier verifier(subject, {.schedule_seed = seed, .workers = workers});
    const VerificationResult result = verifier.verify("even_masked", config, default_plan(subject));
    EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
    if (!first) first = result;
    EXPECT_EQ(result.figure, first->figure);
    EXPECT_EQ(result.max_abs, first->max_abs);
    EXPECT_EQ(result.bytes_sent_per_rank, first->bytes_sent_per_rank);
  }
}

TEST(Verifier, ChecksEveryReplicaOfALargerMeshOnItsOwnInputs) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  Verifier verifier(subject, {});
  const ContextParallelConfig config{.mesh = Mesh::parse("ring=2,ulysses=1,fsdp=4")};
  const VerificationResult result = verifier.verify("base", config, default_plan(subject));
  EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
  EXPECT_EQ(result.tokens_per_rank.size(), 8U);
  const ParallelRun run = verifier.run("base", config, default_plan(subject), GatherForm::ragged);
  ASSERT_EQ(run.end, RunEnd::completed);
  // Ranks 0 and 4 form replica 0; ranks 0 and 1 belong to different replicas, whose results must differ.
  EXPECT_EQ(ops::to_doubles(run.ranks[0].outputs.tensors[0]), ops::to_doubles(run.ranks[4].outputs.tensors[0]));
  EXPECT_NE(ops::to_doubles(run.ranks[0].outputs.tensors[0]), ops::to_doubles(run.ranks[1].outputs.tensors[0]));
}

TEST(Verifier, AcceptsMeshDimensionsInAnyOrder) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  Verifier verifier(subject, {});
  for (const char* mesh : {"ulysses=2,ring=2", "fsdp=2,ulysses=2,ring=2", "ring=2,dp=2,ulysses=2"}) {
    const VerificationResult result = verifier.verify("batch2", {.mesh = Mesh::parse(mesh)}, default_plan(subject));
    EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << mesh << result.reason;
    EXPECT_EQ(result.mode, "unified");
  }
}

TEST(Verifier, RefusesAConfigurationThatContradictsItself) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  Verifier verifier(subject, {});
  const VerificationResult result =
      verifier.verify("base", {.ulysses_degree = 2, .mesh = Mesh::parse("ring=2,ulysses=1")}, default_plan(subject));
  EXPECT_EQ(result.verdict, Verdict::refused);
  EXPECT_THAT(result.reason, HasSubstr("ulysses_degree is 2, but the mesh 'ring=2,ulysses=1' has ulysses=1"));
}

TEST(Verifier, VerifiesSixteenBitRunsByFloat64AndEveryModule) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  for (const DType dtype : {kBFloat16, kFloat16}) {
    Verifier verifier(subject, {.dtype = dtype, .device = DeviceChoice::cpu});
    const VerificationResult result = verifier.verify("base", {.ring_degree = 4}, default_plan(subject));
    EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
    EXPECT_THAT(result.also_passed, HasSubstr("float64 ("));
    ASSERT_TRUE(result.figure);
    EXPECT_LT(*result.figure, 4.0);
    EXPECT_GT(*result.figure, 0.0);
    ASSERT_TRUE(result.modules);
    EXPECT_LT(result.modules->worst->ratio, 4.0);
  }
}

TEST(Subject, GivesTheSameBitsFromWeightsThatAreConvertedOnceOrByEveryModule) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  const ModelContext context{&subject.reference_device(), kFloat64, TablePrecision::float32};
  const Arguments arguments = subject.prepare(subject.load_case("base"), context);
  const auto outputs = [&](WeightForm form) {
    return ops::to_doubles(subject.make_tree(context, form)->call(arguments).tensors.front());
  };
  EXPECT_EQ(outputs(WeightForm::stored), outputs(WeightForm::converted));
}

TEST(Verifier, HoldsNoFloat64CopyOfTheWeightsForAFloat32Verdict) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  Verifier verifier(subject, {.dtype = kFloat32, .device = DeviceChoice::cpu});
  const VerificationResult result = verifier.verify("base", {.ring_degree = 2}, default_plan(subject));
  EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
  std::size_t bytes = 0;
  for (const std::string& name : subject.export_directory()->weights().names()) {
    bytes += 2 * subject.export_directory()->weights().file_of(name).bytes(name).size();
  }
  EXPECT_GT(bytes, 3'000'000U);
  EXPECT_LT(dynamic_cast<HostDevice&>(subject.reference_device()).pool().system_bytes(), bytes / 2);
}

// Case C01, C02: key masks stand where their keys stand after the exchange; each batch entry keeps its own.
TEST(Verifier, KeepsMasksWithTheirKeysWhenWholeShardsAreMasked) {
  Subject subject = Subject::open("probe", 5);
  Verifier verifier(subject, {});
  for (const ContextParallelConfig& config : default_configurations()) {
    if (config.ulysses_degree.value_or(1) == 4) continue;  // 6 heads
    const VerificationResult result = verifier.verify("whole_shard_masked", config, default_plan(subject));
    EXPECT_EQ(result.verdict, Verdict::rounding_equivalent)
        << result.mode << " " << result.mesh << " " << result.reason;
  }
}

// Case C03: the 2-D timestep is divided, a 1-D one is reported as skipped.
TEST(Verifier, ReportsEntriesThatWereSkipped) {
  Subject subject = Subject::open("probe", 0);
  Verifier verifier(subject, {});
  const VerificationResult per_item = verifier.verify("whole_shard_masked", {.ring_degree = 2}, default_plan(subject));
  ASSERT_EQ(per_item.skipped_entries.size(), 1U);
  EXPECT_EQ(per_item.skipped_entries[0], (SkippedNote{"", "timestep", "1 dimension, plan expects 2"}));
  const VerificationResult per_token = verifier.verify("even", {.ring_degree = 2}, default_plan(subject));
  EXPECT_TRUE(per_token.skipped_entries.empty());
}

class ChangedPlan : public ::testing::Test {
 protected:
  // The plan of FLUX without one argument.
  ContextParallelPlan without(const std::string& argument) {
    ContextParallelPlan plan = default_plan(subject_);
    std::erase_if(std::get<SplitEntries>(plan.entries[0].second),
                  [&](const auto& entry) { return split_key_text(entry.first) == argument; });
    return plan;
  }
  VerificationResult verify(const ContextParallelPlan& plan, const ContextParallelConfig& config) {
    return verifier_.verify("base", config, plan);
  }

  Subject subject_ = Subject::open(golden("flux/tiny"), 0);
  Verifier verifier_{subject_, {}};
};

// Cases C05, C06, C07: replicated text joined to local image tokens counts its keys once a rank.
TEST_F(ChangedPlan, ThatReplicatesTheTextIsDifferentInEveryMode) {
  ContextParallelPlan plan = without("encoder_hidden_states");
  std::erase_if(std::get<SplitEntries>(plan.entries[0].second),
                [&](const auto& entry) { return split_key_text(entry.first) == "txt_ids"; });
  for (const ContextParallelConfig& config :
       {ContextParallelConfig{.ulysses_degree = 2}, ContextParallelConfig{.ring_degree = 2}}) {
    const VerificationResult result = verify(plan, config);
    EXPECT_EQ(result.verdict, Verdict::different) << result.mode;
    EXPECT_THAT(result.reason, HasSubstr("has 32 query tokens over the ranks, the dense one 24"));
    EXPECT_THAT(result.reason, HasSubstr("output 'sample' on rank 0"));
    EXPECT_GT(*result.figure, 1e-4);
  }
}

// Case C07: whole sequences sent through the exchange count more than once, even where averages hide it.
TEST_F(ChangedPlan, ThatLeavesWholeSequencesToTheExchangeIsDifferent) {
  const ContextParallelPlan only_last{
      {{"proj_out", SplitEntries{{"hidden_states", ContextParallelInput{.split_dim = 1, .expected_dims = 3}}}},
       {"proj_out", GatherEntry(ContextParallelOutput{.gather_dim = 1, .expected_dims = 3})}}};
  for (const ContextParallelPlan& plan : {only_last, ContextParallelPlan{}}) {
    const VerificationResult result = verify(plan, {.ring_degree = 2});
    EXPECT_EQ(result.verdict, Verdict::different);
    EXPECT_THAT(result.reason, HasSubstr("the first attention has 48 query tokens over the ranks, the dense one 24"));
    EXPECT_LT(*result.figure, 1e-14);
  }
}

// Attention that does not follow the context-parallel state.
class DeafModel final : public Module {
 public:
  DeafModel() : Module("DeafModel") {}
  std::span<const ArgumentSpec> forward_arguments() const override {
    static const ArgumentSpec kArguments[] = {{"hidden_states"}};
    return kArguments;
  }
  Outputs forward(Arguments& arguments) override {
    const Tensor& x = arguments.tensor("hidden_states");
    const Tensor heads = x.unflatten(-1, 1, x.size(-1));
    return attention(heads, heads, heads, {}, {}, nullptr).out.squeeze(2);
  }
};

ModelType deaf_model() {
  ModelType type;
  type.class_name = type.short_name = "DeafModel";
  type.create = [](const Json&, const ModelContext&) -> std::unique_ptr<Module> {
    return std::make_unique<DeafModel>();
  };
  type.hostile_config = [] { return Json::object(); };
  type.hostile_cases = [](std::uint64_t seed, Device& host) {
    ModelCase made{"one", {}, {"sample"}};
    made.arguments.set("hidden_states", random_input(host, seed, "hidden_states", {1, 8, 4}));
    return std::vector<ModelCase>{made};
  };
  return type;
}

// Case C08: tokens are divided, but attention exchanges nothing: two independent halves.
TEST(Verifier, SaysThatTokensAreDividedButNothingIsExchanged) {
  Subject subject = Subject::of_model(deaf_model(), 0);
  Verifier verifier(subject, {});
  const ContextParallelPlan plan{{{"", SplitEntries{{"hidden_states", ContextParallelInput{.split_dim = 1}}}},
                                  {"", GatherEntry(ContextParallelOutput{.gather_dim = 1})}}};
  const VerificationResult result = verifier.verify("one", {.ulysses_degree = 2}, plan);
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("plan splits tokens but no attention collective was issued"));
}

// Case C09: the refusal names module, argument, axis, length, degree, the next legal lengths and the mode that accepts
// it.
TEST(Refusals, NameEverythingNeededToMendTheConfiguration) {
  Subject subject = Subject::open(golden("flux/uneven"), 0);
  Verifier verifier(subject, {});
  const VerificationResult result = verifier.verify("base", {.ring_degree = 4}, default_plan(subject));
  EXPECT_EQ(result.verdict, Verdict::refused);
  EXPECT_THAT(result.reason,
              AllOf(HasSubstr("argument 'hidden_states' of module '' (FluxTransformer2DModel)"), HasSubstr("axis 1"),
                    HasSubstr("23"), HasSubstr("4 ranks"), HasSubstr("20 and 24"), HasSubstr("ring_anything")));
}

TEST_F(ChangedPlan, ThatDoesNotGatherReturnsAShapeThatIsReported) {
  ContextParallelPlan plan = default_plan(subject_);
  plan.entries.pop_back();
  const VerificationResult result = verify(plan, {.ring_degree = 2});
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("differs between ranks 0 and 1"));
}

TEST_F(ChangedPlan, ThatNamesAnUnknownModuleIsRefusedWithItsReason) {
  ContextParallelPlan plan = default_plan(subject_);
  plan.entries[1].first = "proj_in";
  const VerificationResult result = verify(plan, {.ring_degree = 2});
  EXPECT_EQ(result.verdict, Verdict::refused);
  EXPECT_THAT(result.reason, HasSubstr("'proj_in' was not found in '' (FluxTransformer2DModel)"));
}

TEST_F(ChangedPlan, ThatLeavesPositionsWholeEndsInAReport) {
  const VerificationResult result = verify(without("img_ids"), {.ring_degree = 2});
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason, HasSubstr("has rotary tables of 20 rows for 12 tokens"));
}

TEST(ShippedPlan, OfFluxDoesNotCoverControlNetResiduals) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  Verifier verifier(subject, {});
  const ContextParallelPlan shipped = *subject.model().plans(subject.config()).shipped_cp;
  EXPECT_EQ(verifier.verify("base", {.ring_degree = 2}, shipped).verdict, Verdict::rounding_equivalent);
  const VerificationResult result = verifier.verify("controlnet", {.ring_degree = 2}, shipped);
  EXPECT_EQ(result.verdict, Verdict::different);
  EXPECT_THAT(result.reason,
              HasSubstr("argument 'controlnet_block_samples.0' of module '' (FluxTransformer2DModel) is float64"));
}

// A copy of a golden whose output projection is spoilt.
class SpoiltOutput : public ::testing::Test {
 protected:
  VerificationResult verify_with(double bias, std::optional<double> weight = std::nullopt) {
    // A folder for each test: they run side by side.
    const test::TemporaryFolder temporary;
    const std::filesystem::path folder = temporary / "export";
    std::filesystem::copy(golden("flux/tiny"), folder);
    HostDevice host;
    std::vector<NamedTensor> weights;
    const SafetensorsFile file(golden("flux/tiny") + "/weights.safetensors");
    for (const SafetensorsEntry& entry : file.entries()) {
      Tensor tensor = file.tensor(entry.name, host);
      if (entry.name == "proj_out.bias") tensor = ops::full(host, tensor.shape(), kFloat32, bias);
      if (entry.name == "proj_out.weight" && weight) tensor = ops::full(host, tensor.shape(), kFloat32, *weight);
      weights.push_back({entry.name, tensor});
    }
    write_safetensors(folder / "weights.safetensors", weights);
    Subject subject = Subject::open(folder.string(), 0);
    VerificationResult result = Verifier(subject, {}).verify("base", {.ring_degree = 2}, default_plan(subject));
    return result;
  }
};

TEST_F(SpoiltOutput, ThatIsNotFiniteIsNeverVerifiedNorCalledDifferent) {
  for (const double bias : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const VerificationResult result = verify_with(bias);
    EXPECT_EQ(result.verdict, Verdict::not_checked);
    EXPECT_EQ(result.reason, "output 'sample' of the dense run is not finite everywhere");
  }
  EXPECT_EQ(verify_with(0.5).verdict, Verdict::rounding_equivalent);
}

// With all weights of the last layer zero the output is its bias, whatever the rest of the model does.
TEST_F(SpoiltOutput, ThatIsTheSameEverywhereIsNotVerified) {
  const VerificationResult result = verify_with(0.5, 0.0);
  EXPECT_EQ(result.verdict, Verdict::not_checked);
  EXPECT_EQ(result.reason,
            "the dense run has one value in all elements of its output, so that equality with it says nothing");
}

TEST(Verifier, HasNothingToVerifyWhereTheOutputIsEmpty) {
  ModelType model = find_model_type("flux");
  const auto cases = model.hostile_cases;
  model.hostile_cases = [cases](std::uint64_t seed, Device& host) {
    std::vector<ModelCase> made = cases(seed, host);
    made.resize(1);
    for (const char* name : {"hidden_states", "encoder_hidden_states", "pooled_projections", "timestep", "guidance"}) {
      made[0].arguments.set(name, made[0].arguments.tensor(name).narrow(0, 0, 0));
    }
    return made;
  };
  Subject subject = Subject::of_model(model, 0);
  const VerificationResult result = Verifier(subject, {}).verify("even", {.ring_degree = 2}, default_plan(subject));
  EXPECT_EQ(result.verdict, Verdict::not_checked);
  EXPECT_THAT(result.reason, HasSubstr("has no elements"));
}

// A timestep a batch entry is skipped on purpose; what fails elsewhere is not its doing.
TEST(Verifier, DoesNotBlameSkippedEntriesForAMismatchThatIsNotTheirs) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  Verifier verifier(subject, {});
  ContextParallelPlan plan = *subject.model().plans(subject.config()).shipped_cp;
  std::get<SplitEntries>(plan.entries[0].second)
      .emplace_back("timestep", ContextParallelInput{.split_dim = 0, .expected_dims = 2});
  const VerificationResult result = verifier.verify("controlnet", {.ring_degree = 2}, plan);
  EXPECT_EQ(result.verdict, Verdict::different) << result.reason;
  EXPECT_EQ(result.skipped_entries.size(), 1U);
}

// What a plan says of outputs shows only when the model runs; all ranks find it alike.
TEST_F(ChangedPlan, ThatDoesNotFitTheOutputsIsRefused) {
  const auto split_output = [&](int index, int dim) {
    ContextParallelPlan plan = default_plan(subject_);
    plan.entries.insert(
        plan.entries.begin(),
        {"x_embedder", SplitEntries{{index, ContextParallelInput{.split_dim = dim, .split_output = true}}}});
    return verify(plan, {.ring_degree = 2});
  };
  EXPECT_EQ(split_output(5, 1).verdict, Verdict::refused);
  EXPECT_THAT(split_output(5, 1).reason, HasSubstr("returned 1 output"));
  EXPECT_EQ(split_output(0, 3).verdict, Verdict::refused);
}

// A configuration whose two runs in one process follow each other must not remember the first (case C28).
TEST(Verifier, DecidesFromEachModelAnew) {
  Subject first = Subject::open(golden("flux/tiny"), 0), second = Subject::open(golden("flux/uneven"), 0);
  Verifier of_first(first, {}), of_second(second, {});
  const ContextParallelConfig config{.ulysses_degree = 3, .ulysses_anything = true};
  EXPECT_EQ(of_first.verify("base", config, default_plan(first)).verdict, Verdict::refused);
  const VerificationResult alone = of_second.verify("base", config, default_plan(second));
  EXPECT_EQ(alone.verdict, Verdict::rounding_equivalent) << alone.reason;
  EXPECT_EQ(of_first.verify("base", {.ulysses_degree = 4}, default_plan(first)).verdict, Verdict::rounding_equivalent);
  EXPECT_EQ(of_second.verify("base", config, default_plan(second)).figure, alone.figure);
}

TEST(ThreeDimensionalIds, AreRefusedWithTheEntriesThatWereSkipped) {
  Subject subject = Subject::open(golden("flux/tiny"), 0);
  const ModelContext context{&subject.reference_device(), kFloat64, TablePrecision::float64};
  Arguments arguments = subject.prepare(subject.load_case("base"), context);
  for (const Name name : {Name("img_ids"), Name("txt_ids")}) arguments.set(name, arguments.tensor(name).unsqueeze(0));
  const ParallelRun run =
      run_parallel([&] { return subject.make_tree(context); }, {arguments}, {.cp = default_plan(subject)},
                   {.config = {.context_parallel_config = ContextParallelConfig{.ring_degree = 2}}});
  EXPECT_EQ(run.end, RunEnd::refused);
  EXPECT_THAT(run.reason, AllOf(HasSubstr("has rotary tables of"),
                                HasSubstr("argument 'img_ids' of module '' was skipped: 3 dimensions, plan expects 2"),
                                HasSubstr("argument 'txt_ids'")));
}

TEST(Subject, SaysBothWhereASourceIsNeitherAFolderNorAModel) {
  const auto error = test::thrown_by([] { Subject::open("no/such/place", 0); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::usage_error);
  EXPECT_THAT(error->message,
              HasSubstr("'no/such/place' is neither an export directory (no such folder) nor a model's name"));
}

TEST(Subject, NamesTheCaseWhoseInputsDoNotFitTheModel) {
  const test::TemporaryFolder temporary;
  const std::filesystem::path folder = temporary / "export";
  std::filesystem::copy(golden("flux/tiny"), folder);
  std::filesystem::copy_file(golden("flux/uneven") + "/base.inputs.safetensors", folder / "base.inputs.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::copy_file(golden("flux/tiny") + "/base.inputs.safetensors", folder / "batch2.inputs.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(folder / "base.inputs.safetensors",
                               std::filesystem::file_size(folder / "base.inputs.safetensors") - 1);
  Subject subject = Subject::open(folder.string(), 0);
  Verifier verifier(subject, {});
  const auto error = test::thrown_by([&] { verifier.verify("base", {.ring_degree = 2}, default_plan(subject)); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, HasSubstr("base.inputs.safetensors"));
  EXPECT_EQ(verifier.verify("batch2", {.ring_degree = 2}, default_plan(subject)).verdict, Verdict::rounding_equivalent);
}

}  // namespace
}  // namespace shardproof
