// Every model on one tree, call after call: each of its cases with one set of numbers, then with another in the same
// shapes. What a call leaves behind, in the hooks of a plan, in the state of a rank or in a module, must not show in
// the next one, as in a denoising loop.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "parallel/context_parallel.h"
#include "reference/compare.h"
#include "sim/simulation.h"
#include "verify/subject.h"

namespace shardproof {
namespace {

constexpr int kRanks = 2;
constexpr double kTolerance = 1e-11;

class SuccessiveCalls : public testing::TestWithParam<std::string> {};

// Where a case has several draws, they follow one another, so that shapes change and do not change.
std::vector<Arguments> calls_of(Subject& subject, const ModelContext& context) {
  std::vector<Arguments> calls;
  std::vector<std::vector<ModelCase>> draws;
  for (const std::uint64_t seed : {1, 2}) draws.push_back(subject.model().hostile_cases(seed, subject.host()));
  for (std::size_t i = 0; i < draws.front().size(); ++i) {
    for (const std::vector<ModelCase>& cases : draws) calls.push_back(subject.prepare(cases[i], context));
  }
  return calls;
}

TEST_P(SuccessiveCalls, OfDifferentAndOfEqualShapesAreLikeFreshOnes) {
  Subject subject = Subject::open(GetParam(), 0);
  const ModelContext context{&subject.reference_device(), kFloat64, TablePrecision::float64};
  const std::vector<Arguments> calls = calls_of(subject, context);
  const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  std::vector<std::vector<Outputs>> by_rank(kRanks);
  run_ranks({.world_size = kRanks}, [&](Communicator& world) {
    const ContextParallelConfig config{.ring_degree = kRanks, .ring_anything = true};
    const std::unique_ptr<Module> tree = subject.make_tree(context);
    apply_context_parallel(*tree, std::make_shared<const ContextParallelState>(world, config), plan);
    std::vector<Outputs>& own = by_rank[static_cast<std::size_t>(world.rank())];
    for (const Arguments& call : calls) own.push_back(tree->call(call));
  });
  for (std::size_t call = 0; call < calls.size(); ++call) {
    const Outputs fresh = subject.make_tree(context)->call(calls[call]);
    for (const std::vector<Outputs>& own : by_rank) {
      for (std::size_t i = 0; i < fresh.tensors.size(); ++i) {
        const Comparison found = compare(own[call].tensors[i], fresh.tensors[i]);
        EXPECT_LE(found.relative, kTolerance) << "call " << call << ", output " << i << found.shape_problem;
      }
    }
  }
}

std::vector<std::string> models_with_plans() {
  std::vector<std::string> names;
  for (const ModelType& type : model_types()) {
    if (type.plans(type.hostile_config()).default_cp) names.push_back(type.short_name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, SuccessiveCalls, testing::ValuesIn(models_with_plans()),
                         [](const auto& model) { return model.param; });

}  // namespace
}  // namespace shardproof
