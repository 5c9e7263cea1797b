// What the faults of plans change. Apart from their table, because the generator, which reads all tables, knows no
// plans.
#pragma once

#include "parallel/parallelism.h"
#include "tests/zoo/fault.h"

namespace shardproof::zoo {

// The plans with the fault's change; as they are for a fault that is no fault of plans.
ParallelPlans changed_plans(const Fault& fault, ParallelPlans plans);

}  // namespace shardproof::zoo
