#include "core/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "core/error.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace shardproof {
namespace {

// The address sanitizer treats a block in a free list, and the rest of a block beyond what was asked for, as freed.
void forbid_access([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(data, bytes);
#endif
}

void allow_access([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(data, bytes);
#endif
}

struct ClassOf {
  std::size_t index;
  std::size_t bytes;
};

// Class sizes in units of 64 bytes: 1 2 3 4, 5 6 7 8, 10 12 14 16, 20 24 28 32, ..
ClassOf class_of(std::size_t bytes) {
  const std::size_t last_unit = (std::max<std::size_t>(bytes, 1) - 1) / BlockPool::kAlignment;
  const auto width = static_cast<int>(std::bit_width(last_unit));
  const auto shift = static_cast<std::size_t>(std::max(width - 3, 0));
  const std::size_t step = last_unit >> shift;
  return {.index = shift * 4 + step, .bytes = ((step + 1) << shift) * BlockPool::kAlignment};
}

// Large blocks are cut from slabs that begin at a large page: with small ones, strided reads of keys and values miss
// the translation cache at every row. Sanitizers see each block as an allocation of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kSmallestInSlab = BlockPool::kLargestBlock + 1;
#else
constexpr std::size_t kSmallestInSlab = std::size_t{128} << 10;
#endif
constexpr std::size_t kLargePage = std::size_t{2} << 20;
constexpr std::size_t kSlab = 8 * kLargePage;

}  // namespace

BlockPool::~BlockPool() {
  for (std::byte* slab : slabs_) std::free(slab);
  for (std::size_t index = 0; index < class_of(kSmallestInSlab).index; ++index) {
    SizeClass& size_class = classes_[index];
    while (size_class.first != nullptr) {
      FreeBlock* block = size_class.first;
      allow_access(block, sizeof(FreeBlock));
      size_class.first = block->next;
      std::free(block);
    }
  }
}

std::size_t BlockPool::block_bytes(std::size_t bytes) { return class_of(bytes).bytes; }

std::byte* BlockPool::acquire(std::size_t bytes) {
  SHARDPROOF_CHECK(bytes <= kLargestBlock, internal_error, "there is no memory for a block of {} bytes", bytes);
  const ClassOf wanted = class_of(bytes);
  SizeClass& size_class = classes_[wanted.index];
  {
    const std::lock_guard lock(size_class.mutex);
    if (FreeBlock* block = size_class.first; block != nullptr) {
      allow_access(block, std::max(bytes, sizeof(FreeBlock)));
      size_class.first = block->next;
      return reinterpret_cast<std::byte*>(block);
    }
  }
  std::byte* block = wanted.bytes < kSmallestInSlab ? from_system(wanted.bytes) : from_slab(wanted.bytes);
  SHARDPROOF_CHECK(block != nullptr, internal_error, "there is no memory for a block of {} bytes", bytes);
  system_allocations_.fetch_add(1, std::memory_order_relaxed);
  system_bytes_.fetch_add(wanted.bytes, std::memory_order_relaxed);
  forbid_access(block, wanted.bytes);
  allow_access(block, bytes);
  return block;
}

std::byte* BlockPool::from_system(std::size_t bytes) {
  return static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
}

std::byte* BlockPool::from_slab(std::size_t bytes) {
  const std::lock_guard lock(slab_mutex_);
  if (bytes > slab_left_) {
    const std::size_t size = std::max(kSlab, (bytes + kLargePage - 1) / kLargePage * kLargePage);
    auto* const slab = static_cast<std::byte*>(std::aligned_alloc(kLargePage, size));
    if (slab == nullptr) return nullptr;
    madvise(slab, size, MADV_HUGEPAGE);  // a wish: where it is not granted, nothing changes but the speed
    slabs_.push_back(slab);
    // What is left of the smaller of the two slabs is given up.
    if (size - bytes <= slab_left_) return slab;
    slab_next_ = slab;
    slab_left_ = size;
  }
  std::byte* const block = slab_next_;
  slab_next_ += bytes;
  slab_left_ -= bytes;
  return block;
}

void BlockPool::release(std::byte* block, std::size_t bytes) noexcept {
  const ClassOf held = class_of(bytes);
  SizeClass& size_class = classes_[held.index];
  auto* free_block = reinterpret_cast<FreeBlock*>(block);
  const std::lock_guard lock(size_class.mutex);
  allow_access(free_block, sizeof(FreeBlock));
  free_block->next = size_class.first;
  size_class.first = free_block;
  forbid_access(free_block, held.bytes);
}

}  // namespace shardproof
