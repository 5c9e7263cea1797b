// The test that such an implementation usually has: two ranks, equal lengths, no mask, small weights as they are after
// initialisation, and rank 0 alone compared in float32 with a tolerance. The zoo measures what it catches, for
// comparison.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/zoo/fault.h"
#include "verify/parallel_run.h"

namespace shardproof::zoo {

class UsualTest {
 public:
  explicit UsualTest(std::uint64_t seed);
  ~UsualTest();
  UsualTest(const UsualTest&) = delete;
  UsualTest& operator=(const UsualTest&) = delete;

  // Whether it fails with the fault that is on now, on any of the fault's models (FLUX.1 in place of attention alone)
  // in any of its modes that have a form on two ranks.
  bool fails_for(const Fault& fault);

 private:
  struct Bench;
  Bench& bench_of(const std::string& model);
  bool fails(Bench& bench, const ParallelConfig& config, const ParallelPlans& plans, double tolerance);

  std::uint64_t seed_;
  std::map<std::string, std::unique_ptr<Bench>> benches_;
};

}  // namespace shardproof::zoo
