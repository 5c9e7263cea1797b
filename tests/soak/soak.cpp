#include "tests/soak/soak.h"

#include <utility>

#include <fmt/format.h>

namespace shardproof::soak {

DrawnMode::DrawnMode(Draws& draws) {
  const auto degree = [&] { return static_cast<int>(2 + draws.below(draws.one_in(4) ? 7 : 3)); };
  switch (draws.below(5)) {
    case 0: config = {.ulysses_degree = degree()}; break;
    case 1: config = {.ring_degree = degree()}; break;
    case 2: config = {.ring_degree = 2, .ulysses_degree = static_cast<int>(2 + draws.below(3))}; break;
    case 3: config = {.ulysses_degree = degree(), .ulysses_anything = true}; break;
    default: config = {.ring_degree = degree(), .ring_anything = true}; break;
  }
  if (config.ring_degree && config.ulysses_degree && draws.one_in(2))
    std::swap(config.ring_degree, config.ulysses_degree);
  config.convert_to_fp32 = !draws.one_in(3);
  config.rotate_method = draws.one_in(2) ? "allgather" : "alltoall";
  ranks = config.ring_degree.value_or(1) * config.ulysses_degree.value_or(1);
  padded = draws.one_in(2);
  workers = draws.one_in(8) ? 2 : 1;
  schedule_seed = draws.bits() >> 1;
}

std::int64_t DrawnMode::length(Draws& draws, std::int64_t most) const {
  const bool is_ragged = config.ulysses_anything || config.ring_anything;
  return is_ragged ? ranks + draws.below(most + 1) : ranks * (1 + draws.below(3));
}

std::int64_t DrawnMode::heads(Draws& draws) const {
  const std::int64_t block = 1 + draws.below(3), degree = config.ulysses_degree.value_or(1);
  const std::int64_t last = config.ulysses_anything ? 1 + draws.below(block) : block;
  return block * (degree - 1) + last;
}

std::string DrawnMode::text() const {
  return fmt::format("{} ring {} ulysses {} {} {}{}, workers {}, schedule seed {}", mode_name(config),
                     config.ring_degree.value_or(1), config.ulysses_degree.value_or(1), config.rotate_method,
                     padded ? "padded" : "ragged", config.convert_to_fp32 ? "" : " without convert_to_fp32", workers,
                     schedule_seed);
}

}  // namespace shardproof::soak
