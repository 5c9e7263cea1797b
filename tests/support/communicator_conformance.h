// The laws of a Communicator. One list, run over every communicator: simulated ranks, and later real processes. A law
// is an SPMD body that each rank runs; it knows what every rank sends, computes what must arrive, and throws
// shardproof::Error where it differs, so that it can run on any fiber, thread or process.
#pragma once

#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/device.h"

namespace shardproof::test {

// A device that can add tensors of `dtype`.
struct SummingDevice {
  Device* device = nullptr;
  DType dtype;
};

// What the laws need besides the communicator.
struct ConformanceTools {
  Device* device = nullptr;            // moves tensors of every plain type
  std::vector<SummingDevice> summing;  // for the laws about sums
};

struct CommunicatorLaw {
  std::string name;  // a sentence without spaces
  std::function<void(Communicator& world, const ConformanceTools& tools)> body;
  friend void PrintTo(const CommunicatorLaw& law, std::ostream* out) { *out << law.name; }
};

// Runs a body once per rank of a fresh world and throws what went wrong on any of them.
using RankRunner = std::function<void(int world_size, const std::function<void(Communicator& world)>& body)>;

// All laws. Each holds for every world size of at least 1.
std::span<const CommunicatorLaw> communicator_laws();
// Runs one law.
void check_communicator_law(const CommunicatorLaw& law, int world_size, const RankRunner& runner,
                            const ConformanceTools& tools);

}  // namespace shardproof::test
