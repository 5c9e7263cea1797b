// What the source files of the fake share: the layout of the common memory, and streams as both halves see them.
// Everything in the common memory is plain or atomic, addressed by offsets and never freed while ranks run.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <nccl.h>

#include "tests/fake_nccl/fabric.h"

namespace shardproof::fake_nccl {

inline constexpr int kMostCommunicators = 128;
inline constexpr int kSlots = 16;  // calls of one communicator that can be open at once
inline constexpr std::size_t kArenaBytes = std::size_t{64} << 20U;

enum class Call : int { all_gather, all_reduce, broadcast, send, receive, split };
std::string_view call_name(Call call);

// What a rank says about a call; members must agree about all but memory, colour and key.
struct Terms {
  Call call = Call::all_gather;
  std::size_t count = 0;
  int type = 0;
  int reduction = 0;
  int root = 0;
  std::size_t send = 0;  // offset of what it sends in the common memory
  int color = 0;
  int key = 0;
};

// Numbers only grow: call i is stated when `stated` > i, and its data may be overwritten when `read` > i everywhere.
struct Seat {
  std::atomic<std::uint64_t> stated{0};
  std::atomic<std::uint64_t> read{0};
  Terms terms;
};

struct SharedCommunicator {
  std::atomic<std::uint64_t> key{0};  // 0 = free
  int size = 0;
  std::atomic<int> arrived{0};
  std::atomic<int> gone{0};
  std::array<std::atomic<bool>, kMostRanks> is_present{};
  std::array<std::array<Seat, kMostRanks>, kSlots> collectives;                      // [call % kSlots][rank]
  std::array<std::array<std::array<Seat, kSlots>, kMostRanks>, kMostRanks> letters;  // [from][to][call % kSlots]
};

struct StoredText {
  bool is_set = false;
  std::array<char, 64> key{};
  std::array<char, 16384> value{};
  std::size_t bytes = 0;
};

struct Shared {
  std::atomic<std::uint32_t> bell{0};
  std::atomic<bool> table_lock{false};
  int ranks = 0;
  std::array<Faults, kMostRanks> faults;
  std::atomic<int> violation_count{0};
  std::array<std::array<char, 400>, 64> violations{};
  std::array<SharedCommunicator, kMostCommunicators> communicators;
  std::atomic<bool> store_lock{false};
  std::atomic<bool> is_store_lost{false};
  std::array<StoredText, 64> store{};
};

Shared& shared();
std::byte* shared_base();
std::byte* own_arena();
int own_rank();

// Wakes all ranks that wait for the bell.
void ring_bell();
// Returns soon after the bell has rung since `heard`, or after some milliseconds.
void wait_for_bell(std::uint32_t heard);

void add_violation(std::string_view call, std::string_view text);
template <class... Arguments>
void violate(std::string_view call, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  add_violation(call, fmt::format(format, std::forward<Arguments>(arguments)...));
}

// True if [data, data + bytes) lies in one block of this rank's device or pinned memory; notes a violation otherwise.
bool check_memory(const void* data, std::size_t bytes, std::string_view call, std::string_view role);
// Blocks of memory, streams and events that are left.
std::string leftovers();
std::string communicators_left();

}  // namespace shardproof::fake_nccl

// A stream: a thread that does one thing after the other.
struct CUstream_st {
  CUstream_st();
  ~CUstream_st();
  void add(std::function<void()> task);

  std::atomic<int> unlaunched{0};  // groups of NCCL calls that are still in progress
  std::atomic<bool> is_destroyed{false};

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable signal_;
  std::deque<std::function<void()>> tasks_;
  bool is_stopping_ = false;
  std::thread thread_;
};

namespace shardproof::fake_nccl {
// The stream behind a handle; null is the default stream.
CUstream_st& stream_of(cudaStream_t stream);
}  // namespace shardproof::fake_nccl
