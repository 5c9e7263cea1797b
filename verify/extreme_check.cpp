#include "verify/extreme_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/ops.h"
#include "core/random.h"
#include "parallel/attention.h"
#include "reference/compare.h"
#include "reference/eigen_device.h"
#include "verify/attention_replay.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostTokens = 4;                    // of a rank, beside what it has more than the shortest
constexpr std::int64_t kMostWork = std::int64_t{1} << 30;  // products of the whole problem

double largest_finite(DType dtype) {
  if (dtype == kFloat16) return 65504.0;
  return dtype == kBFloat16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
}

// Where an element stands in the whole operand.
struct Element {
  std::int64_t batch = 0, token = 0, head = 0, channel = 0;
  std::uint64_t index() const {
    return ((static_cast<std::uint64_t>(batch) << 46U) + (static_cast<std::uint64_t>(token) << 24U) +
            (static_cast<std::uint64_t>(head) << 12U)) +
           static_cast<std::uint64_t>(channel);
  }
};

// The values of an operand, under a name that stands for them where a configuration needs them again.
struct Values {
  std::string name;
  std::function<double(const Element& element)> at;
};

// One set of operands for all ranks together.
struct Problem {
  std::string name;
  std::int64_t batch = 1;
  std::vector<std::int64_t> queries, keys;  // tokens by member of the flat group
  Values q, k, v;
  std::function<double(std::int64_t batch, std::int64_t member)> bias = nullptr;  // of a member's keys; null: no mask
  bool bias_is_wide = false;  // has the type of log-sum-exps instead of that of the queries
};

std::int64_t total_of(const std::vector<std::int64_t>& sizes) {
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) total += size;
  return total;
}

// Tokens by member, all cut by the same number, so that they differ as they did.
std::vector<std::int64_t> cut(std::vector<std::int64_t> tokens) {
  const std::int64_t excess = std::max<std::int64_t>(0, *std::min_element(tokens.begin(), tokens.end()) - kMostTokens);
  for (std::int64_t& each : tokens) each -= excess;
  return tokens;
}

// The operands of a problem and what is to come out.
struct Solved {
  Tensor q, k, v, mask;           // in the type
  std::vector<double> reference;  // [batch, queries, heads, head_dim]
  double allowed = 0.0;           // error of ratio 1
};

class ExtremeCheck {
 public:
  ExtremeCheck(const ParallelRun& run, const ParallelRunOptions& options, DType dtype, Device& device)
      : run_(run), options_(options), dtype_(dtype), device_(device) {}

  ExtremeResult result() && {
    for (const CallOfAllRanks& call : different_attention_calls(run_)) check(call);
    if (!ratios_.empty()) result_.largest_ratio = *std::max_element(ratios_.begin(), ratios_.end());
    return std::move(result_);
  }

 private:
  // The ranks of one flat group, in its order; those of other groups have the same lengths.
  std::vector<std::int64_t> tokens(const CallOfAllRanks& call, const Shape AttentionCall::* operand) const {
    std::vector<std::string_view> dimensions;
    for (const std::string_view name : {"ring", "ulysses"}) {
      if (run_.mesh.has(name)) dimensions.push_back(name);
    }
    std::vector<std::int64_t> result;
    for (const int rank : run_.mesh.group(0, dimensions)) {
      result.push_back((call.by_rank[static_cast<std::size_t>(rank)].*operand)[1]);
    }
    return result;
  }

  void check(const CallOfAllRanks& call) {
    const std::vector<std::int64_t> queries = cut(tokens(call, &AttentionCall::q));
    const std::vector<std::int64_t> keys = cut(tokens(call, &AttentionCall::k));
    const auto members = static_cast<std::int64_t>(keys.size());
    const AttentionCall& first = call.by_rank.front();
    if (members * total_of(queries) * total_of(keys) * first.q[2] * first.q[3] > kMostWork) {
      result_.not_checked.push_back("extreme inputs: too many ranks for " + call_text(first));
      return;
    }
    if (members < 3) {
      result_.not_checked.push_back(
          fmt::format("extreme inputs: a chunk of keys that is masked as a whole among three or more; {} ranks hold "
                      "the keys",
                      members));
    }
    for (const Problem& problem : problems(queries, keys, first.q[3])) solve_on_all_ranks(call, problem);
  }

