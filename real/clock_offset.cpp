#include "real/clock_offset.h"

#include <array>
#include <limits>
#include <span>
#include <vector>

#include "core/collectives.h"
#include "core/device.h"

namespace shardproof {
namespace {

constexpr int kRoundTrips = 16;
constexpr std::string_view kPurpose = "clock offsets";

// The number that arrives, if one does; called by every member.
std::int64_t pass(Communicator& world, Device& host, std::int64_t number, int to, int from) {
  const Tensor sent = host.upload(std::as_bytes(std::span(&number, 1)), Shape{1}, kInt64);
  const Tensor received = collectives::exchange(world, sent, to, from, 1, kPurpose).wait();
  std::int64_t result = 0;
  if (from >= 0) host.download(std::as_writable_bytes(std::span(&result, 1)), received);
  return result;
}

// Rank 0 learns the offset of `rank`; the others only take part.
ClockOffset offset_of(Communicator& world, Device& host, const std::function<std::int64_t()>& now, int rank) {
  const bool asks = world.rank() == 0, answers = world.rank() == rank;
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  ClockOffset offset;
  for (int round = 0; round < kRoundTrips; ++round) {
    const std::int64_t left = now();
    pass(world, host, 0, asks ? rank : -1, answers ? 0 : -1);
    const std::int64_t answer = now();
    const std::int64_t answered = pass(world, host, answer, answers ? 0 : -1, asks ? rank : -1);
    const std::int64_t back = now();
    if (!asks || back - left >= best) continue;
    best = back - left;
    offset = {.offset_ns = left + best / 2 - answered, .residual_ns = best / 2 + 1};
  }
  return offset;
}

}  // namespace

ClockOffset measure_clock_offset(Communicator& world, Device& host, const std::function<std::int64_t()>& now) {
  std::vector<std::int64_t> measured(static_cast<std::size_t>(world.size()) * 2, 0);
  for (int rank = 1; rank < world.size(); ++rank) {
    const ClockOffset offset = offset_of(world, host, now, rank);
    measured[static_cast<std::size_t>(rank) * 2] = offset.offset_ns;
    measured[static_cast<std::size_t>(rank) * 2 + 1] = offset.residual_ns;
  }
  const std::vector<std::int64_t> all = collectives::all_gather_numbers(world, measured, kPurpose);
  const auto own = static_cast<std::size_t>(world.rank()) * 2;  // in what rank 0 gathered, which comes first
  return {.offset_ns = all[own], .residual_ns = all[own + 1]};
}

}  // namespace shardproof
