// How far the clock of each rank is from that of rank 0, so that their times can be shown side by side: a message goes
// to the rank and comes back with its time, several times, and the fastest round trip tells the most.
// After: Mills, "Internet time synchronization: the network time protocol", IEEE Trans. Communications 39 (1991).
#pragma once

#include <cstdint>
#include <functional>

#include "core/communicator.h"
#include "core/operation_recorder.h"

namespace shardproof {

// Collective. `now` is this rank's clock, in nanoseconds; `host` makes tensors that the communicator moves. Of a round
// trip that left at a, was answered at b and was back at c the offset is (a + c) / 2 - b, right within (c - a) / 2 if
// neither clock runs faster meanwhile.
ClockOffset measure_clock_offset(Communicator& world, Device& host, const std::function<std::int64_t()>& now);

}  // namespace shardproof
