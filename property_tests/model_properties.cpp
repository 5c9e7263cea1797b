// Laws of a whole model under context parallelism in float64: P1, P5, P15 and P23 of the verification specification,
// section 7, on the small test model (joint attention with a text mask, rotary tables from coordinates, cross
// attention, a modulation per token or item, hooks by a plan).
#include "core/ops.h"
#include "parallel/context_parallel.h"
#include "property_tests/model_draws.h"
#include "reference/eigen_device.h"
#include "tests/support/rank_results.h"

namespace shardproof::test {
namespace {

// Two layers in float64: relative to the largest output.
constexpr double kTolerance = 1e-11;

// One model with its weights and inputs.
class Subject {
 public:
  explicit Subject(const ModelDraw& draw)
      : config_(draw.config()), weights_(config_, *device_, kFloat64, draw.seed), plan_(small_model_plan(config_)) {}

  Arguments inputs(const ModelDraw& draw) {
    return small_model_inputs(draw.shape(), *device_, host_, kFloat64, draw.seed);
  }
  HostArray dense(const Arguments& arguments) const {
    return to_host(weights_.make_model()->call(arguments).tensors.front());
  }
  // Outputs by rank of successive calls on one tree.
  std::vector<std::vector<HostArray>> parallel(const std::vector<Arguments>& calls, const ModeDraw& mode) const {
    const SimulationOptions options{
        .world_size = mode.ranks(), .schedule_seed = mode.schedule_seed, .workers = 1 + mode.workers};
    return rank_results(options, [&](Communicator& world) {
      world.set_gather_form(mode.padded == 0 ? GatherForm::ragged : GatherForm::padded);
      const auto model = weights_.make_model();
      apply_context_parallel(*model, std::make_shared<const ContextParallelState>(world, mode.config()), plan_);
      std::vector<HostArray> outputs;
      for (const Arguments& call : calls) outputs.push_back(to_host(model->call(call).tensors.front()));
      return outputs;
    });
  }

 private:
  std::unique_ptr<Device> device_ = make_reference_device(kFloat64);
  HostDevice host_;
  SmallModelConfig config_;
  SmallModelWeights weights_;
  ContextParallelPlan plan_;
};

double relative_difference(const HostArray& actual, const HostArray& expected) {
  return max_difference(actual, expected) / max_magnitude(expected);
}

RC_GTEST_PROP(Model, P1_ParallelEqualsDenseOnAllRanks, ()) {
  const ModelDraw draw = *any_model(any_mode());
  Subject subject(draw);
  const Arguments inputs = subject.inputs(draw);
  const HostArray dense = subject.dense(inputs);
  for (const auto& outputs : subject.parallel({inputs}, draw.mode)) {
    RC_ASSERT(relative_difference(outputs.front(), dense) <= kTolerance);
  }
}

RC_GTEST_PROP(Model, P5_GatheredOutputsOfAllRanksAreIdentical, ()) {
  const ModelDraw draw = *any_model(any_mode());
  Subject subject(draw);
  const auto outputs = subject.parallel({subject.inputs(draw)}, draw.mode);
  for (const auto& own : outputs) RC_ASSERT(own.front().values == outputs.front().front().values);
}

// Ulysses, ring and Unified on as many ranks.
RC_GTEST_PROP(Model, P15_EveryModeGivesTheSame, ()) {
  ModelDraw draw = *any_model(any_mode());
  draw.mode.mode = static_cast<int>(Mode::ulysses);
  draw.mode.degree = 2;  // four ranks
  Subject subject(draw);
  const Arguments inputs = subject.inputs(draw);
  const HostArray first = subject.parallel({inputs}, draw.mode).front().front();
  for (const Mode mode : {Mode::ring, Mode::ulysses_anything, Mode::ring_anything}) {
    draw.mode.mode = static_cast<int>(mode);
    RC_ASSERT(relative_difference(subject.parallel({inputs}, draw.mode).front().front(), first) <= kTolerance);
  }
  draw.mode.mode = static_cast<int>(Mode::unified);
  draw.mode.degree = draw.mode.second = 0;  // two by two
  RC_ASSERT(relative_difference(subject.parallel({inputs}, draw.mode).front().front(), first) <= kTolerance);
}

RC_GTEST_PROP(Model, P23_SuccessiveCallsOfDifferentShapesAreLikeFreshOnes, ()) {
  const ModelDraw first = *any_model(any_mode());
  ModelDraw second = *any_model(rc::gen::just(first.mode));
  second.split_context = first.split_context;  // part of the model
  Subject subject(first);
  const std::vector<Arguments> calls{subject.inputs(first), subject.inputs(second), subject.inputs(first)};
  const auto results = subject.parallel(calls, first.mode);
  for (std::size_t call = 0; call < calls.size(); ++call) {
    const auto fresh = subject.parallel({calls[call]}, first.mode);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      RC_ASSERT(results[rank][call].values == fresh[rank].front().values);
    }
  }
}

}  // namespace
}  // namespace shardproof::test
