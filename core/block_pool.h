// BlockPool: free lists of 64-byte-aligned memory blocks by size class. Small models are bound by allocation, so
// devices take tensors, storage objects and scratch from here; once a run has reached its peak no block comes from the
// system any more. A pool lives as long as anything that holds a handle to it: static and thread-local pools would die
// before the last tensor.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace shardproof {

class BlockPool : public std::enable_shared_from_this<BlockPool> {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kLargestBlock = std::size_t{1} << 40;

  BlockPool() = default;
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // The bytes that a block asked for with `bytes` really has: at most a quarter more, at least 64.
  static std::size_t block_bytes(std::size_t bytes);

  // A block of at least `bytes` bytes, undefined contents, aligned to 64 bytes. Throws shape_error beyond kLargestBlock
  // and where the system has no such block. Safe to call from any thread.
  std::byte* acquire(std::size_t bytes);
  // Gives a block back; `bytes` is what it was asked for with. Safe to call from any thread.
  void release(std::byte* block, std::size_t bytes) noexcept;

  // Blocks taken from the system so far, and their bytes.
  std::int64_t system_allocations() const { return system_allocations_.load(std::memory_order_relaxed); }
  std::size_t system_bytes() const { return system_bytes_.load(std::memory_order_relaxed); }

 private:
  struct FreeBlock {
    FreeBlock* next;
  };
  struct SizeClass {
    std::mutex mutex;
    FreeBlock* first = nullptr;
  };
  // Memory for a block of its class's size.
  std::byte* from_system(std::size_t bytes);
  // A piece of a slab that the system may map by large pages.
  std::byte* from_slab(std::size_t bytes);

  // Four classes for each power of two.
  static constexpr std::size_t kClasses = 4 * 60;

  std::array<SizeClass, kClasses> classes_;
  std::mutex slab_mutex_;
  std::vector<std::byte*> slabs_;
  std::byte* slab_next_ = nullptr;
  std::size_t slab_left_ = 0;
  std::atomic<std::int64_t> system_allocations_{0};
  std::atomic<std::size_t> system_bytes_{0};
};

// A block that goes back to its pool at the end of the scope: scratch of one operation.
class PoolBlock {
 public:
  PoolBlock(BlockPool& pool, std::size_t bytes) : pool_(&pool), data_(pool.acquire(bytes)), bytes_(bytes) {}
  ~PoolBlock() { pool_->release(data_, bytes_); }
  PoolBlock(const PoolBlock&) = delete;
  PoolBlock& operator=(const PoolBlock&) = delete;

  std::byte* data() const { return data_; }
  template <class T>
  T* data_as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  BlockPool* pool_;
  std::byte* data_;
  std::size_t bytes_;
};

// Standard allocator over a pool, holding a handle to it; for std::allocate_shared.
template <class T>
class PoolAllocator {
 public:
  using value_type = T;
  explicit PoolAllocator(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {}
  template <class U>
  PoolAllocator(const PoolAllocator<U>& other) : pool_(other.pool()) {}

  T* allocate(std::size_t count) { return reinterpret_cast<T*>(pool_->acquire(count * sizeof(T))); }
  void deallocate(T* block, std::size_t count) noexcept {
    pool_->release(reinterpret_cast<std::byte*>(block), count * sizeof(T));
  }
  const std::shared_ptr<BlockPool>& pool() const { return pool_; }
  template <class U>
  friend bool operator==(const PoolAllocator& a, const PoolAllocator<U>& b) {
    return a.pool() == b.pool();
  }

 private:
  static_assert(alignof(T) <= BlockPool::kAlignment);
  std::shared_ptr<BlockPool> pool_;
};

}  // namespace shardproof
