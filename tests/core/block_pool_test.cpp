// The pool of memory blocks: alignment, size classes, reuse, and use from several threads. Every tensor lies in one of
// its blocks, so a block that is given out twice would corrupt results silently.
#include "core/block_pool.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

TEST(BlockPool, GivesAlignedBlocksOfAtLeastTheSizeAskedFor) {
  BlockPool pool;
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 1000, 4097, 100000}) {
    std::byte* block = pool.acquire(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0U) << bytes;
    std::memset(block, 0x5A, bytes);
    pool.release(block, bytes);
  }
}

TEST(BlockPool, WastesAtMostAQuarterBeyondSmallBlocks) {
  EXPECT_EQ(BlockPool::block_bytes(0), 64U);
  EXPECT_EQ(BlockPool::block_bytes(64), 64U);
  EXPECT_EQ(BlockPool::block_bytes(65), 128U);
  EXPECT_EQ(BlockPool::block_bytes(9 * 64), 10U * 64);
  EXPECT_EQ(BlockPool::block_bytes(17 * 64), 20U * 64);
  std::size_t before = 0;
  for (std::size_t bytes = 257; bytes < std::size_t{1} << 40; bytes += bytes / 7) {
    const std::size_t block = BlockPool::block_bytes(bytes);
    EXPECT_GE(block, bytes);
    EXPECT_LE(block, bytes + std::max<std::size_t>(64, bytes / 4));
    EXPECT_GE(block, before);
    EXPECT_EQ(BlockPool::block_bytes(block), block) << "a block belongs to its own class";
    before = block;
  }
}

TEST(BlockPool, ReusesABlockOfTheSameClassAndCountsWhatItTakesFromTheSystem) {
  BlockPool pool;
  std::byte* first = pool.acquire(1000);
  std::byte* second = pool.acquire(1000);
  EXPECT_NE(first, second);
  EXPECT_EQ(pool.system_allocations(), 2);
  EXPECT_EQ(pool.system_bytes(), 2 * BlockPool::block_bytes(1000));
  pool.release(first, 1000);
  EXPECT_EQ(pool.acquire(970), first);
  EXPECT_EQ(pool.system_allocations(), 2);
  std::byte* other_class = pool.acquire(5000);
  EXPECT_EQ(pool.system_allocations(), 3);
  pool.release(first, 970);
  pool.release(second, 1000);
  pool.release(other_class, 5000);
}

TEST(BlockPool, RefusesWhatTheSystemDoesNotHave) {
  BlockPool pool;
  EXPECT_EQ(thrown_by([&] { pool.acquire(std::size_t{1} << 60); }),
            thrown(ErrorKind::internal_error, "there is no memory for a block of 1152921504606846976 bytes"));
  EXPECT_EQ(thrown_by([&] { pool.acquire(SIZE_MAX); }),
            thrown(ErrorKind::internal_error, "there is no memory for a block of 18446744073709551615 bytes"));
  EXPECT_EQ(pool.system_allocations(), 0);
}

TEST(BlockPool, GivesABlockOfAScopeBack) {
  BlockPool pool;
  std::byte* data = nullptr;
  {
    const PoolBlock block(pool, 300);
    data = block.data();
  }
  const PoolBlock again(pool, 300);
  EXPECT_EQ(again.data(), data);
  EXPECT_EQ(pool.system_allocations(), 1);
}

TEST(BlockPool, OutlivesItsCreatorWhileAnAllocatorHoldsIt) {
  auto pool = std::make_shared<BlockPool>();
  std::shared_ptr<int> value = std::allocate_shared<int>(PoolAllocator<int>(pool), 7);
  const std::weak_ptr<BlockPool> watch = pool;
  pool.reset();
  EXPECT_EQ(*value, 7);
  EXPECT_FALSE(watch.expired());
  value.reset();
  EXPECT_TRUE(watch.expired());
}

// Every thread marks its blocks and finds the marks again; blocks change hands through the pool all the time.
TEST(BlockPool, GivesABlockToOneThreadOnly) {
  BlockPool pool;
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t id = 0; id < wrong.size(); ++id) {
    threads.emplace_back([&, id] {
      for (std::size_t round = 0; round < 2000; ++round) {
        const std::size_t bytes = 64 + round * 37 % 2000;
        const PoolBlock first(pool, bytes);
        const PoolBlock second(pool, bytes);
        std::memset(first.data(), static_cast<int>(id), bytes);
        std::memset(second.data(), static_cast<int>(id + 100), bytes);
        wrong[id] += first.data()[bytes - 1] != static_cast<std::byte>(id) ? 1 : 0;
        wrong[id] += second.data()[bytes - 1] != static_cast<std::byte>(id + 100) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
  // At most two blocks a thread were in use at once, in each of the classes.
  EXPECT_LE(pool.system_allocations(), 4 * 2 * 20);
}

}  // namespace
}  // namespace shardproof::test
