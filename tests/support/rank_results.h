// Runs a body on simulated ranks and hands back what each rank returned, so that everything is compared outside of the
// ranks: inside a fiber no test macro may end the function.
#pragma once

#include <concepts>
#include <type_traits>
#include <vector>

#include "core/communicator.h"
#include "sim/simulation.h"

namespace shardproof::test {

template <std::invocable<Communicator&> Body>
auto rank_results(const SimulationOptions& options, const Body& body) {
  using Result = std::invoke_result_t<const Body&, Communicator&>;
  std::vector<Result> results(static_cast<std::size_t>(options.world_size));
  // Every rank writes its own element only.
  run_ranks(options, [&](Communicator& world) { results[static_cast<std::size_t>(world.rank())] = body(world); });
  return results;
}

template <std::invocable<Communicator&> Body>
auto rank_results(int world_size, const Body& body) {
  return rank_results(SimulationOptions{.world_size = world_size}, body);
}

}  // namespace shardproof::test
