// Large runs in little memory, each in a process of its own whose peak is measured from outside: 1,024 simulated ranks
// of attention, of which every one is compared with the dense result; 1,024 ranks that hold a FLUX tree each; and a
// float32 verification of a large export, whose peak is set beside that of the same work on one rank.
// usage: many_ranks [PART [EXPORT_DIR]]     without a part: all of them, as rows
#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "bench/figures.h"
#include "bench/peak_memory.h"
#include "bench/synthetic_model.h"
#include "core/collectives.h"
#include "core/error.h"
#include "core/ops.h"
#include "parallel/attention.h"
#include "parallel/context_parallel.h"
#include "reference/compare.h"
#include "reference/eigen_device.h"
#include "sim/cpu_device.h"
#include "sim/simulation.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

using bench::ChildOutput;
using bench::ChildRun;

constexpr int kRanks = 1024;
constexpr std::int64_t kTokens = 4096, kHeads = 32, kHeadDim = 16;
constexpr int kVerifiedRanks = 8;

// ---- parts: each is the whole work of one process

// The largest relative difference of any rank's output from the dense one.
double attention_difference(const std::string& rotate_method) {
  const std::unique_ptr<Device> device = make_reference_device(kFloat64);
  HostDevice host;
  const auto draw = [&](std::string_view name) {
    const Shape shape{1, kTokens, kHeads, kHeadDim};
    return ops::from_doubles(*device, ops::to_doubles(random_input(host, 1, name, shape)), shape, kFloat64);
  };
  const Tensor q = draw("q"), k = draw("k"), v = draw("v");
  const Tensor dense = attention(q, k, v, {}, {}, nullptr).out;
  const ContextParallelConfig config{.ring_degree = 32, .ulysses_degree = 32, .rotate_method = rotate_method};
  std::vector<Tensor> outputs(kRanks);
  std::vector<int> flat(kRanks);
  run_ranks({.world_size = kRanks}, [&](Communicator& world) {
    const ContextParallelState state(world, config);
    const std::int64_t own = kTokens / kRanks, first = state.flat().rank() * own;
    const auto part = [&](const Tensor& x) { return x.narrow(1, first, own); };
    const auto rank = static_cast<std::size_t>(world.rank());
    flat[rank] = state.flat().rank();
    outputs[rank] = attention(part(q), part(k), part(v), {}, {}, &state).out;
  });
  const double largest = compare(dense, dense).max_abs_expected;
  double worst = 0.0;
  for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
    const std::int64_t own = kTokens / kRanks;
    worst = std::max(worst, compare(outputs[rank], dense.narrow(1, flat[rank] * own, own)).max_abs / largest);
  }
  return worst;
}

int run_attention(const std::string& rotate_method) {
  const double difference = attention_difference(rotate_method);
  if (difference <= kFloat64Tolerance) return 0;
  fmt::print(stderr, "many_ranks: {}: a rank differs by {:.3g} of the largest output\n", rotate_method, difference);
  return 1;
}

// Every rank builds a tree with weights and hooks; all are there at once.
int run_trees() {
  Subject subject = Subject::open("flux", 0);
  const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  const ModelContext context{&subject.reference_device(), kFloat64, TablePrecision::float64};
  subject.make_tree(context);  // draws the weights, which all ranks share
  run_ranks({.world_size = kRanks}, [&](Communicator& world) {
    const auto state = std::make_shared<const ContextParallelState>(
        world, ContextParallelConfig{.ring_degree = 32, .ulysses_degree = 32});
    const std::unique_ptr<Module> tree = subject.make_tree(context);
    apply_context_parallel(*tree, state, plan);
    collectives::barrier(world, "many_ranks: all trees stand");
  });
  return 0;
}

// What verify --dtype float32 does, without a parallel run: the same command with one rank.
int run_one_rank(const std::string& folder) {
  Subject subject = Subject::open(folder, 0);
  const ModelContext narrow{&subject.cpu_device(), kFloat32, TablePrecision::float32};
  const ModelContext reference{&subject.reference_device(), kFloat64, TablePrecision::float32};
  const ModelCase model_case = subject.load_case(subject.case_names().front());
  const Tensor dense = subject.make_tree(narrow)->call(subject.prepare(model_case, narrow)).tensors.front();
  const Tensor wide =
      subject.make_tree(reference, WeightForm::stored)->call(subject.prepare(model_case, reference)).tensors.front();
  return compare(dense, wide).relative <= kFloat32DenseLimit ? 0 : 1;
}

