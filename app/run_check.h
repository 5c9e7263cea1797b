// What `run` says of ranks whatever carries them: whether their outputs are what they must be, in which words, and with
// which exit status.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/options.h"
#include "app/request.h"
#include "verify/verifier.h"

namespace shardproof {

// Equal for equal shapes, types and bits.
std::int64_t hash_of(const Outputs& outputs);

// Looks at every step of one rank: all must return the same bits.
class StepWatch {
 public:
  void see(int step, const Outputs& outputs);
  // The first step that returned other bits than step 0; -1 = none.
  int differing() const { return differing_; }
  std::int64_t hash() const { return hash_; }  // of step 0

 private:
  std::int64_t hash_ = 0;
  int differing_ = -1;
};

// usage_error where no configuration was named; throws what is wrong with the one that was.
void check_configuration(const RunRequest& request);

// A result with what the options say, before anything was run.
VerificationResult result_of_run(const Options& options, const std::string& case_name, const ParallelConfig& config);
// What a rank found, in a form in which ranks can tell it to each other.
struct RankFinding {
  Verdict verdict = Verdict::not_checked;
  std::optional<double> figure = std::nullopt;
  double max_abs = 0.0;
  std::vector<std::int64_t> index = {};
  std::string reason = {};
};
RankFinding finding_from(const VerificationResult& of_rank);
RankFinding nothing_compared();
std::string bits_difference(int rank);
std::string step_difference(int rank, const StepWatch& watch);
// The verdict of all: DIFFERENT if one is, NOT CHECKED if one is, else verified; with the worst figure.
void conclude(const std::vector<RankFinding>& ranks, VerificationResult& result);

// Notes, what is not covered, messages and status, once all cases are done.
void finish_run(const Options& options, const RunRequest& request, int ranks, CommandOutcome& outcome);

}  // namespace shardproof
