// Simulated ranks: a function runs once per rank, each on its own fiber, under one scheduler that works in rounds.
// In a round every rank that can run runs to its next wait, pinned to one of the workers; then, alone, what was posted
// is matched, checked and delivered in a seeded order. Ranks meet only there, so that a seed replays a run exactly with
// any number of workers, and no result may depend on the seed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/communicator.h"
#include "core/rendezvous.h"

namespace shardproof {

inline constexpr int kMaxSimulatedRanks = 16384;
inline constexpr int kMaxSimulationWorkers = 256;

struct SimulationOptions {
  int world_size = 1;
  std::uint64_t schedule_seed = 0;
  int workers = 1;
  // Operations of one rank complete in posting order, as on one stream; false: in order within each group only.
  bool strict_order = true;
  // Fills SimulationReport::deliveries.
  bool record_deliveries = false;
  Mover* mover = nullptr;  // null: what ranks exchange lies in host memory
};

struct SimulationReport {
  std::vector<RankStatistics> ranks;
  std::int64_t rounds = 0;
  std::vector<DeliveryRecord> deliveries;
};

// Runs `body` once for each of world_size ranks and returns when all have ended. Bodies of one round run concurrently
// on the workers: they must not share what they write. A body must not wait inside a catch block.
// Throws config_error for options that cannot be; state_error when called from inside a rank. What a rank throws ends
// the run: the others are cancelled (their waits throw something that is no std::exception), everything is freed, and
// an Error of the same kind is thrown whose message starts with "rank 3: " (a Refusal for a Refusal, internal_error for
// other exceptions); of several ranks failing in the same round the lowest is reported and the others are mentioned.
// Disagreement between ranks, deadlock and the like are thrown as Rendezvous::settle describes.
SimulationReport run_ranks(const SimulationOptions& options, const std::function<void(Communicator& world)>& body);

// True inside such a body, on the thread that runs it.
bool is_inside_rank();

}  // namespace shardproof
