// Guarded stacks for fibers: an inaccessible guard below 512 KiB of stack, of which only touched pages cost memory.
// Stacks are kept for reuse between runs.
#pragma once

#include <cstddef>

namespace shardproof::sim {

struct FiberStack {
  std::byte* low = nullptr;  // the lowest usable byte
  std::byte* top = nullptr;  // one past the highest
  unsigned valgrind_id = 0;
  std::size_t bytes() const { return static_cast<std::size_t>(top - low); }
};

// Throws internal_error if the system gives no more memory or mappings.
FiberStack acquire_stack();
void release_stack(const FiberStack& stack) noexcept;

}  // namespace shardproof::sim
