// What the tables cannot hold: faults of the catalogue that our design does not admit, each with the reason, and
// changes that are no faults, each with the proof.
#include "tests/zoo/fault.h"

namespace shardproof::zoo {

std::span<const Absent> inexpressible_faults() {
  static const std::vector<Absent> kAbsent{
      {"TP_QKNORM_LOCAL", 54,
       "norms of queries and keys span one head in every model that has a tensor-parallel plan; where they span all "
       "heads, the norm refuses a divided width"},
      {"TP_QKNORM_W0", 55,
       "the weight of a norm over one head is the same tensor on every rank: there is no slice to take from rank 0"},
  };
  return kAbsent;
}

std::span<const Absent> equivalent_faults() {
  static const std::vector<Absent> kEquivalent{
      {"MERGE_OPERANDS_SWAPPED", 0,
       "merge(b, a) instead of merge(a, b): the weights and outputs change places together, and addition and "
       "log-add-exp "
       "are commutative, in floating point as well"},
      {"CROSS_ATTENTION_EXCHANGED", 0,
       "keys that every rank has whole are exchanged, so that each counts once a rank: that multiplies the numerator "
       "and "
       "the denominator of the softmax alike, the output stays, and no model takes the log-sum-exp of such an "
       "attention"},
      {"TP_BIAS_IN_PARTS", 0,
       "every rank adds the bias divided by the number of ranks to its partial result: the sum of these parts is the "
       "bias; only gradients, which are not computed, would differ"},
  };
  return kEquivalent;
}

}  // namespace shardproof::zoo
