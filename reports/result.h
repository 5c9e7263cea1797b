// The one data model of a result, which every printer takes: what was run, on what, and what was found. A new format is
// a new printer of it.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/profile.h"
#include "reports/trace_diff.h"

namespace shardproof {

// The words of a verdict, and no others.
enum class Verdict : std::uint8_t { exact, rounding_equivalent, different, refused, not_checked };
// "EXACT", "ROUNDING-EQUIVALENT", "DIFFERENT", "REFUSED", "NOT CHECKED".
std::string_view verdict_word(Verdict verdict);
// That word: a test that expects another verdict shows it.
std::ostream& operator<<(std::ostream& stream, Verdict verdict);
// EXACT or ROUNDING-EQUIVALENT.
bool is_verified(Verdict verdict);

struct WorstElement {
  int rank = 0;
  std::vector<std::int64_t> index;
};

// A plan entry that left its value whole.
struct SkippedNote {
  std::string module;
  std::string argument;  // name, or index of an output
  std::string reason;
  friend bool operator==(const SkippedNote&, const SkippedNote&) = default;
};

// "argument 'timestep' of module ''"; of a number, which is the index of an output, "output 0 of module 'rope'".
std::string entry_text(std::string_view argument, std::string_view module);

// "module 'a.b' (Linear)", "the whole model (ProbeTransformer)".
std::string module_phrase(std::string_view path, std::string_view class_name);

// The value of a module that is the farthest from the float64 run, as a multiple of what it is off in the dense run.
struct ModuleRatio {
  std::string module;  // path; "" is the whole model
  std::string class_name;
  int call = 0;       // 0 = the module's first
  std::string value;  // "output 0", "argument 'temb'"
  double ratio = 0.0;
  int rank = 0;
  std::vector<std::int64_t> index;  // in the rank's tensor
};
// "output 0 of module 'a.b' (Linear), call 2, on rank 1 at [0,3,7]: 18.2".
std::string module_ratio_text(const ModuleRatio& ratio);

// Of all modules, each given the reference's inputs.
struct ModuleRatios {
  std::optional<ModuleRatio> worst = std::nullopt;
  std::optional<ModuleRatio> runner_up = std::nullopt;  // of another module
  std::int64_t modules = 0;
  std::int64_t compared = 0;        // arguments and outputs
  std::int64_t not_comparable = 0;  // of shapes that no division explains
};

// A rank that is wrong at the first place that is, by its largest difference.
struct WrongRank {
  int rank = 0;
  std::string layout;  // what it should have of the whole, in words
  std::string extent;  // which of its elements are wrong, in words
  std::vector<std::int64_t> index;
  std::string actual, expected;
  std::string looks_like;  // a pattern; empty if none
};

// The first value that is wrong, in the order in which the dense run comes to them.
struct Locus {
  std::string module, class_name;  // "" is the whole model
  int call = 0;
  std::string point;          // "argument", "division" (by the plan), "output", "gather" (by the plan)
  std::string value;          // name of the argument, number of the output
  std::string origin;         // path of the module in whose code it comes about
  std::int64_t compared = 0;  // outputs before it that are right
  std::vector<WrongRank> ranks;
};

struct VerificationResult {
  std::string case_name;
  std::string mode;  // ulysses, ulysses_anything, ring, ring_anything, unified
  std::string mesh;  // "ring=2,ulysses=2"
  std::string dtype;
  std::string device;
  std::string tier;           // "exact" or "rounding"
  std::string rotate_method;  // empty where no ring rotates
  bool convert_to_fp32 = true;
  std::uint64_t seed = 0;
  std::uint64_t schedule_seed = 0;
  std::vector<std::int64_t> tokens_per_rank;  // of the first attention, in rank order
  Verdict verdict = Verdict::not_checked;
  std::string reason;
  bool stopped = false;            // DIFFERENT since the run ended in a report instead of a result
  bool plan_does_not_fit = false;  // REFUSED since entries of the plan were skipped, and not by a rule about sizes
  // Relative difference (float64) or rounding ratio (other types).
  std::optional<double> figure = std::nullopt;
  std::optional<double> max_abs = std::nullopt;
  std::optional<WorstElement> worst = std::nullopt;
  // Of these two -1 = nobody counted.
  std::int64_t bytes_sent_per_rank = 0;  // the most that any rank sent; copies to itself are not counted
  std::int64_t collectives = 0;          // calls that move tensors, on the busiest rank
  std::vector<SkippedNote> skipped_entries;
  // Of a difference: the first module output that is wrong, and how; sentences.
  std::vector<std::string> diagnosis = {};
  std::optional<Locus> locus = std::nullopt;  // the place, for programs
  // Of the exact tier: different attention calls and plan entries whose movement was followed by identities, and
  // problems of attention with an answer to the last bit.
  std::int64_t movements_checked = 0;
  std::int64_t bitwise_checked = 0;
  // Of the rounding tier, but in float64: every module by itself, and attention with extreme inputs.
  std::optional<ModuleRatios> modules = std::nullopt;
  std::int64_t extremes_checked = 0;
  // What a verdict on a 16-bit type rests on besides: "exact arithmetic", "float64 (2.1e-16)".
  std::string also_passed = {};
  std::vector<std::string> not_checked = {};  // of all these, what was left out and why
  std::string repeat = {};                    // of a difference: the command line that repeats it
  double seconds = 0.0;
};

// One comparison of our dense model with recorded outputs.
struct OracleResult {
  std::string source;  // the export directory
  std::string model;   // class name
  std::string case_name;
  std::string run;       // "float64 against exact", ..
  bool checked = false;  // false: the export does not hold what this run would be compared with
  bool agrees = false;
  double error = 0.0;                            // largest absolute difference
  double tolerance = 0.0;                        // allowed absolute difference
  std::string first_module;                      // of a trace: the first module that differs; empty if none
  std::string note;                              // why not checked; how many trace entries were compared
  std::vector<std::string> without_counterpart;  // trace keys that our model does not produce
  double seconds = 0.0;
};

// "AGREES", "DISAGREES", "NOT CHECKED".
std::string_view oracle_word(const OracleResult& result);

// One line of a resolved plan. An entry that was skipped has neither axis nor sizes; a case that was refused or failed
// is one line with the reason as its note.
struct PlanRow {
  std::string case_name;
  std::string mode;
  std::string mesh;
  std::string module;    // path; "" is the root
  std::string argument;  // name, or index of an output
  std::string action;    // "split", "gather", a style ("colwise", ..), "whole", "skipped", "refused", "failed"
  std::optional<int> axis = std::nullopt;
  std::optional<std::int64_t> total = std::nullopt;
  std::vector<std::int64_t> per_rank;
  std::string note;
};

// The smallest configuration that fails like one that was found to, if it was looked for.
struct ShrunkResult {
  std::string configuration = {};  // "text=1,image=2,..; ring with ring=2,ulysses=1, allgather"; empty: none was found
  VerificationResult result = {};
  std::string test = {};  // a test in C++ that fails on it
  int tried = 0;          // configurations
  double seconds = 0.0;
  bool was_cut_off = false;  // by its limit of time
};

// Known mistakes that compute in small configurations exactly what was found there, on every rank.
struct Hypothesis {
  struct Mistake {
    std::string name;
    std::string what;
  };
  std::string model;                   // class name
  std::vector<Mistake> mistakes = {};  // at most three, which cannot be told apart
  int others = 0;                      // more of them
  int equal = 0;                       // configurations in which outputs, stop or refusal are the same
  int shown = 0;                       // configurations in which the code at hand differs from correct code
  int configurations = 0;              // all
};
// "NAME (what it models): the same outputs, or the same end, in all 5 small configurations of .. (14 tried)".
std::string hypothesis_text(const Hypothesis& hypothesis);

struct Report {
  std::string command;  // "oracle", "verify", "plan", ..
  std::string version;
  std::vector<std::string> features;
  std::string model;  // class name; of several exports all distinct ones, separated by ", "
  std::vector<std::string> sources;
  std::string plan_name;                         // "default", "shipped" or a file; empty for oracle
  bool is_named = false;                         // one configuration was asked for by name: refusing it is an error
  std::optional<double> allowed = std::nullopt;  // the largest figure that a verified result may have
  std::vector<VerificationResult> verifications;
  std::vector<OracleResult> oracles;
  std::vector<PlanRow> plan;
  std::optional<ShrunkResult> shrunk = std::nullopt;
  std::optional<Hypothesis> hypothesis = std::nullopt;       // of the differences, if one was found
  std::optional<Profile> profile = std::nullopt;             // where the time of the steps went, if they were recorded
  std::optional<TraceComparison> comparison = std::nullopt;  // of trace diff
  // Remarks on the whole run.
  std::vector<std::string> notes;
  // What no result covers.
  std::vector<std::string> not_checked;
};

// The actions of a plan's lines, in the order in which they are counted.
const std::vector<std::string_view>& plan_actions();
// Number of results by verdict word; of a plan's lines by action.
std::map<std::string, int> summary_of(const Report& report);

}  // namespace shardproof
