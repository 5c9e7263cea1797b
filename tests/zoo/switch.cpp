#include "tests/zoo/switch.h"

#include <atomic>

#include "core/error.h"
#include "sim/simulation.h"
#include "tests/zoo/helpers.h"

namespace shardproof::zoo {
namespace {

// Zero is no fault's number. Ranks may run on several workers.
std::atomic<std::uint64_t> fault_that_is_on{0};
std::atomic<bool> reached{false};

}  // namespace

bool active(std::uint64_t fault) {
  if (fault_that_is_on.load(std::memory_order_relaxed) != fault || !is_inside_rank()) return false;
  reached.store(true, std::memory_order_relaxed);
  return true;
}

FaultSwitch::FaultSwitch(std::string_view name) {
  SHARDPROOF_CHECK(fault_that_is_on == 0, state_error, "fault '{}': another fault is on; one at a time", name);
  fault_that_is_on = id(name);
  reached = false;
}

FaultSwitch::~FaultSwitch() {
  fault_that_is_on = 0;
  forget_left_overs();
}

bool FaultSwitch::was_reached() const { return reached; }

}  // namespace shardproof::zoo
