#include "tests/fake_nccl/fabric.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include <fcntl.h>
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

// What a process of its own has to say at its end.
void report_violations() {
  check_everything_released();
  const std::vector<std::string> found = violations();
  for (const std::string& violation : found) fmt::print(stderr, "the fake NCCL: {}\n", violation);
  if (!found.empty()) _exit(1);
}

std::size_t arenas_begin() { return (sizeof(Shared) + 4095) / 4096 * 4096; }

// A new file is all zeros, which is how everything in it begins.
void open_fabric_file() {
  const char* const path = std::getenv("SHARDPROOF_FAKE_FABRIC");
  const char* const rank = std::getenv("SHARDPROOF_RANK");
  SHARDPROOF_CHECK(path != nullptr && rank != nullptr, state_error,
                   "no fabric was made, and SHARDPROOF_FAKE_FABRIC and SHARDPROOF_RANK do not name one");
  mapped_bytes = arenas_begin() + kMostRanks * kArenaBytes;
  const int file = open(path, O_RDWR | O_CREAT, 0600);
  SHARDPROOF_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(mapped_bytes)) == 0, internal_error,
                   "the fabric '{}' cannot be opened", path);
  void* const memory = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  SHARDPROOF_CHECK(memory != MAP_FAILED, internal_error, "the fabric '{}' cannot be mapped", path);
  base = static_cast<std::byte*>(memory);
  entered_rank = std::atoi(rank);
  // "RANK:LAUNCH": what that rank launches from then on never starts.
  const char* const dropped = std::getenv("SHARDPROOF_FAKE_DROPPED_LAUNCH");
  int who = 0;
  int launch = 0;
  if (dropped != nullptr && std::sscanf(dropped, "%d:%d", &who, &launch) == 2 && who == entered_rank) {
    reinterpret_cast<Shared*>(base)->faults.at(static_cast<std::size_t>(who)).dropped_launch = launch;
  }
  std::atexit(report_violations);
}

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
  static std::once_flag once;
  std::call_once(once, [] {
    if (base == nullptr) open_fabric_file();
  });
  return *reinterpret_cast<Shared*>(base);
}
std::byte* shared_base() { return base; }
std::byte* own_arena() {
  const auto rank = static_cast<std::size_t>(own_rank());
  return base + arenas_begin() + rank * kArenaBytes;
}
int own_rank() {
  shared();
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