  std::vector<Problem> problems(const std::vector<std::int64_t>& queries, const std::vector<std::int64_t>& keys,
                                std::int64_t width) const {
    const RandomStream drawn(options_.schedule_seed, "extreme inputs");
    const auto normal = [drawn](const char* name, std::uint64_t operand, double factor) {
      return Values{name, [=](const Element& element) { return factor * drawn.normal(4 * element.index() + operand); }};
    };
    const auto members = static_cast<std::int64_t>(keys.size());
    const Problem ordinary{.name = {},
                           .batch = 1,
                           .queries = queries,
                           .keys = keys,
                           .q = normal("q", 0, 1.5),
                           .k = normal("k", 1, 1.5),
                           .v = normal("v", 2, 1.0)};
    std::vector<Problem> all;
    // Queries are 1 or -1 in all channels, keys have one value in all.
    Problem& large = all.emplace_back(ordinary);
    large.name = "logits of 150 either way";
    const auto sign = [](std::int64_t number) { return number % 2 == 0 ? 1.0 : -1.0; };
    large.q = {"signs", [=](const Element& element) { return sign(element.token + element.head); }};
    large.k = {"levels", [=](const Element& element) {
                 const Element row{element.batch, element.token, element.head, 0};
                 const double share =
                     element.token % 3 == 0 ? sign(element.token) : drawn.uniform(4 * row.index(), -1.0, 1.0);
                 return 150.0 / std::sqrt(static_cast<double>(width)) * share;
               }};
    for (const double bias : {-kInfinity, -1e4, -1e9, -largest_finite(dtype_)}) {
      if (std::isfinite(bias) && bias < -largest_finite(dtype_)) continue;
      Problem& masked = all.emplace_back(ordinary);
      masked.name = fmt::format("the keys of each rank in turn masked by {:g}", bias);
      masked.batch = members;
      masked.bias = [=](std::int64_t batch, std::int64_t member) { return batch == member ? bias : 0.0; };
    }
    Problem& low = all.emplace_back(ordinary);
    low.name = "every key biased by about -1e4, in the type of log-sum-exps";
    low.bias = [](std::int64_t, std::int64_t member) { return -1e4 - 0.5 * static_cast<double>(member); };
    low.bias_is_wide = true;
    Problem& heavy = all.emplace_back(ordinary);
    const double value = std::min(1e6, 0.9 * largest_finite(dtype_));
    heavy.name = fmt::format("values of {:g} with weight e^-40 on each rank in turn", value);
    heavy.batch = members;
    heavy.bias = [](std::int64_t batch, std::int64_t member) { return batch == member ? -40.0 : 0.0; };
    heavy.v = {fmt::format("heavy {}", fmt::join(keys, ",")), [=](const Element& element) {
                 std::int64_t member = 0;
                 for (std::int64_t end = keys[0]; element.token >= end; end += keys[static_cast<std::size_t>(member)])
                   ++member;
                 return element.batch == member ? value : drawn.normal(4 * element.index() + 2);
               }};
    Problem& single = all.emplace_back(ordinary);
    single.name = "a single key on every rank";
    single.keys.assign(keys.size(), 1);
    return all;
  }

  Tensor operand(const Values& values, const Shape& shape) {
    Tensor& made = operands_[{values.name, shape.text()}];
    if (made.defined()) return made;
    std::vector<double> numbers;
    numbers.reserve(static_cast<std::size_t>(shape.numel()));
    Element at;
    for (at.batch = 0; at.batch < shape[0]; ++at.batch) {
      for (at.token = 0; at.token < shape[1]; ++at.token) {
        for (at.head = 0; at.head < shape[2]; ++at.head) {
          for (at.channel = 0; at.channel < shape[3]; ++at.channel) numbers.push_back(values.at(at));
        }
      }
    }
    made = ops::from_doubles(device_, numbers, shape, dtype_);
    return made;
  }

