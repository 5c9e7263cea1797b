// Laws of rounding in the types of production: P24 and P25 of the verification specification, section 7, and what the
// order of a reduction costs. The reference is double arithmetic on the same operands; u is the unit roundoff of the
// type. The ratio is the error of a parallel run over that of the dense run in the same type, at least u times the
// largest result; 16 is the specification's bound (section 5).
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "core/collectives.h"
#include "parallel/context_parallel.h"
#include "property_tests/model_draws.h"
#include "reference/compare.h"
#include "reference/eigen_device.h"
#include "sim/cpu_device.h"
#include "tests/support/rank_results.h"
#include "verify/bitwise_check.h"
#include "verify/module_ratio.h"

namespace shardproof::test {
namespace {

constexpr double kMostRatio = 16.0;
constexpr ReductionOrder kOrders[] = {ReductionOrder::ranks, ReductionOrder::tree, ReductionOrder::ring,
                                      ReductionOrder::random};

Device& cpu_device() {
  static const std::unique_ptr<Device> kDevice = make_cpu_device();
  return *kDevice;
}
Device& reference_device() {
  static const std::unique_ptr<Device> kDevice = make_reference_device(kFloat64);
  return *kDevice;
}
Tensor in_doubles(const HostArray& array) { return to_device(reference_device(), array, kFloat64); }

// The doubles nearest to what an element type holds.
HostArray rounded(const HostArray& array, DType dtype) { return to_host(to_device(cpu_device(), array, dtype)); }

// ---- P24: attention

double largest_logit(const AttentionProblem& problem) {
  double largest = 0;
  for (std::int64_t item = 0; item < problem.batch(); ++item) {
    for (std::int64_t head = 0; head < problem.heads(); ++head) {
      for (std::int64_t query = 0; query < problem.queries(); ++query) {
        for (std::int64_t key = 0; key < problem.keys(); ++key) {
          double logit = 0;
          for (std::int64_t channel = 0; channel < problem.q.shape[3]; ++channel) {
            logit += problem.q.at({item, query, head, channel}) * problem.k.at({item, key, head, channel});
          }
          largest = std::max(largest, std::abs(logit * problem.scale));
        }
      }
    }
  }
  return largest;
}

// A problem whose operands `dtype` holds.
AttentionProblem rounded_problem(AttentionProblem problem, DType dtype) {
  problem.q = rounded(problem.q, dtype);
  problem.k = rounded(problem.k, dtype);
  problem.v = rounded(problem.v, dtype);
  return problem;
}

// Of what the specification calls the ratio.
void classify(double ratio) {
  RC_CLASSIFY(ratio <= 1.0, "ratio up to 1");
  RC_CLASSIFY(ratio > 1.0 && ratio <= 2.0, "ratio 1 to 2");
  RC_CLASSIFY(ratio > 2.0 && ratio <= 4.0, "ratio 2 to 4");
  RC_CLASSIFY(ratio > 4.0 && ratio <= 8.0, "ratio 4 to 8");
  RC_CLASSIFY(ratio > 8.0, "ratio above 8");
  RC_LOG() << "ratio " << ratio << "\n";
}

// The ratio, which is reported, with one more floor below it, so that a dense run that is right by luck is no measure:
// one rounding of a logit L in float32, where all of these types accumulate, moves a result by u (1 + L) of the largest
// value. Infinite if an output is not finite.
double ratio_of(const AttentionProblem& problem, AttentionRun run, DType dtype) {
  run.device = &cpu_device();
  run.dtype = dtype;
  const auto tensor = [&](const HostArray& x) { return to_device(cpu_device(), x, dtype); };
  Tensor mask;
  if (!problem.bias.empty()) mask = tensor(problem.bias);
  const Tensor dense = ops::cast(
      ops::attention(tensor(problem.q), tensor(problem.k), tensor(problem.v), mask, problem.scale).out, dtype);
  const Tensor parallel = in_doubles(assembled(problem, run_parallel(problem, run)).out);
  if (!is_finite(parallel)) return std::numeric_limits<double>::infinity();
  const RoundingRatio rounding =
      rounding_ratio(parallel, in_doubles(to_host(dense)), in_doubles(problem.dense().out), unit_roundoff(dtype));
  classify(rounding.ratio);
  const double floor = unit_roundoff(kFloat32) * (1.0 + largest_logit(problem)) * max_magnitude(problem.v);
  return std::min(rounding.ratio, rounding.parallel_error / floor);
}

RC_GTEST_PROP(Rounding, P24_AttentionStaysWithinTheRatioInEveryType, ()) {
  const AttentionDraw draw = *any_attention();
  const DType dtype = *rc::gen::element(kFloat32, kBFloat16, kFloat16);
  RC_ASSERT(ratio_of(rounded_problem(draw.problem(), dtype), draw.run(cpu_device()), dtype) <= kMostRatio);
}

// Every key of one rank is masked, on three ranks and more.
RC_GTEST_PROP(Rounding, P24_LogitsUpTo150AndAMaskedShardStayFiniteAndWithinTheRatio, ()) {
  AttentionDraw draw = *any_attention(any_ring());
  draw.mode.degree = std::max(1, draw.mode.degree);
  draw.mask = static_cast<int>(MaskDraw::whole_shard);
  const DType dtype = *rc::gen::element(kFloat32, kBFloat16, kFloat16);
  AttentionProblem problem = draw.problem();
  const double factor = 15.0 * *rc::gen::inRange(1, 11) / largest_logit(problem);
  for (double& value : problem.q.values) value *= factor;
  RC_ASSERT(ratio_of(rounded_problem(problem, dtype), draw.run(cpu_device()), dtype) <= kMostRatio);
}

// A tree in float64 with the very weights that float32 holds; from the second number on each of them is off by one u,
// up or down.
std::unique_ptr<SmallModel> reference_model(const SmallModelConfig& config, const SmallModelWeights& single,
                                            std::uint64_t number) {
  std::map<std::string, std::shared_ptr<const Tensor>> weights;
  for_each_parameter(*single.make_model(), [&](const std::string& path, Module&, const Module::Parameter& parameter) {
    HostArray values = to_host(*parameter.tensor);
    const RandomStream stream(number, path);
    for (std::size_t i = 0; number > 0 && i < values.values.size(); ++i) {
      values.values[i] *= 1.0 + (stream.below(i, 2) == 0 ? 1.0 : -1.0) * unit_roundoff(kFloat32);
    }
    weights[path] = std::make_shared<const Tensor>(in_doubles(values));
  });
  auto model = std::make_unique<SmallModel>(config);
  for_each_parameter(*model, [&](const std::string& path, Module& module, const Module::Parameter& parameter) {
    module.assign_parameter(parameter.name, weights.at(path));
  });
  return model;
}

// The same arguments in float64; coordinates are that already.
Arguments reference_inputs(const Arguments& single) {
  Arguments result;
  for (const auto& [name, value] : single.entries()) {
    const Tensor& tensor = std::get<Tensor>(value);
    const bool is_mask = tensor.dtype() == kBool;
    const HostArray numbers = to_host(tensor);
    result.set(
        name, tensor.dtype() == kFloat64 ? tensor : to_device(reference_device(), numbers, is_mask ? kBool : kFloat64));
  }
  return result;
}

// The whole test model, with the tables of rotary angles in double precision in all runs. Errors compound, and a dense
// run of a few numbers can be right by luck (one draw in a thousand exceeds 16 so), hence the same kind of floor: what
// one rounding of each weight does to the result.
RC_GTEST_PROP(Rounding, P24_AWholeModelInFloat32StaysWithinTheRatio, ()) {
  const ModelDraw draw = *any_model(any_mode());
  const SmallModelConfig config = draw.config();
  const SmallModelWeights single(config, cpu_device(), kFloat32, draw.seed);
  HostDevice host;
  const Arguments inputs = small_model_inputs(draw.shape(), cpu_device(), host, kFloat32, draw.seed);
  const Tensor dense = single.make_model()->call(inputs).tensors.front();
  const auto outputs = rank_results(
      {.world_size = draw.mode.ranks(), .schedule_seed = draw.mode.schedule_seed, .workers = 1 + draw.mode.workers},
      [&](Communicator& world) {
        const auto model = single.make_model();
        apply_context_parallel(*model, std::make_shared<const ContextParallelState>(world, draw.mode.config()),
                               small_model_plan(config));
        return model->call(inputs).tensors.front();
      });
  const auto reference_of = [&](std::uint64_t number) {
    return to_host(reference_model(config, single, number)->call(reference_inputs(inputs)).tensors.front());
  };
  const HostArray expected = reference_of(0);
  double floor = 0;
  for (const std::uint64_t number : {1, 2, 3}) floor = std::max(floor, max_difference(reference_of(number), expected));
  for (const Tensor& output : outputs) {
    const RoundingRatio rounding = rounding_ratio(in_doubles(to_host(output)), in_doubles(to_host(dense)),
                                                  in_doubles(expected), unit_roundoff(kFloat32));
    if (&output == &outputs.front()) classify(rounding.ratio);
    RC_ASSERT(std::min(rounding.ratio, rounding.parallel_error / floor) <= kMostRatio);
  }
}

// The same module by module, each given the float64 run's arguments. Errors do not compound here, and the representable
// part of the largest value is floor enough: 40,000 draws stayed below 8.
RC_GTEST_PROP(Rounding, P24_EveryModuleByItselfStaysWithinTheRatioInEveryType, ()) {
  const ModelDraw draw = *any_model(any_mode());
  const DType dtype = *rc::gen::element(kFloat32, kBFloat16, kFloat16);
  const SmallModelConfig config = draw.config();
  const SmallModelWeights weights(config, cpu_device(), dtype, draw.seed);
  HostDevice host;
  const Arguments inputs = small_model_inputs(draw.shape(), cpu_device(), host, dtype, draw.seed);
  const TreeFactory tree = [&] { return weights.make_model(); };
  const ModuleReference reference({.reference_tree = [&] { return std::make_unique<SmallModel>(config); },
                                   .reference_arguments = reference_inputs(inputs),
                                   .tree = tree,
                                   .arguments = inputs,
                                   .dtype = dtype,
                                   .reference_device = &reference_device()});
  RC_ASSERT(reference.obstacle().empty());
  const ModuleRatioInput checked{.references = {&reference},
                                 .tree = tree,
                                 .arguments = {inputs},
                                 .plans = {.cp = small_model_plan(config)},
                                 .options = {.config = {.context_parallel_config = draw.mode.config()},
                                             .schedule_seed = draw.mode.schedule_seed,
                                             .workers = 1 + draw.mode.workers}};
  const ParallelRun run = run_parallel(tree, checked.arguments, checked.plans, checked.options);
  RC_LOG() << run.reason << "\n";
  RC_ASSERT(run.end == RunEnd::completed);
  const ModuleCheck check = check_modules(checked, run, kMostRatio);
  for (const ModuleRatio& wrong : check.wrong) RC_LOG() << module_ratio_text(wrong) << "\n";
  classify(check.ratios.worst->ratio);
  RC_ASSERT(check.failure.empty());
  RC_ASSERT(check.wrong.empty());
  RC_ASSERT(check.ratios.not_comparable == 0);
}

// ---- P25

// What the ranks of a drawn configuration would have recorded of one attention.
ParallelRun recorded_run(const AttentionDraw& draw, const AttentionProblem& problem) {
  ParallelRun run;
  run.mesh = Mesh({"ring", "ulysses"}, {draw.mode.ring(), draw.mode.ulysses()});
  run.ranks.resize(static_cast<std::size_t>(draw.mode.ranks()));
  const std::vector<Indices> queries = pieces_of(problem.query_streams, draw.mode.ranks());
  const std::vector<Indices> keys = pieces_of(problem.key_streams, draw.mode.ranks());
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    AttentionCall call{.q = problem.q.shape, .k = problem.k.shape, .mask = problem.bias.shape};
    call.q[1] = std::ssize(queries[rank]);
    call.k[1] = std::ssize(keys[rank]);
    call.key_axis = draw.key_axis();
    if (!problem.bias.empty()) {
      if (call.mask[2] > 1) call.query_axis = QueryAxis::local;
      if (call.mask[2] > 1) call.mask[2] = call.q[1];
      if (call.key_axis == KeyAxis::local) call.mask[3] = call.k[1];
    }
    run.ranks[rank].attention_calls = {call};
    run.ranks[rank].attention_sequence = {0};
  }
  return run;
}

RC_GTEST_PROP(Rounding, P25_DyadicInputsAndProbesAreRightToTheLastBitInEveryType, ()) {
  AttentionDraw draw = *any_attention();
  draw.width += 7;  // enough channels to tell all keys apart
  const ParallelRunOptions options{.config = {.context_parallel_config = draw.mode.config()},
                                   .gather_form = draw.mode.padded == 0 ? GatherForm::ragged : GatherForm::padded,
                                   .schedule_seed = draw.mode.schedule_seed + draw.seed,
                                   .workers = 1 + draw.mode.workers};
  const BitwiseResult result = check_bits(recorded_run(draw, draw.problem()), options);
  for (const std::string& difference : result.differences) RC_LOG() << difference << "\n";
  for (const std::string& reason : result.not_checked) RC_LOG() << reason << "\n";
  RC_ASSERT(result.differences.empty());
  RC_ASSERT(result.not_checked.empty());
  RC_ASSERT(result.attention_calls == 1);
  RC_ASSERT(result.problems == 8);
}

// ---- the order of a reduction

// Adding n numbers one after the other in any order is off by at most ((1 + u)^(n-1) - 1) times the sum of magnitudes.
double allowed_error(std::size_t n, DType dtype, double magnitudes) {
  return std::expm1(static_cast<double>(n - 1) * std::log1p(unit_roundoff(dtype))) * magnitudes;
}

// How far apart two orders brought a sum, in u times the sum of magnitudes; the worst goes into the test's report.
void report_deviation(double deviation) {
  static double worst = 0;
  worst = std::max(worst, deviation);
  testing::Test::RecordProperty("worst_deviation_in_u", std::to_string(worst));
  RC_CLASSIFY(deviation == 0.0, "orders agree to the last bit");
  RC_CLASSIFY(deviation > 0.0 && deviation <= 1.0, "orders up to 1 u apart");
  RC_CLASSIFY(deviation > 1.0 && deviation <= 2.0, "orders 1 to 2 u apart");
  RC_CLASSIFY(deviation > 2.0, "orders more than 2 u apart");
}

// Numbers of magnitudes that lie up to 2^8 apart.
RC_GTEST_PROP(Rounding, EveryOrderOfAReductionIsWithinTheBoundOfItsSum, ()) {
  const auto ranks = static_cast<std::size_t>(2 + *rc::gen::inRange(0, 7));
  const std::int64_t size = 1 + *rc::gen::inRange<std::int64_t>(0, 24);
  const DType dtype = *rc::gen::element(kFloat32, kBFloat16, kFloat16);
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 100000);
  const ScheduleDraw schedule = *any_schedule();
  std::vector<HostArray> parts;
  HostArray sum({size}), magnitudes({size});
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const RandomStream stream(seed, "scale of " + std::to_string(rank));
    HostArray part = random_array({size}, seed, "part " + std::to_string(rank));
    for (std::size_t i = 0; i < part.values.size(); ++i) {
      part.values[i] = std::ldexp(part.values[i], static_cast<int>(stream.below(i, 9)) - 4);
    }
    parts.push_back(rounded(part, dtype));
    for (std::size_t i = 0; i < part.values.size(); ++i) {
      sum.values[i] += parts.back().values[i];
      magnitudes.values[i] += std::abs(parts.back().values[i]);
    }
  }
  std::vector<HostArray> by_order;
  for (const ReductionOrder order : kOrders) {
    const auto results = rank_results(schedule.options(ranks), [&](Communicator& world) {
      world.set_reduction_order(order, seed);
      const Tensor own = to_device(cpu_device(), parts[static_cast<std::size_t>(world.rank())], dtype);
      return to_host(collectives::all_reduce(world, own, "test").wait());
    });
    for (const HostArray& result : results) RC_ASSERT(result == results.front());
    by_order.push_back(results.front());
  }
  double deviation = 0;
  for (std::size_t i = 0; i < sum.values.size(); ++i) {
    double least = by_order.front().values[i], most = least;
    for (const HostArray& result : by_order) {
      RC_ASSERT(std::abs(result.values[i] - sum.values[i]) <= allowed_error(ranks, dtype, magnitudes.values[i]));
      least = std::min(least, result.values[i]);
      most = std::max(most, result.values[i]);
    }
    deviation = std::max(deviation, (most - least) / (unit_roundoff(dtype) * magnitudes.values[i]));
  }
  report_deviation(deviation);
}

}  // namespace
}  // namespace shardproof::test
