// Attention of random shapes, masks, modes and schedules, on operands of uniform residues: every rank must have the
// rows of the dense result, and their masses.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "core/ops.h"
#include "reference/field_device.h"
#include "tests/soak/soak.h"
#include "tests/support/attention_problem.h"

namespace shardproof::soak {
namespace {

using test::AttentionProblem;
using test::AttentionRun;
using test::HostArray;
using test::Indices;

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr std::uint64_t kDrawsOfADevice = 512;

// g and the salts change every few hundred configurations: the tables of powers cost more than an attention.
FieldDevice& device_of(std::uint64_t seed, std::uint64_t index) {
  static std::uint64_t current = 0;
  static std::unique_ptr<FieldDevice> device;
  const std::uint64_t wanted = RandomStream(seed, "device").bits(index / kDrawsOfADevice);
  if (!device || current != wanted) device = make_field_device(current = wanted);
  return *device;
}

// Keys are dropped at random; some masks have finite biases as well, or drop the keys of one rank altogether.
HostArray drawn_bias(Draws& draws, const AttentionProblem& problem, int ranks, KeyAxis& axis) {
  const std::int64_t kind = draws.below(6);
  if (kind == 0) return {};
  const RandomStream random(draws.bits(), "mask");
  std::uint64_t next = 0;
  const auto keep = [&](auto...) { return random.below(next++, 3) > 0; };
  HostArray bias;
  if (kind == 1) {
    bias = test::full_bias(problem, keep);
    axis = KeyAxis::global;
  } else if (kind == 2) {
    const std::vector<Indices> pieces = test::pieces_of(problem.key_streams, ranks);
    const Indices& dropped = pieces[static_cast<std::size_t>(random.below(next++, ranks))];
    bias = test::key_bias(problem, [&](std::int64_t, std::int64_t key) {
      return std::find(dropped.begin(), dropped.end(), key) == dropped.end();
    });
  } else if (kind == 3) {
    bias = test::selected(test::full_bias(problem, keep), 2, Indices{0});
  } else {
    bias = test::key_bias(problem, keep);
    axis = kind == 4 ? KeyAxis::global : KeyAxis::local;
  }
  return bias;
}

struct Drawn {
  DrawnMode mode;
  AttentionProblem problem;
  AttentionRun run;
  std::string text;
};

Drawn drawn_attention(Draws& draws) {
  Drawn drawn{.mode = DrawnMode(draws), .problem = {}, .run = {}, .text = {}};
  AttentionProblem& problem = drawn.problem;
  const std::int64_t batch = 1 + draws.below(2), heads = drawn.mode.heads(draws), width = 1 + draws.below(8);
  if (!draws.one_in(3)) problem.query_streams.push_back(drawn.mode.length(draws, 7));
  problem.query_streams.push_back(drawn.mode.length(draws, 9));
  problem.key_streams = problem.query_streams;
  if (draws.one_in(3)) problem.key_streams = {drawn.mode.length(draws, 8)};
  std::int64_t queries = 0, keys = 0;
  for (const std::int64_t length : problem.query_streams) queries += length;
  for (const std::int64_t length : problem.key_streams) keys += length;
  // Only shapes are read of these: the operands are residues.
  problem.q = HostArray({batch, queries, heads, width});
  problem.k = problem.v = HostArray({batch, keys, heads, width});
  problem.scale = 1.0 / std::sqrt(static_cast<double>(width));
  problem.bias = drawn_bias(draws, problem, drawn.mode.ranks, drawn.run.key_axis);
  drawn.run.mask_form = draws.one_in(2) ? test::MaskForm::boolean : test::MaskForm::additive;
  if (drawn.run.mask_form == test::MaskForm::additive) {
    for (double& value : problem.bias.values) {
      if (value != kNever) value = 0.25 * static_cast<double>(draws.below(9)) - 1;
    }
  }
  drawn.run.config = drawn.mode.config;
  drawn.run.dtype = field_dtype();
  drawn.run.gather_form = drawn.mode.padded ? GatherForm::padded : GatherForm::ragged;
  drawn.run.schedule_seed = drawn.mode.schedule_seed;
  drawn.run.workers = drawn.mode.workers;
  drawn.run.return_lse = !draws.one_in(4);
  drawn.text = fmt::format("{}; q {}, k {}, {} streams, mask {}", drawn.mode.text(), problem.q.shape.text(),
                           problem.k.shape.text(), problem.query_streams.size(),
                           problem.bias.empty() ? "none" : problem.bias.shape.text());
  return drawn;
}

// The rows `tokens` of axis 1, as elements.
std::vector<field::Value> rows_of(const Tensor& x, const Indices& tokens) {
  std::vector<Tensor> rows;
  for (const std::int64_t token : tokens) rows.push_back(x.narrow(1, token, 1));
  return field_elements(ops::concat(rows, 1));
}

bool all_defined(const std::vector<field::Value>& elements) {
  return std::none_of(elements.begin(), elements.end(), [](const field::Value& x) { return field::is_poison(x); });
}

// True if every rank has the dense rows, none of them poison.
bool is_equal(Drawn& drawn, FieldDevice& device, std::uint64_t seed) {
  AttentionProblem& problem = drawn.problem;
  AttentionRun& run = drawn.run;
  run.device = &device;
  const Tensor q = random_field_tensor(device, seed, "q", problem.q.shape);
  const Tensor k = random_field_tensor(device, seed, "k", problem.k.shape);
  const Tensor v = random_field_tensor(device, seed, "v", problem.v.shape);
  Tensor mask;
  if (!problem.bias.empty()) {
    HostArray values = problem.bias;
    const bool is_boolean = run.mask_form == test::MaskForm::boolean;
    for (double& value : values.values) {
      if (is_boolean) value = value == kNever ? 0.0 : 1.0;
    }
    mask = test::to_device(device, values, is_boolean ? kBool : field_dtype());
  }
  const AttentionOutput dense = ops::attention(q, k, v, mask, problem.scale);
  const Tensor dense_out = ops::cast(dense.out, field_dtype());
  std::vector<char> equal(static_cast<std::size_t>(drawn.mode.ranks), 0);
  const auto body = [&](Communicator& world) {
    world.set_gather_form(run.gather_form);
    const ContextParallelState state(world, run.config);
    const AttentionResult own = test::attend_on_rank(problem, run, state, q, k, v);
    const Indices tokens =
        test::pieces_of(problem.query_streams, drawn.mode.ranks)[static_cast<std::size_t>(state.flat().rank())];
    const std::vector<field::Value> out = field_elements(own.out);
    bool same = out == rows_of(dense_out, tokens) && all_defined(out);
    if (own.lse.defined()) same = same && field_elements(own.lse) == rows_of(dense.lse, tokens);
    equal[static_cast<std::size_t>(world.rank())] = same ? 1 : 0;
  };
  run_ranks({.world_size = drawn.mode.ranks, .schedule_seed = run.schedule_seed, .workers = run.workers}, body);
  return std::find(equal.begin(), equal.end(), 0) == equal.end();
}

}  // namespace

Outcome soak_attention(std::uint64_t seed, std::uint64_t index) {
  Draws draws(seed, "attention", index);
  Drawn drawn = drawn_attention(draws);
  FieldDevice& device = device_of(seed, index);
  const std::int64_t before = device.zero_divisions();
  Outcome outcome;
  if (is_equal(drawn, device, draws.bits())) return outcome;
  outcome.redrawn = device.zero_divisions() != before;
  if (outcome.redrawn && is_equal(drawn, *make_field_device(draws.bits()), draws.bits())) return outcome;
  outcome.alarm = drawn.text;
  return outcome;
}

}  // namespace shardproof::soak
