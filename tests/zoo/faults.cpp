// Joins the tables of faults, and keeps what they cannot hold: faults that our design does not admit, and changes that
// are no faults.
#include "tests/zoo/fault.h"

namespace shardproof::zoo {

const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> kAll = [] {
    std::vector<Fault> all;
    for (const std::span<const Fault> table : {ring_faults(), ulysses_faults(), attention_faults(),
                                               tensor_parallel_faults(), model_faults(), plan_faults()}) {
      all.insert(all.end(), table.begin(), table.end());
    }
    return all;
  }();
  return kAll;
}

}  // namespace shardproof::zoo
