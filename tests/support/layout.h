// The layout of context parallelism in a test's own words, without the functions under test: who holds which token of
// which stream. Tokens of several streams (text, image) count on: in dense order stream after stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardproof::test {

using Indices = std::vector<std::int64_t>;

// How many of n things each of `ranks` gets when they are dealt out one by one.
Indices dealt(std::int64_t n, int ranks);
// Dense indices of the tokens that each rank holds: of every stream its run of consecutive tokens, stream after stream.
std::vector<Indices> pieces_of(std::span<const std::int64_t> streams, int ranks);
// All pieces one after the other: the order of a gathered sequence.
Indices rank_major(const std::vector<Indices>& pieces);
// 0 .. n-1.
Indices counting(std::int64_t n);

}  // namespace shardproof::test
