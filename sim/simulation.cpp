#include "sim/simulation.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/operation_recorder.h"
#include "sim/crew.h"
#include "sim/fiber.h"
#include "sim/sim_communicator.h"

namespace shardproof {
namespace {

// Ends a rank when the run is given up. No std::exception, so that bodies that catch those do not swallow it.
struct Cancelled {};

class Simulation;

// The rank that runs on this thread. Set around each resume; fibers never move between threads.
struct Running {
  const Simulation* simulation = nullptr;
  int rank = -1;
};
thread_local Running running;

struct SimulatedRank {
  std::unique_ptr<sim::Fiber> fiber;
  std::exception_ptr failure;
  OperationRecorder* recorder = nullptr;  // of the rank, while it does not run
};

class Simulation final : public Carrier {
 public:
  Simulation(const SimulationOptions& options, const std::function<void(Communicator& world)>& body);
  ~Simulation() override;
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  SimulationReport run();

  void block(int rank) override;
  void wake(int rank) override { runnable_.push_back(rank); }
  int calling_rank() const override { return running.simulation == this ? running.rank : -1; }

 private:
  SimulatedRank& rank_at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void run_share(int worker);
  bool run_rank(int rank);
  void live(int rank);
  void run_round();
  void cancel();
  [[noreturn]] void fail_with_ranks() const;
  bool any_left() const;

  SimulationOptions options_;
  const std::function<void(Communicator& world)>& body_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::vector<SimulatedRank> ranks_;
  std::vector<int> runnable_;
  std::vector<int> running_now_;
  bool cancelled_ = false;
  std::int64_t rounds_ = 0;
  sim::Crew crew_;  // last: its threads use the rest
};

RendezvousOptions rendezvous_options(const SimulationOptions& options) {
  RendezvousOptions result;
  result.world_size = options.world_size;
  result.seed = options.schedule_seed;
  result.strict_order = options.strict_order;
  result.record_deliveries = options.record_deliveries;
  result.mover = options.mover;
  return result;
}

Simulation::Simulation(const SimulationOptions& options, const std::function<void(Communicator& world)>& body)
    : options_(options),
      body_(body),
      rendezvous_(std::make_shared<Rendezvous>(rendezvous_options(options), *this)),
      ranks_(static_cast<std::size_t>(options.world_size)),
      crew_(std::min(options.workers, options.world_size), [this](int worker) { run_share(worker); }) {
  for (int rank = 0; rank < options.world_size; ++rank) runnable_.push_back(rank);
}

Simulation::~Simulation() {
  if (any_left()) cancel();
  rendezvous_->close();
}

void Simulation::block(int rank) {
  if (cancelled_) throw Cancelled{};
  SHARDPROOF_CHECK(std::current_exception() == nullptr, state_error,
                   "a rank must not wait inside a catch block: leave the block first");
  rank_at(rank).fiber->yield();
  if (cancelled_) throw Cancelled{};
}

// The body of a rank's fiber.
void Simulation::live(int rank) {
  try {
    sim::SimCommunicator world(rendezvous_, rendezvous_->world(), rank);
    body_(world);
    if (!cancelled_) rendezvous_->finish(rank);
  } catch (const Cancelled&) {
  } catch (...) {
    if (!cancelled_) rank_at(rank).failure = std::current_exception();
  }
}

// False if there is no memory for the rank's stack.
bool Simulation::run_rank(int rank) {
  SimulatedRank& state = rank_at(rank);
  if (!state.fiber) {
    try {
      state.fiber = std::make_unique<sim::Fiber>([this, rank] { live(rank); });
    } catch (...) {
      state.failure = std::current_exception();
      return false;
    }
  }
  running = {this, rank};
  OperationRecorder* const outside = OperationRecorder::exchange_current(state.recorder);
  state.fiber->resume();
  state.recorder = OperationRecorder::exchange_current(outside);
  running = {};
  if (state.fiber->ended()) state.fiber.reset();
  return true;
}

void Simulation::run_share(int worker) {
  const int workers = std::min(options_.workers, options_.world_size);
  for (const int rank : running_now_) {
    // Without memory for one stack there is none for the next, and soon none to say so.
    if (rank % workers == worker && !run_rank(rank)) return;
  }
}

void Simulation::run_round() {
  running_now_.swap(runnable_);
  runnable_.clear();
  crew_.run();
}

void Simulation::cancel() {
  cancelled_ = true;
  runnable_.clear();
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank_at(rank).fiber) runnable_.push_back(rank);
  }
  run_round();
}

