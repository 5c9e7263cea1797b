// How the fake CUDA runtime tells the fake CUPTI what it launches and runs. That one is a library of its own, as the
// product loads it by its path; the runtime finds it where SHARDPROOF_CUPTI_LIBRARY says, once it has been loaded.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardproof::fake_nccl {

struct WatchHooks {
  // Called for each launch by the thread that makes it; the number of the call.
  std::uint32_t (*launched)();
  // The same for one that a thread of a library makes, about which nobody can have said anything.
  std::uint32_t (*launched_elsewhere)();
  // The time, by the clock that was registered.
  std::uint64_t (*now)();
  void (*ran_kernel)(std::uint32_t call, const char* name, const void* stream, std::uint64_t begin, std::uint64_t end);
  void (*ran_copy)(std::uint32_t call, std::size_t bytes, const void* stream, std::uint64_t begin, std::uint64_t end);
};

inline constexpr const char* kWatchHooks = "shardproof_fake_cupti_hooks";

// Null while nobody watches.
const WatchHooks* watch_hooks();

}  // namespace shardproof::fake_nccl
