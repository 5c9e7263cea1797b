// What loading costs: the time from the start of a process to the first forward call on a 2 GB export, over that of
// `cat` of the same file from a warm cache; and the memory of one tensor-parallel rank that reads only its slices, over
// its share of the weights. Each figure is of a process of its own, measured from outside. usage: loading [PART
// EXPORT_DIR]     without a part: all of them, as rows
#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/figures.h"
#include "bench/peak_memory.h"
#include "bench/synthetic_model.h"
#include "core/error.h"
#include "core/host_memory.h"
#include "models/export_directory.h"
#include "models/state.h"
#include "parallel/tensor_parallel_specs.h"
#include "reference/compare.h"
#include "sim/cpu_device.h"
#include "verify/subject.h"

namespace shardproof {
namespace {

using bench::ChildOutput;
using bench::ChildRun;

constexpr double kGigabytes = 2.0;
constexpr int kDegree = 2, kRounds = 3;

// ---- parts: each is the whole work of one process

// All that precedes the first forward call, and where `calls` is true that call.
int run_load(const std::string& folder, bool calls) {
  Subject subject = Subject::open(folder, 0);
  const ModelContext context{&subject.cpu_device(), kFloat32, TablePrecision::float32};
  const std::unique_ptr<Module> tree = subject.make_tree(context);
  const Arguments arguments = subject.prepare(subject.load_case(subject.case_names().front()), context);
  if (!calls) return 0;
  const Tensor output = tree->call(arguments).tensors.front();
  return is_finite(output) ? 0 : 1;
}

// One rank's model as load_sharded_state reads it; without `reads`, all but the weights.
int run_shard(const std::string& folder, bool reads) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const ModelContext context{device.get(), kFloat32, TablePrecision::float32};
  const ExportDirectory source(folder);
  const std::unique_ptr<Module> tree = source.model().create(source.config(), context);
  const TensorParallelPlan plan = *source.model().plans(source.config()).default_tp;
  const std::vector<ShardSpec> specs = resolve_tp_shard_specs(*tree, plan, kDegree);
  if (!reads) return 0;
  const ModelState state = load_sharded_state(*tree, source.weights(), context, specs, 0, kDegree);
  assign_sharded_state(*tree, state);
  return 0;
}

int run_part(const std::vector<std::string>& words) {
  const std::string& part = words.front();
  const bool is_known = part == "write" || part == "load" || part == "call" || part == "bare" || part == "shard";
  SHARDPROOF_CHECK(is_known, usage_error, "'{}' is no part; expected write, load, call, bare or shard", part);
  SHARDPROOF_CHECK(words.size() == 2, usage_error, "{} takes one export directory", part);
  if (part == "write") return bench::write_synthetic_export({.folder = words[1], .gigabytes = kGigabytes}) > 0 ? 0 : 1;
  if (part == "load" || part == "call") return run_load(words[1], part == "call");
  return run_shard(words[1], part == "shard");
}

// ---- all parts, measured

ChildRun measure(const std::string& part, const std::string& folder) {
  const std::vector<std::string> words{bench::own_program(), part, folder};
  return bench::run_child(words, ChildOutput::shown);
}

// The fastest of some runs.
template <class Run>
ChildRun best_of(const Run& run) {
  ChildRun best = run();
  for (int round = 1; round < kRounds; ++round) {
    const ChildRun next = run();
    const int status = std::max(best.status, next.status);
    if (next.seconds < best.seconds) best = next;
    best.status = status;
  }
  return best;
}

struct Share {
  double bytes = 0.0, largest = 0.0;
};

// What one rank holds, and the largest tensor of the whole model.
Share share_of(const std::string& folder) {
  HostDevice host;
  const ModelContext context{&host, kFloat32, TablePrecision::float32};
  const ExportDirectory source(folder);
  const std::unique_ptr<Module> tree = source.model().create(source.config(), context);
  const TensorParallelPlan plan = *source.model().plans(source.config()).default_tp;
  const std::vector<ShardSpec> specs = resolve_tp_shard_specs(*tree, plan, kDegree);
  Share share;
  for (const std::string& name : source.weights().names()) {
    const SafetensorsEntry& entry = source.weights().at(name);
    const auto whole = static_cast<double>(entry.end - entry.begin);
    const bool is_sharded = std::any_of(specs.begin(), specs.end(),
                                        [&](const ShardSpec& spec) { return spec.dim && spec.parameter == name; });
    share.largest = std::max(share.largest, whole);
    share.bytes += is_sharded ? whole / kDegree : whole;
  }
  return share;
}

int measure_all() {
  bench::Figures figures(fmt::format("Loading {} GB of float32 weights, best of {} processes", kGigabytes, kRounds));
  const bench::TemporaryExport made("loading");
  const std::string folder = made.folder();
  const int written = measure("write", folder).status;
  const std::vector<std::string> cat{"cat", folder + "/weights.safetensors"};
  const ChildRun plain = best_of([&] { return bench::run_child(cat, ChildOutput::discarded); });
  const ChildRun load = best_of([&] { return measure("load", folder); });
  const ChildRun call = measure("call", folder);
  const ChildRun bare = measure("bare", folder), shard = measure("shard", folder);
  const Share share = share_of(folder);
  figures.at_most("failures", written + plain.status + load.status + call.status + bare.status + shard.status, 0, "");
  figures.tell("cat of the file to nowhere", plain.seconds, "s");
  figures.at_most("from the start to the first forward call", load.seconds, 1.5 * plain.seconds, "s");
  figures.tell("the same and that call, of 64 tokens", call.seconds, "s");
  const auto megabytes = [](double bytes) { return 1e-6 * bytes; };
  figures.tell(fmt::format("share of one of {} tensor-parallel ranks", kDegree), megabytes(share.bytes), "MB");
  figures.at_most("memory in which a rank reads its share (bar: share + largest tensor)",
                  megabytes(static_cast<double>(shard.peak_bytes) - static_cast<double>(bare.peak_bytes)),
                  megabytes(share.bytes + share.largest), "MB");
  return figures.finish();
}

int run(const std::vector<std::string>& words) {
  try {
    return words.empty() ? measure_all() : run_part(words);
  } catch (const Error& error) {
    fmt::print(stderr, "loading: {}\n", error.what());
    return error.kind() == ErrorKind::usage_error ? 2 : 3;
  } catch (const std::exception& error) {
    fmt::print(stderr, "loading: internal error: {}\n", error.what());
    return 3;
  }
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) { return shardproof::run({words + (count > 0 ? 1 : 0), words + count}); }
