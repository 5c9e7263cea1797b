// Complete verifications a second of a small exported model: every legal configuration of 2 to 4 ranks, both rotate
// methods, every rank compared with the dense run, in float64. The model is read once and each case's dense run is made
// once; as many threads verify side by side as there are cores. The bar is for the fast device; the reference, which
// computes in the textbook way, is measured beside it.
// usage: verification_rate EXPORT_DIR
#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <omp.h>

#include "bench/figures.h"
#include "verify/subject.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

constexpr double kBar = 300.0;
constexpr double kSeconds = 3.0;

struct Counts {
  std::atomic<std::int64_t> verified{0}, wrong{0};
};

// Verifies all cases under all configurations again and again until the time is up.
class Worker {
 public:
  Worker(const std::string& source, DeviceChoice device)
      : subject_(Subject::open(source, 0)), verifier_(subject_, {.device = device}) {
    plan_ = *subject_.model().plans(subject_.config()).default_cp;
    for (const std::string& name : subject_.case_names()) {
      for (const ContextParallelConfig& config : default_configurations()) {
        if (verifier_.verify(name, config, plan_).verdict == Verdict::rounding_equivalent)
          work_.push_back({name, config});
      }
    }
  }
  bool has_work() const { return !work_.empty(); }

  void run_until(std::chrono::steady_clock::time_point end, Counts& counts) {
    for (std::size_t next = 0; std::chrono::steady_clock::now() < end; next = (next + 1) % work_.size()) {
      const Verdict verdict = verifier_.verify(work_[next].case_name, work_[next].config, plan_).verdict;
      ++(verdict == Verdict::rounding_equivalent ? counts.verified : counts.wrong);
    }
  }

 private:
  struct Item {
    std::string case_name;
    ContextParallelConfig config;
  };
  Subject subject_;
  Verifier verifier_;
  ContextParallelPlan plan_;
  std::vector<Item> work_;
};

int measure(const std::string& source, DeviceChoice device) {
  const int cores = omp_get_num_procs();
  omp_set_num_threads(1);
  std::vector<std::unique_ptr<Worker>> workers;
  for (int i = 0; i < cores; ++i) workers.push_back(std::make_unique<Worker>(source, device));
  if (!workers.front()->has_work()) {
    fmt::print(stderr, "verification_rate: '{}' has no case that a configuration of 2 to 4 ranks admits\n", source);
    return 2;
  }
  Counts counts;
  const std::clock_t processor_start = std::clock();
  const auto start = std::chrono::steady_clock::now();
  const auto end =
      start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(kSeconds));
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&] {
      omp_set_num_threads(1);
      worker->run_until(end, counts);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double processor = static_cast<double>(std::clock() - processor_start) / CLOCKS_PER_SEC;
  bench::Figures figures(
      fmt::format("Verifications of {} in float64, device {}, {} threads, {:.0f} s, {:.2f} ms of processor each",
                  source, device == DeviceChoice::cpu ? "cpu" : "reference", cores, kSeconds,
                  1e3 * processor / static_cast<double>(counts.verified)));
  figures.at_most("verdicts that changed when repeated", static_cast<double>(counts.wrong), 0, "");
  const double rate = static_cast<double>(counts.verified) / seconds;
  if (device == DeviceChoice::cpu) {
    figures.at_least("complete verifications a second", rate, kBar, "1/s");
  } else {
    figures.tell("complete verifications a second", rate, "1/s");
  }
  return figures.finish();
}

}  // namespace
}  // namespace shardproof

int main(int count, char** arguments) {
  if (count != 2) {
    fmt::print(stderr, "usage: verification_rate EXPORT_DIR\n");
    return 2;
  }
  try {
    const int reference = shardproof::measure(arguments[1], shardproof::DeviceChoice::reference);
    const int cpu = shardproof::measure(arguments[1], shardproof::DeviceChoice::cpu);
    return std::max(reference, cpu);
  } catch (const std::exception& error) {
    fmt::print(stderr, "verification_rate: {}\n", error.what());
    return 2;
  }
}
