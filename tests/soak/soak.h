// Random legal configurations in exact arithmetic, each a function of (seed, index). Correct code must be equal to its
// dense run in every one of them; whatever is not is a false alarm of the verifier or a fault of the code.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/random.h"
#include "parallel/config.h"

namespace shardproof::soak {

// Small numbers, one after the other.
class Draws {
 public:
  Draws(std::uint64_t seed, std::string_view name, std::uint64_t index)
      : stream_(RandomStream(seed, name).bits(index), "draws") {}
  std::int64_t below(std::int64_t n) { return stream_.below(next_++, n); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  std::uint64_t bits() { return stream_.bits(next_++); }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

// A mode with legal lengths and heads built on it from increments, on at most eight ranks.
struct DrawnMode {
  ContextParallelConfig config;
  int ranks = 1;
  bool padded = false;
  int workers = 1;
  std::uint64_t schedule_seed = 0;

  explicit DrawnMode(Draws& draws);
  std::int64_t length(Draws& draws, std::int64_t most) const;
  std::int64_t heads(Draws& draws) const;
  std::string text() const;
};

struct Outcome {
  std::string alarm;     // what differed, in which configuration; empty if nothing did
  bool redrawn = false;  // a sum of exponentials vanished by chance, so that another seed decided
  bool counts = true;    // false: the configuration was refused
};

// One attention layer on simulated ranks.
Outcome soak_attention(std::uint64_t seed, std::uint64_t index);
// One whole small model: of random shape, or of the catalogue in a random configuration.
Outcome soak_model(std::uint64_t seed, std::uint64_t index);

}  // namespace shardproof::soak
