#include "core/block_pool.h"

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

}  // namespace

BlockPool::~BlockPool() {
  for (SizeClass& size_class : classes_) {
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
  void* block = std::aligned_alloc(kAlignment, wanted.bytes);
  SHARDPROOF_CHECK(block != nullptr, internal_error, "there is no memory for a block of {} bytes", bytes);
  system_allocations_.fetch_add(1, std::memory_order_relaxed);
  system_bytes_.fetch_add(wanted.bytes, std::memory_order_relaxed);
  forbid_access(block, wanted.bytes);
  allow_access(block, bytes);
  return static_cast<std::byte*>(block);
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
