// Which keys an attention call counts, and how often: its weights read out exactly, key by key. Attention is linear in
// the values, so with unit vectors for them, in exact arithmetic and before anything is rounded, its output is the
// weight of each key; with its log-sum-exp, carried as a mass, that is a multiple of the weight in the dense attention
// of the same queries and keys, and the multiple is a number that can be named. Source: verification specification,
// section 3.
#pragma once

#include <string>
#include <vector>

#include "verify/parallel_run.h"

namespace shardproof {

// Every different attention call of the run, made again on the same ranks: sentences that name the queries, heads and
// keys that are wrong, "queries 3 to 5 of 7 on rank 1, every head: key 4 (token 1 of rank 2) missing, key 2 (token 2 of
// rank 0) counted 2 times". Empty if every weight is right, or if calls are too large to be read.
std::vector<std::string> wrong_contributors(const ParallelRun& run, const ParallelRunOptions& options);

}  // namespace shardproof