bool Simulation::any_left() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const SimulatedRank& rank) { return rank.fiber != nullptr; });
}

struct Failure {
  ErrorKind kind = ErrorKind::internal_error;
  std::string message;
  bool refusal = false;
};

Failure described(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Refusal& refusal) {
    return {refusal.kind(), refusal.what(), true};
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  } catch (const std::exception& error) {
    return {ErrorKind::internal_error, error.what()};
  } catch (...) {
    return {ErrorKind::internal_error, "threw something that is no std::exception"};
  }
}

struct RanksWithOneText {
  std::string text;
  std::vector<int> ranks;
};

// "rank 1", "ranks 1, 2, 3", "ranks 1, 2, 3 and 4 more".
std::string ranks_text(const std::vector<int>& ranks, std::size_t most) {
  const std::size_t listed = std::min(ranks.size(), most);
  std::string text = fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s",
                                 fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(listed), ", "));
  if (ranks.size() > listed) text += fmt::format(" and {} more", ranks.size() - listed);
  return text;
}

void Simulation::fail_with_ranks() const {
  constexpr std::size_t kListed = 8;
  Failure first;
  std::vector<RanksWithOneText> groups;  // of the others: the first line of each says enough
  int first_rank = -1, not_listed = 0;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const std::exception_ptr& failure = ranks_[static_cast<std::size_t>(rank)].failure;
    if (!failure) continue;
    Failure described_failure = described(failure);
    if (first_rank < 0) {
      first_rank = rank;
      first = std::move(described_failure);
      continue;
    }
    const std::string& text = described_failure.message;
    const std::string shown = text == first.message ? "the same" : text.substr(0, text.find('\n'));
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.text == shown; });
    if (group == groups.end() && groups.size() + 1 < kListed) group = groups.insert(groups.end(), {shown, {}});
    if (group == groups.end()) {
      ++not_listed;
    } else {
      group->ranks.push_back(rank);
    }
  }
  first.message = fmt::format("rank {}: {}", first_rank, first.message);
  for (const RanksWithOneText& group : groups) {
    first.message += fmt::format("\nalso {}: {}", ranks_text(group.ranks, kListed), group.text);
  }
  if (not_listed > 0) first.message += fmt::format("\nand {} more ranks failed", not_listed);
  if (first.refusal) throw Refusal(first.kind, first.message);
  throw Error(first.kind, first.message);
}

SimulationReport Simulation::run() {
  const auto failed = [this](int rank) { return rank_at(rank).failure != nullptr; };
  while (!runnable_.empty()) {
    run_round();
    ++rounds_;
    if (std::any_of(running_now_.begin(), running_now_.end(), failed)) {
      cancel();
      fail_with_ranks();
    }
    std::exception_ptr disagreement;
    try {
      rendezvous_->settle();
    } catch (...) {
      disagreement = std::current_exception();
    }
    if (disagreement) {
      cancel();
      std::rethrow_exception(disagreement);
    }
  }
  SHARDPROOF_CHECK(!any_left(), internal_error, "the scheduler ended with ranks left");
  SimulationReport report;
  for (int rank = 0; rank < options_.world_size; ++rank) report.ranks.push_back(rendezvous_->statistics(rank));
  report.rounds = rounds_;
  report.deliveries = rendezvous_->take_deliveries();
  return report;
}

void check_options(const SimulationOptions& options, const std::function<void(Communicator& world)>& body) {
  SHARDPROOF_CHECK(running.simulation == nullptr, state_error,
                   "run_ranks was called by rank {} of a running simulation; simulations do not nest", running.rank);
  SHARDPROOF_CHECK(options.world_size >= 1 && options.world_size <= kMaxSimulatedRanks, config_error,
                   "world_size {} must lie within 1..{}", options.world_size, kMaxSimulatedRanks);
  SHARDPROOF_CHECK(options.workers >= 1 && options.workers <= kMaxSimulationWorkers, config_error,
                   "workers {} must lie within 1..{}", options.workers, kMaxSimulationWorkers);
  SHARDPROOF_CHECK(static_cast<bool>(body), config_error, "run_ranks needs a function to run");
}

}  // namespace

SimulationReport run_ranks(const SimulationOptions& options, const std::function<void(Communicator& world)>& body) {
  check_options(options, body);
  return Simulation(options, body).run();
}

bool is_inside_rank() { return running.simulation != nullptr; }

}  // namespace shardproof
