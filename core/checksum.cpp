#include "core/checksum.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

#include "core/host_parallel.h"

namespace shardproof {
namespace {

constexpr std::uint64_t kMultiplier = 0x9fb21c651e98df25U;
constexpr std::size_t kChecksumBlock = 16 * 1024;

std::uint64_t word_at(const std::byte* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

// Of at most kChecksumBlock bytes.
std::uint64_t block_checksum(const std::byte* data, std::size_t left) {
  // Four independent chains, so that the multiplications overlap.
  std::uint64_t chains[4] = {1, 2, 3, 4};
  for (; left >= 32; left -= 32, data += 32) {
    for (std::size_t i = 0; i < 4; ++i) chains[i] = (chains[i] ^ word_at(data + 8 * i)) * kMultiplier;
  }
  for (; left >= 8; left -= 8, data += 8) chains[0] = (chains[0] ^ word_at(data)) * kMultiplier;
  for (; left > 0; --left, ++data) chains[1] = (chains[1] ^ static_cast<std::uint64_t>(*data)) * kMultiplier;
  std::uint64_t sum = 0;
  for (const std::uint64_t chain : chains) sum = (sum ^ (chain ^ (chain >> 29U))) * kMultiplier;
  return sum ^ (sum >> 32U);
}

}  // namespace

std::uint64_t checksum_of(const Tensor& tensor) {
  if (!tensor.defined() || tensor.bytes() == 0) return 0;
  const std::size_t bytes = tensor.bytes(), blocks = (bytes + kChecksumBlock - 1) / kChecksumBlock;
  if (blocks == 1) return block_checksum(tensor.data(), bytes);
  // Blocks are independent, and the sum of their mixed checksums does not depend on which thread has which.
  std::atomic<std::uint64_t> sum{0};
  for_ranges(static_cast<std::int64_t>(blocks), kChecksumBlock / 8, [&](std::int64_t first, std::int64_t last) {
    std::uint64_t own = 0;
    for (auto block = static_cast<std::size_t>(first); block < static_cast<std::size_t>(last); ++block) {
      const std::size_t offset = block * kChecksumBlock;
      const std::uint64_t checksum = block_checksum(tensor.data() + offset, std::min(kChecksumBlock, bytes - offset));
      own += (checksum ^ (block + 1)) * kMultiplier;
    }
    sum += own;
  });
  return sum;
}

}  // namespace shardproof
