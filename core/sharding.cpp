#include "core/sharding.h"

#include <algorithm>

#include "core/error.h"

namespace shardproof {

std::int64_t balanced_size(std::int64_t n, int parts, int part) {
  SHARDPROOF_CHECK(n >= 0 && parts >= 1 && part >= 0 && part < parts, shape_error, "part {} of {} items in {} parts",
                   part, n, parts);
  return n / parts + (part < n % parts ? 1 : 0);
}

std::int64_t balanced_offset(std::int64_t n, int parts, int part) {
  SHARDPROOF_CHECK(n >= 0 && parts >= 1 && part >= 0 && part < parts, shape_error, "part {} of {} items in {} parts",
                   part, n, parts);
  return part * (n / parts) + std::min<std::int64_t>(part, n % parts);
}

std::vector<std::int64_t> balanced_sizes(std::int64_t n, int parts) {
  std::vector<std::int64_t> sizes;
  for (int part = 0; part < parts; ++part) sizes.push_back(balanced_size(n, parts, part));
  return sizes;
}

}  // namespace shardproof
