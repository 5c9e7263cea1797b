// What recording costs: the time of a model's forward on simulated ranks, with a recorder, without one, and with seams
// that do not even look for one. The last is a program of its own, compiled with bench/without_recorder, which this one
// starts; the three alternate, and the figures are medians over the rounds of ratios within a round. Time is the
// processor's, so that what else runs on the machine counts less. All three must return the same bits before any is
// timed.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/figures.h"
#include "bench/synthetic_model.h"
#include "core/error.h"
#include "core/random.h"
#include "sim/simulation.h"
#include "verify/parallel_run.h"
#include "verify/verifier.h"

namespace shardproof {
namespace {

constexpr int kRounds = 20, kSamples = 5, kRanks = 2;
constexpr double kOffBar = 1.005, kOnBar = 1.03;

enum class Recording : bool { off, on };

// A subject, its ranks, and one call of all of them.
class Workload {
 public:
  explicit Workload(const std::string& source)
      : subject_(Subject::open(source, 0)),
        verifier_(subject_, {.dtype = kFloat32, .device = DeviceChoice::cpu}),
        plans_(plans_of_model(subject_.model(), subject_.config(), "default")),
        case_name_(subject_.case_names().front()),
        arguments_(verifier_.arguments_of_rank(case_name_, config_, 0)) {}

  // The processor's seconds of `calls` calls. The first call, which allocates, comes before.
  double seconds(int calls, Recording recording) {
    std::vector<std::unique_ptr<OperationRecorder>> recorders(kRanks);
    std::array<double, kRanks> begin{}, end{};
    hash_ = 0;
    run_ranks({.world_size = kRanks}, [&](Communicator& world) {
      const auto rank = static_cast<std::size_t>(world.rank());
      RankOutcome outcome;
      if (recording == Recording::on) recorders[rank] = std::make_unique<OperationRecorder>();
      const RankSteps steps{.warmup = 1, .steps = calls, .recorder = recorders[rank].get(), .before_step = [&] {
                              begin[rank] = begin[rank] > 0.0 ? begin[rank] : processor_seconds();
                            }};
      run_rank(world, verifier_.tree_factory(), arguments_, plans_, config_, GatherForm::ragged, outcome, nullptr,
               steps);
      end[rank] = processor_seconds();
      hash_ += hash_of(outcome.outputs);
    });
    events_ = recording == Recording::on ? recorders[0]->event_count() : 0;
    return *std::ranges::max_element(end) - *std::ranges::min_element(begin);
  }
  std::uint64_t hash() const { return hash_; }    // of the outputs of all ranks
  std::size_t events() const { return events_; }  // of rank 0