int run_verified(const std::string& folder) {
  Subject subject = Subject::open(folder, 0);
  Verifier verifier(subject, {.dtype = kFloat32, .device = DeviceChoice::cpu});
  const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  const VerificationResult result =
      verifier.verify(subject.case_names().front(), {.ulysses_degree = kVerifiedRanks}, plan);
  if (result.verdict == Verdict::rounding_equivalent) return 0;
  fmt::print(stderr, "many_ranks: {} {}\n", verdict_word(result.verdict), result.reason);
  return 1;
}

int run_part(const std::vector<std::string>& words) {
  const std::string& part = words.front();
  const bool needs_folder = part == "write" || part == "one_rank" || part == "verified";
  const bool is_known = needs_folder || part == "allgather" || part == "alltoall" || part == "trees";
  SHARDPROOF_CHECK(is_known, usage_error,
                   "'{}' is no part; expected allgather, alltoall, trees, write, one_rank or verified", part);
  SHARDPROOF_CHECK(words.size() == (needs_folder ? 2U : 1U), usage_error, "{} takes {}", part,
                   needs_folder ? "one export directory" : "no argument");
  if (part == "trees") return run_trees();
  if (part == "write") return bench::write_synthetic_export({.folder = words[1]}) > 0 ? 0 : 1;
  if (part == "one_rank") return run_one_rank(words[1]);
  if (part == "verified") return run_verified(words[1]);
  return run_attention(part);
}

// ---- all parts, measured

ChildRun measure(std::vector<std::string> words) {
  words.insert(words.begin(), bench::own_program());
  return bench::run_child(words, ChildOutput::shown);
}

double gigabytes(std::size_t bytes) { return 1e-9 * static_cast<double>(bytes); }

void measure_attention(bench::Figures& figures, const std::string& rotate_method) {
  const std::string name = fmt::format("attention, 1024 ranks (32 x 32, {}), every rank compared", rotate_method);
  const ChildRun run = measure({rotate_method});
  figures.at_most(name + ": failures", run.status, 0, "");
  figures.at_most(name, run.seconds, 60, "s");
  figures.at_most(name + ": peak", gigabytes(run.peak_bytes), 4, "GB");
}

int measure_all() {
  bench::Figures figures("Memory of large runs, peak resident set of one process each");
  for (const char* rotate_method : {"allgather", "alltoall"}) measure_attention(figures, rotate_method);
  const ChildRun trees = measure({"trees"});
  figures.at_most("trees of a FLUX of 2 + 2 blocks, 1024 ranks: failures", trees.status, 0, "");
  figures.at_most("trees of a FLUX of 2 + 2 blocks, 1024 ranks: peak", gigabytes(trees.peak_bytes), 1, "GB");
  const bench::TemporaryExport made("many_ranks");
  const ChildRun writer = measure({"write", made.folder()});
  const ChildRun one = measure({"one_rank", made.folder()});
  const ChildRun eight = measure({"verified", made.folder()});
  const std::string name = fmt::format("float32 verification of 1 GB of weights on {} ranks", kVerifiedRanks);
  figures.at_most(name + ": failures", writer.status + one.status + eight.status, 0, "");
  figures.at_most(name + ": peak", gigabytes(eight.peak_bytes), 1.3 * gigabytes(one.peak_bytes), "GB");
  return figures.finish();
}

int run(const std::vector<std::string>& words) {
  try {
    return words.empty() ? measure_all() : run_part(words);
  } catch (const Error& error) {
    fmt::print(stderr, "many_ranks: {}\n", error.what());
    return error.kind() == ErrorKind::usage_error ? 2 : 3;
  } catch (const std::exception& error) {
    fmt::print(stderr, "many_ranks: internal error: {}\n", error.what());
    return 3;
  }
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) { return shardproof::run({words + (count > 0 ? 1 : 0), words + count}); }
