// The fabric of the fake NCCL: memory that the processes of one test share. It holds what they lend each other (device
// memory, which is host memory here), the meeting points of their calls, the faults that a test asks for and the
// violations that the fake has seen. A test makes it, forks its ranks, and each rank enters it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::fake_nccl {

inline constexpr int kMostRanks = 8;

// What one rank is to do wrong. Launches are counted over all communicators of the rank; 1 = the first, 0 = none.
struct Faults {
  std::atomic<int> delayed_launch{0};  // starts so late on its stream
  std::atomic<int> delay_ms{0};
  std::atomic<int> dropped_launch{0};        // this one and all later ones never start
  std::atomic<int> failing_launch{0};        // NCCL reports an asynchronous error instead of starting it
  std::atomic<int> never_connects{0};        // 1: ncclCommInitRankConfig stays in progress on all ranks
  std::atomic<int> polls_in_progress{2};     // so often a call that does not block is reported to be in progress
  std::atomic<int> refused_pinned_bytes{0};  // cudaMallocHost of at least so many fails; 0 = none
};

// Makes the memory; to be called before the ranks are forked, once a test. The one before is given back.
void make_fabric(int ranks);
// Called by each rank, in its own process. Processes that are no forks of the one that made the fabric find it as a
// file, named by SHARDPROOF_FAKE_FABRIC, and are the rank that SHARDPROOF_RANK says; at their end they say what was
// violated, by any rank, and then end with status 1.
void enter_fabric(int rank);
Faults& faults_of(int rank);
// What was against the rules of NCCL or CUDA on any rank so far: "rank 1: ncclSend: ...".
std::vector<std::string> violations();
// Notes what this rank has not given back: streams, events, memory, communicators.
void check_everything_released();
// Launches that this rank has started.
int launches();

}  // namespace shardproof::fake_nccl
