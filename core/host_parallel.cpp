#include "core/host_parallel.h"

#include <omp.h>

#include <algorithm>

namespace shardproof {

int threads_for(std::int64_t steps, std::int64_t parts) {
  constexpr std::int64_t kWorthwhile = 1 << 16;
  if (steps < kWorthwhile || parts < 2 || omp_in_parallel()) return 1;
  // An environment may ask for any number; buffers are allocated for each.
  constexpr int kMostThreads = 1024;
  return std::min(omp_get_max_threads(), kMostThreads);
}

namespace host_parallel {

void for_ranges(std::int64_t count, std::int64_t steps, RangeBody body, const void* context) {
  if (count <= 0) return;
  // Moving an element takes about half of an elementary step of arithmetic.
  const int threads = threads_for(count * steps / 2, count);
  if (threads == 1) return body(context, 0, count);
  const std::int64_t piece = (count + threads - 1) / threads;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int i = 0; i < threads; ++i) {
    const std::int64_t first = std::min(count, i * piece), last = std::min(count, first + piece);
    if (first < last) body(context, first, last);
  }
}

}  // namespace host_parallel
}  // namespace shardproof
