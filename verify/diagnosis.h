// Where a parallel run first leaves the dense one: the arguments and outputs of every module call on every rank are
// compared with what the dense run has there, whole or in the part that the rank's layout gives it, in the order in
// which the dense run had them. The first that differs, and the pattern of its wrong elements in words, say more than
// the difference of the final output. Source: verification specification, sections 3 and 8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/result.h"
#include "verify/parallel_run.h"

namespace shardproof {

struct DiagnosisInput {
  TreeFactory dense_tree;
  TreeFactory rank_tree;
  std::vector<Arguments> arguments;  // by replica
  ParallelPlans plans;
  ParallelRunOptions options;
  // Relative to the largest value of a dense output; 0: equal to the last bit. Types without rounding are always
  // compared bit by bit.
  double tolerance = 1e-9;
  // Arguments and outputs of all ranks that are kept at once; a run that needs more is not diagnosed.
  std::int64_t most_bytes = std::int64_t{1} << 32;
};

// Of a module call, in the order in which they come about.
enum class Point : std::uint8_t {
  argument,  // as the caller gives it
  division,  // an argument as the plan has divided it
  output,    // as the module computes it
  gather,    // an output as the plan has gathered it
};

// A module in whose code something went wrong.
struct Origin {
  std::string module;
  std::string class_name;
  bool attends = false;     // it calls attention
  bool is_sharded = false;  // tensor parallelism divides its parameters
};

struct EndedRank {
  int rank = 0;
  Origin origin;
  Point point = Point::output;  // what was to come about
};

struct Suspect {
  std::string value;  // name of an argument, "output 0"
  std::string text;
};

struct Diagnosis {
  // False: everything that could be compared was right.
  bool found = false;
  std::string module;  // path; "" is the whole model
  std::string class_name;
  int call = 0;  // 0 = the module's first
  Point point = Point::output;
  std::string value;                // name of the argument ("rotary.1" is one of a list), or number of the output
  Origin origin;                    // of the wrong values: the caller for an argument, else the module itself
  std::vector<WrongRank> ranks;     // that are wrong there
  std::int64_t compared = 0;        // module outputs that were right before it, counted on one rank
  std::int64_t not_comparable = 0;  // shapes that no known layout explains
  std::string not_diagnosed;        // why there is no answer
  // Of a run that ended in a report: where ranks were. Where nothing is wrong before, that is the place of the fault.
  std::vector<EndedRank> ended;
  // Arguments and outputs of the whole model that the plan seems to forget.
  std::vector<Suspect> suspects;
  // The same in sentences, and for programs; the latter only of what was found.
  std::vector<std::string> lines() const;
  std::optional<Locus> locus() const;
};

// Never throws for what goes wrong in the run: what the ranks had recorded until then is compared.
Diagnosis diagnose(const DiagnosisInput& input);

// The places 0..size-1 that are wrong, in words: "4 to 6 of 7 (the tail)", "1, 3, 5 of 6 (every second)", "all 7".
std::string places_text(const std::vector<bool>& wrong);

}  // namespace shardproof
