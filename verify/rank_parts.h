// Which elements of a whole tensor a rank can have, told from sizes: its piece of a sequence that the plan divides, or
// of several that stand one behind the other, of heads or channels, or of the blocks of a packed layer. Sizes alone may
// allow several parts; who has values takes the one that fits them.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "core/mesh.h"
#include "core/module.h"
#include "verify/parallel_run.h"

namespace shardproof {

// Where the elements of a rank's tensor stand in the whole one, row-major; none: it is the whole.
using Places = std::vector<std::int64_t>;

// A rank's place in a group that may divide an axis.
struct Place {
  int members = 1, member = 0;
};
// Its groups: ring and ulysses together, in flat order wherever they stand in the mesh; and tensor parallelism's.
struct RankPlaces {
  Place context, tensor;
};
RankPlaces places_of_rank(const Mesh& mesh, const ParallelConfig& config, int rank);

// The entries that a member has of sequences which stand one after the other along an axis, each divided by itself.
std::vector<std::int64_t> entries_of(const std::vector<std::int64_t>& lengths, const Place& place);

class RankParts {
 public:
  // Of a run that completed: the lengths that its plan divided, and the blocks of the layers of `tree` (dense).
  RankParts(Module& tree, const ParallelPlans& plans, const ParallelConfig& config, const ParallelRun& run);
  // Every part of `whole` that has the shape `local` on this rank; none if no division explains it.
  std::vector<Places> of(int rank, const Shape& whole, const Shape& local) const;

 private:
  // Lengths of pieces that stand one after the other along an axis, each of which is divided by itself.
  using Lengths = std::vector<std::int64_t>;
  using Entries = std::vector<std::int64_t>;

  void find_blocks(Module& tree, const ParallelPlans& plans, int degree);
  std::vector<Lengths> sequences_of(std::int64_t total) const;
  std::vector<Entries> parts_of_axis(int rank, std::int64_t whole, std::int64_t local) const;

  std::vector<RankPlaces> places_;  // by rank
  std::set<std::int64_t> totals_;   // lengths that the plan divides
  std::set<Lengths> blocks_;        // of packed layers
};

}  // namespace shardproof
