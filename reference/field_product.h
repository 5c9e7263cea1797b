// Matrix products modulo p and q, the inner loops of exact arithmetic. One operand is packed in panels of eight columns
// (whole vectors), the other is broadcast from where it lies; sums are kept in 64 bits and folded just before they
// could overflow, so that a multiply-add takes two instructions. Source: toolchain notes on products modulo 2^31.
#pragma once

#include <cstdint>

namespace shardproof::field {

inline constexpr std::int64_t kPanel = 8;    // columns of a packed panel
inline constexpr std::int64_t kRowTile = 4;  // rows that are computed at once

enum class Modulus : std::uint8_t { p, q };

// Elements of 32 bits in rows, `stride` and `step` counted in them.
struct Rows {
  const std::uint32_t* data = nullptr;
  std::int64_t stride = 0;  // from row to row
  std::int64_t step = 1;    // within a row
};

// sums[i][j] = sum over t < depth of rows[i][t] * panel[t][j] modulo the prime, for i < count <= 4 and j < 8. Of every
// 64-bit entry of the panel the lower half counts for p and the upper half for q.
void multiply_panel(Modulus modulus, std::uint32_t (&sums)[kRowTile][kPanel], const Rows& rows, std::int64_t count,
                    const std::uint64_t* panel, std::int64_t depth);

}  // namespace shardproof::field
