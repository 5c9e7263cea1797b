#include "sim/fiber_stack.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/error.h"
#include "sim/fiber.h"
#include "sim/memory_checkers.h"

namespace shardproof::sim {
namespace {

constexpr std::size_t kKeptStacks = 1024;

struct Pool {
  std::mutex mutex;
  std::vector<FiberStack> free;
};

// Never destroyed: fibers of other static objects may still end after it.
Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

FiberStack map_stack() {
  const std::size_t bytes = kFiberGuardBytes + kFiberStackBytes;
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  SHARDPROOF_CHECK(memory != MAP_FAILED, internal_error,
                   "no memory for another rank's stack of {} bytes ({}); use fewer ranks", bytes, std::strerror(errno));
  if (mprotect(memory, kFiberGuardBytes, PROT_NONE) != 0) {
    const int error = errno;
    munmap(memory, bytes);
    fail(ErrorKind::internal_error, "no guard for another rank's stack ({}; vm.max_map_count?); use fewer ranks",
         std::strerror(error));
  }
  FiberStack stack;
  stack.low = static_cast<std::byte*>(memory) + kFiberGuardBytes;
  stack.top = static_cast<std::byte*>(memory) + bytes;
  stack.valgrind_id = register_stack(stack.low, stack.top);
  return stack;
}

}  // namespace

FiberStack acquire_stack() {
  {
    const std::lock_guard lock(pool().mutex);
    if (!pool().free.empty()) {
      const FiberStack stack = pool().free.back();
      pool().free.pop_back();
      return stack;
    }
  }
  return map_stack();
}

void release_stack(const FiberStack& stack) noexcept {
  // Frames that never returned leave red zones behind.
  unpoison_memory(stack.low, stack.bytes());
  {
    const std::lock_guard lock(pool().mutex);
    if (pool().free.size() < kKeptStacks) {
      pool().free.push_back(stack);
      return;
    }
  }
  deregister_stack(stack.valgrind_id);
  munmap(stack.low - kFiberGuardBytes, stack.bytes() + kFiberGuardBytes);
}

}  // namespace shardproof::sim