 private:
  static double processor_seconds() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
  static std::uint64_t hash_of(const Outputs& outputs) {
    std::string content;
    for (const Tensor& tensor : outputs.tensors) {
      std::vector<std::byte> bytes(tensor.bytes());
      tensor.device().download(bytes, tensor);
      content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    return stable_hash(content);
  }

  Subject subject_;
  Verifier verifier_;
  ParallelPlans plans_;
  std::string case_name_;
  ParallelConfig config_{.context_parallel_config =
                             ContextParallelConfig{.ring_degree = kRanks, .rotate_method = "alltoall"}};
  const Arguments& arguments_;
  std::uint64_t hash_ = 0;
  std::size_t events_ = 0;
};

struct Answer {
  double off_seconds = 0.0;
  double on_seconds = 0.0;
  std::uint64_t off_hash = 0;
  std::uint64_t on_hash = 0;
  std::uint64_t events = 0;
};

// Reads or writes all of it; false at the end of the other side.
bool exchange_bytes(int descriptor, std::span<std::byte> bytes, bool writes) {
  while (!bytes.empty()) {
    const auto moved =
        writes ? ::write(descriptor, bytes.data(), bytes.size()) : ::read(descriptor, bytes.data(), bytes.size());
    if (moved <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
  }
  return true;
}
template <class Value>
bool receive(int descriptor, Value& value) {
  return exchange_bytes(descriptor, std::as_writable_bytes(std::span(&value, 1)), false);
}
template <class Value>
bool send(int descriptor, Value value) {
  return exchange_bytes(descriptor, std::as_writable_bytes(std::span(&value, 1)), true);
}

// A process that measures: for every number of calls that it is told, how long they took at best. A machine that does
// something else besides makes times longer, never shorter.
int serve(const std::string& source, int answers) {
  Workload workload(source);
  for (int calls = 0; receive(STDIN_FILENO, calls);) {
    Answer answer{.off_seconds = 1e9, .on_seconds = 1e9};
    for (int sample = 0; sample < kSamples; ++sample) {
      answer.off_seconds = std::min(answer.off_seconds, workload.seconds(calls, Recording::off));
      answer.off_hash = workload.hash();
      answer.on_seconds = std::min(answer.on_seconds, workload.seconds(calls, Recording::on));
      answer.on_hash = workload.hash();
    }
    answer.events = workload.events();
    if (!send(answers, answer)) return 1;
  }
  return 0;
}

// Where memory comes to lie changes times by more than what is measured here, so that every round has new processes.
Answer measured(const std::filesystem::path& program, const std::string& source, int calls) {
  std::array<int, 2> questions{}, answers{};
  SHARDPROOF_CHECK(::pipe(questions.data()) == 0 && ::pipe(answers.data()) == 0, state_error, "no pipe: {}",
                   std::strerror(errno));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(questions[0], STDIN_FILENO);
    ::close(questions[1]);
    ::close(answers[0]);
    const std::string descriptor = std::to_string(answers[1]);
    ::execl(program.c_str(), program.c_str(), source.c_str(), descriptor.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(questions[0]);
  ::close(answers[1]);
  Answer answer;
  const bool is_answered = send(questions[1], calls) && receive(answers[0], answer);
  ::close(questions[1]);
  ::close(answers[0]);
  ::waitpid(pid, nullptr, 0);
  SHARDPROOF_CHECK(is_answered, state_error, "{} has ended", program.string());
  return answer;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

struct Bars {
  std::optional<double> off, on;
};

struct Programs {
  std::filesystem::path with, without;  // seams that look for a recorder, and that do not
};

void measure(const Programs& programs, const std::string& name, const std::string& source, int calls, const Bars& bars,
             bench::Figures& figures) {
  const Answer first = measured(programs.with, source, 1), without = measured(programs.without, source, 1);
  const bool is_same = first.off_hash == first.on_hash && first.off_hash == without.off_hash && first.events > 100 &&
                       without.events < 10;
  if (!is_same) {
    figures.at_most(name + ": the three do not return the same bits", 1.0, 0.0, "");
    return;
  }
  std::vector<double> off, on, seconds;
  for (int round = 0; round < kRounds; ++round) {
    // In turn, so that a machine that gets slower or faster counts for neither.
    Answer of_without;
    if (round % 2 == 0) of_without = measured(programs.without, source, calls);
    const Answer of_with = measured(programs.with, source, calls);
    if (round % 2 == 1) of_without = measured(programs.without, source, calls);
    off.push_back(of_with.off_seconds / of_without.off_seconds);
    on.push_back(of_with.on_seconds / of_with.off_seconds);
    seconds.push_back(of_with.off_seconds / calls);
  }
  const auto print = [&](const std::string& what, double ratio, const std::optional<double>& bar) {
    bar ? figures.at_most(what, ratio, *bar, "x") : figures.tell(what, ratio, "x");
  };
  figures.tell(name + fmt::format(": {} operations and module calls a rank", first.events), median(seconds) * 1e3,
               "ms");
  print(name + ": no recorder, over seams that look for none", median(off), bars.off);
  print(name + ": with a recorder, over no recorder", median(on), bars.on);
}

int measure_all(const std::filesystem::path& program) {
  bench::Figures figures(
      fmt::format("Recording: float32, {} simulated ranks in a rotating ring, one worker, medians of "
                  "{} alternating rounds",
                  kRanks, kRounds));
  const Programs programs{.with = program, .without = program.parent_path() / "recorder_cost_without"};
  const bench::TemporaryExport folder("recorder_cost");
  bench::write_synthetic_export({.folder = folder.folder(), .gigabytes = bench::kSmallestGigabytes, .tokens = 256});
  measure(programs, "FLUX, 30 MB of weights, 256 tokens", folder.folder(), 2, {.off = kOffBar, .on = kOnBar}, figures);
  // So small that every operation takes about a microsecond.
  measure(programs, "FLUX of a few thousand weights", "flux", 30, {}, figures);
  return figures.finish();
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) {
  using namespace shardproof;
  try {
    return count == 3 ? serve(words[1], std::stoi(words[2]))
                      : measure_all(std::filesystem::canonical("/proc/self/exe"));
  } catch (const Error& error) {
    fmt::print(stderr, "recorder_cost: {}\n", error.what());
    return 2;
  }
}
