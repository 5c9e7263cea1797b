#include "tests/support/layout.h"

#include <numeric>

namespace shardproof::test {

Indices dealt(std::int64_t n, int ranks) {
  Indices sizes(static_cast<std::size_t>(ranks), 0);
  for (std::int64_t i = 0; i < n; ++i) ++sizes[static_cast<std::size_t>(i % ranks)];
  return sizes;
}

std::vector<Indices> pieces_of(std::span<const std::int64_t> streams, int ranks) {
  std::vector<Indices> pieces(static_cast<std::size_t>(ranks));
  std::int64_t token = 0;
  for (const std::int64_t stream : streams) {
    const Indices sizes = dealt(stream, ranks);
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
      for (std::int64_t i = 0; i < sizes[rank]; ++i) pieces[rank].push_back(token++);
    }
  }
  return pieces;
}

Indices rank_major(const std::vector<Indices>& pieces) {
  Indices all;
  for (const Indices& piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

Indices counting(std::int64_t n) {
  Indices indices(static_cast<std::size_t>(n));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

}  // namespace shardproof::test