  Tensor mask(const Problem& problem) const {
    if (!problem.bias) return {};
    std::vector<double> numbers;
    for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
      for (std::size_t member = 0; member < problem.keys.size(); ++member) {
        numbers.insert(numbers.end(), static_cast<std::size_t>(problem.keys[member]),
                       problem.bias(batch, static_cast<std::int64_t>(member)));
      }
    }
    return ops::from_doubles(device_, numbers, {problem.batch, 1, 1, total_of(problem.keys)},
                             problem.bias_is_wide ? log_dtype(dtype_) : dtype_);
  }

  // On one rank, in float64 and in the type.
  Solved solved(const Problem& problem, const AttentionCall& call) {
    const Shape q{problem.batch, total_of(problem.queries), call.q[2], call.q[3]};
    const Shape k{problem.batch, total_of(problem.keys), call.q[2], call.q[3]};
    Solved result{.q = operand(problem.q, q),
                  .k = operand(problem.k, k),
                  .v = operand(problem.v, k),
                  .mask = mask(problem),
                  .reference = {}};
    const double scale = 1.0 / std::sqrt(static_cast<double>(q[3]));
    const auto wide = [&](const Tensor& x) {
      return x.defined() ? ops::from_doubles(*reference_, ops::to_doubles(x), x.shape(), kFloat64) : Tensor();
    };
    const AttentionOutput reference =
        ops::attention(wide(result.q), wide(result.k), wide(result.v), wide(result.mask), scale);
    const Tensor dense = ops::cast(ops::attention(result.q, result.k, result.v, result.mask, scale).out, dtype_);
    const Comparison comparison = compare(dense, reference.out);
    double largest_lse = 0.0;
    for (const double lse : ops::to_doubles(reference.lse)) largest_lse = std::max(largest_lse, std::abs(lse));
    result.reference = ops::to_doubles(reference.out);
    const double rounding =
        std::max(unit_roundoff(dtype_), unit_roundoff(kFloat32) * (1.0 + largest_lse)) * comparison.max_abs_expected;
    result.allowed = std::max(comparison.max_abs, rounding);
    return result;
  }

  void solve_on_all_ranks(const CallOfAllRanks& call, const Problem& problem) {
    ++result_.problems;
    const Solved expected = solved(problem, call.by_rank.front());
    const auto on_rank = [&](const ContextParallelState& state, int rank) {
      return compare_on_rank(problem, expected, state, rank);
    };
    std::vector<std::string> differences;
    check_on_all_ranks(options_, static_cast<int>(call.by_rank.size()), call_text(call.by_rank.front()), on_rank,
                       differences);
    // The other ranks have little to add.
    if (!differences.empty() && result_.differences.size() < kMostDifferences)
      result_.differences.push_back(fmt::format("{}: {}", problem.name, differences.front()));
  }

  std::vector<std::string> compare_on_rank(const Problem& problem, const Solved& expected,
                                           const ContextParallelState& state, int rank) {
    const int member = state.flat().rank();
    const SequenceLayout queries{problem.queries}, keys{problem.keys};
    const std::int64_t first = queries.start(member), count = problem.queries[static_cast<std::size_t>(member)];
    const auto part = [&](const Tensor& whole, int axis, const SequenceLayout& layout) {
      const std::int64_t length = layout.tokens[static_cast<std::size_t>(member)];
      return ops::contiguous(whole.narrow(axis, layout.start(member), length));
    };
    AttentionMask own_mask;
    if (expected.mask.defined()) own_mask.values = part(expected.mask, 3, keys);
    const std::vector<double> out = ops::to_doubles(attention(part(expected.q, 1, queries), part(expected.k, 1, keys),
                                                              part(expected.v, 1, keys), own_mask, {}, &state)
                                                        .out);
    const std::int64_t row = expected.q.size(2) * expected.q.size(3), rows = expected.q.size(1);
    double largest = 0.0;
    std::int64_t worst = 0;
    for (std::int64_t i = 0; i < std::ssize(out); ++i) {
      const std::int64_t batch = i / (count * row), rest = i % (count * row);
      const double right = expected.reference[static_cast<std::size_t>((batch * rows + first) * row + rest)];
      const double actual = out[static_cast<std::size_t>(i)];
      const double error = std::isfinite(actual) ? std::abs(actual - right) : kInfinity;
      if (error > largest) worst = i;
      largest = std::max(largest, error);
    }
    const double ratio = largest == 0.0 ? 0.0 : expected.allowed > 0.0 ? largest / expected.allowed : kInfinity;
    double& largest_ratio = ratios_[static_cast<std::size_t>(rank)];
    largest_ratio = std::max(largest_ratio, ratio);
    if (ratio <= kRatioLimit) return {};
    return {
        fmt::format("rank {}: output of query token {} of batch entry {} is {}, off by {:.3g} times the error of "
                    "the dense run, of which {:g} are allowed",
                    rank, first + worst / row % count, worst / (count * row), out[static_cast<std::size_t>(worst)],
                    ratio, kRatioLimit)};
  }

  const ParallelRun& run_;
  const ParallelRunOptions& options_;
  DType dtype_;
  Device& device_;
  // By name and shape.
  std::map<std::pair<std::string, std::string>, Tensor> operands_;
  std::unique_ptr<Device> reference_ = make_reference_device(kFloat64);
  std::vector<double> ratios_ = std::vector<double>(run_.ranks.size(), 0.0);  // the largest, by rank
  ExtremeResult result_;
};

}  // namespace

ExtremeResult check_extremes(const ParallelRun& run, const ParallelRunOptions& options, DType dtype, Device& device) {
  if (!options.config.context_parallel_config || run.end != RunEnd::completed) return {};
  return ExtremeCheck(run, options, dtype, device).result();
}

}  // namespace shardproof
