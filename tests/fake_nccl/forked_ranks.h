// Runs a body on ranks that are processes: forks them, gives each its place in a fresh fabric, and collects how they
// ended. The calling process must not have started threads.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace shardproof::fake_nccl {

struct RankEnd {
  int status = 0;       // of exit; 128 + n for a signal
  std::string message;  // what it threw, if anything
};

// make_fabric() comes first, so that the caller can ask for faults. A rank that throws ends with status 1; one that is
// not done after `patience` is killed and has status 128 + SIGKILL.
std::vector<RankEnd> run_ranks(int ranks, const std::function<void(int rank)>& body,
                               std::chrono::milliseconds patience = std::chrono::seconds(60));

}  // namespace shardproof::fake_nccl
