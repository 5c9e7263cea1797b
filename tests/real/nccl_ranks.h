// Ranks over the fake NCCL for tests of one thing at a time: each is a process with a session and the world.
// What a rank throws is its message; the fake must be content with what it does.
#pragma once

#include <functional>

#include "real/nccl_communicator.h"
#include "tests/fake_nccl/fabric.h"
#include "tests/fake_nccl/forked_ranks.h"

namespace shardproof::test {

using NcclBody = std::function<void(int rank, Communicator& world)>;

// Short, so that a test of a deadline takes little time, and long enough for a busy machine.
NcclOptions patient_options();
NcclOptions impatient_options();

// Runs the ranks on the fabric that was made last, which has that many places.
std::vector<fake_nccl::RankEnd> run_nccl(int ranks, const NcclOptions& options, const NcclBody& body);
// The same on a fabric made for it, all of whose ranks must end well, having given everything back, while the fake sees
// nothing wrong. Returns what was wrong, or nothing.
std::string trouble_of(int ranks, const NcclBody& body);

}  // namespace shardproof::test
