// Plain loops over host memory, spread over OpenMP threads where the work is large. Which thread does what never shows
// in a result: the ranges are independent.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace shardproof {

// Threads for an operation of so many elementary steps (an element touched, or a few additions) in so many independent
// parts: one where starting others would take longer than the work.
int threads_for(std::int64_t steps, std::int64_t parts);

namespace host_parallel {
using RangeBody = void (*)(const void* context, std::int64_t first, std::int64_t last);
void for_ranges(std::int64_t count, std::int64_t steps, RangeBody body, const void* context);
}  // namespace host_parallel

// Calls body(first, last) for consecutive ranges that cover [0, count), possibly at once on several threads; each of
// the `count` items takes so many elementary steps. The body must not throw. Inside a parallel region, and for little
// work, it is one call.
template <class Body>
void for_ranges(std::int64_t count, std::int64_t steps, const Body& body) {
  host_parallel::for_ranges(
      count, steps,
      [](const void* context, std::int64_t first, std::int64_t last) {
        (*static_cast<const Body*>(context))(first, last);
      },
      std::addressof(body));
}

}  // namespace shardproof
