#include "core/checksum.h"

#include <algorithm>
#include <atomic>
#include <cstddef>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/host_parallel.h"

namespace shardproof {
namespace {

constexpr std::size_t kBlock = 16 * 1024;

}  // namespace

std::uint64_t checksum_of(const Tensor& tensor) {
  if (!tensor.defined() || tensor.bytes() == 0) return 0;
  const std::size_t bytes = tensor.bytes(), blocks = (bytes + kBlock - 1) / kBlock;
  // Blocks are independent, and the sum of their checksums does not depend on which thread has which.
  std::atomic<std::uint64_t> sum{0};
  for_ranges(static_cast<std::int64_t>(blocks), kBlock / 8, [&](std::int64_t first, std::int64_t last) {
    std::uint64_t own = 0;
    for (auto block = static_cast<std::size_t>(first); block < static_cast<std::size_t>(last); ++block) {
      const std::size_t offset = block * kBlock;
      own += XXH3_64bits_withSeed(tensor.data() + offset, std::min(kBlock, bytes - offset), block);
    }
    sum += own;
  });
  return sum;
}

std::uint64_t checksum_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace shardproof
