// Joins the tables of faults, and keeps what they cannot hold: faults that our design does not admit, and changes that
// are no faults.
#include "tests/zoo/fault.h"

namespace shardproof::zoo {

const std::vector<FaultTable>& fault_tables() {
  static const std::vector<FaultTable> kTables{
      {"ring attention", ring_faults()},
      {"Ulysses, division, gather", ulysses_faults()},
      {"masks, scale, groups", attention_faults()},
      {"tensor parallelism", tensor_parallel_faults()},
      {"models and hooks", model_faults()},
      {"plans", plan_faults()},
  };
  return kTables;
}

const std::vector<Fault>& all_faults() {
  static const std::vector<Fault> kAll = [] {
    std::vector<Fault> all;
    for (const FaultTable& table : fault_tables()) all.insert(all.end(), table.faults.begin(), table.faults.end());
    return all;
  }();
  return kAll;
}

}  // namespace shardproof::zoo
