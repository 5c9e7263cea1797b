#include "tests/fake_nccl/fabric.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/error.h"
#include "tests/fake_nccl/fabric_body.h"

namespace shardproof::fake_nccl {
namespace {

// Of this process: where the common memory is mapped, and which rank it is.
std::byte* base = nullptr;
std::size_t mapped_bytes = 0;
int entered_rank = -1;

std::size_t arenas_begin() { return (sizeof(Shared) + 4095) / 4096 * 4096; }

std::uint32_t* bell_word() { return reinterpret_cast<std::uint32_t*>(&shared().bell); }

}  // namespace

void make_fabric(int ranks) {
  SHARDPROOF_CHECK(ranks >= 1 && ranks <= kMostRanks, internal_error, "a fabric for {} ranks", ranks);
  if (base != nullptr) munmap(base, mapped_bytes);
  mapped_bytes = arenas_begin() + static_cast<std::size_t>(ranks) * kArenaBytes;
  void* const memory =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SHARDPROOF_CHECK(memory != MAP_FAILED, internal_error, "no common memory of {} bytes", mapped_bytes);
  base = static_cast<std::byte*>(memory);
  new (base) Shared;
  shared().ranks = ranks;
}

void enter_fabric(int rank) { entered_rank = rank; }

Faults& faults_of(int rank) { return shared().faults[static_cast<std::size_t>(rank)]; }

std::vector<std::string> violations() {
  const int count = std::min<int>(shared().violation_count, static_cast<int>(shared().violations.size()));
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) texts.emplace_back(shared().violations[static_cast<std::size_t>(i)].data());
  return texts;
}

void check_everything_released() {
  const std::string left = leftovers() + communicators_left();
  if (!left.empty()) violate("end of the rank", "never given back:{}", left);
}

Shared& shared() {
  SHARDPROOF_CHECK(base != nullptr, state_error, "no fabric was made");
  return *reinterpret_cast<Shared*>(base);
}
std::byte* shared_base() { return base; }
std::byte* own_arena() { return base + arenas_begin() + static_cast<std::size_t>(own_rank()) * kArenaBytes; }
int own_rank() {
  SHARDPROOF_CHECK(entered_rank >= 0, state_error, "this process has not entered the fabric");
  return entered_rank;
}

void ring_bell() {
  shared().bell.fetch_add(1);
  syscall(SYS_futex, bell_word(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wait_for_bell(std::uint32_t heard) {
  const timespec longest{.tv_sec = 0, .tv_nsec = 5'000'000};
  syscall(SYS_futex, bell_word(), FUTEX_WAIT, heard, &longest, nullptr, 0);
}

void add_violation(std::string_view call, std::string_view text) {
  const int index = shared().violation_count.fetch_add(1);
  if (index >= static_cast<int>(shared().violations.size())) return;
  auto& slot = shared().violations[static_cast<std::size_t>(index)];
  const std::string line = fmt::format("rank {}: {}: {}", own_rank(), call, text);
  std::memcpy(slot.data(), line.data(), std::min(line.size(), slot.size() - 1));
}

std::string_view call_name(Call call) {
  constexpr std::array<std::string_view, 6> kNames{"ncclAllGather", "ncclAllReduce", "ncclBroadcast",
                                                   "ncclSend",      "ncclRecv",      "ncclCommSplit"};
  return kNames[static_cast<std::size_t>(call)];
}

}  // namespace shardproof::fake_nccl
