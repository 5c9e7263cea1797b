// The one function family that decides how n items are divided among ranks (parallelism specification 4.7), so that no
// two places can use different rules.
#pragma once

#include <cstdint>
#include <vector>

namespace shardproof {

// The first n mod parts sizes are floor(n/parts)+1, the rest floor(n/parts): 10 in 4 -> 3,3,2,2. parts >= 1, n >= 0.
std::vector<std::int64_t> balanced_sizes(std::int64_t n, int parts);
// Size and first index of one part of the same division.
std::int64_t balanced_size(std::int64_t n, int parts, int part);
std::int64_t balanced_offset(std::int64_t n, int parts, int part);

}  // namespace shardproof
