// The zoo itself: switches every fault on in turn, lets each tier look for it in small configurations, and keeps the
// score. Healthy code must pass wherever a fault is looked for, and every fault must be killed by two configurations.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "reports/text_table.h"
#include "tests/zoo/fault.h"
#include "tests/zoo/fingerprints.h"
#include "tests/zoo/shrinking.h"

namespace shardproof::zoo {

// A fault is alive until this many configurations have killed it.
inline constexpr int kKillsNeeded = 2;
// Of every number of ranks a tier looks into as many configurations, the smallest ones, before it gives a fault up.
inline constexpr int kMostTried = 12;
// The tier of bits is the slowest, and is not asked for more than it shows in few.
inline constexpr int kMostTriedForBits = 6;
// Faults of a run that is neither full nor of one fault.
inline constexpr int kSampledFaults = 12;

struct ZooOptions {
  std::uint64_t seed = 0;
  bool full = false;                               // all faults instead of a sample
  std::optional<std::string> only = std::nullopt;  // one fault
  bool shrink = false;                             // also look for the smallest failure of each
  // Also look for each fault in this table, as verify does (see verify/hypothesis.h).
  std::optional<FingerprintTable> fingerprints = std::nullopt;
};

// What one tier made of one fault.
struct TierScore {
  std::string tier;
  int tried = 0;              // configurations that healthy code passes, and in which the fault can be
  int kills = 0;              // at most kKillsNeeded
  std::string smallest = {};  // of the configurations that killed it
  std::string end = {};       // "differs", "stopped", "refused"
  std::string reason = {};
  double seconds = 0.0;
};

struct FaultScore {
  const Fault* fault = nullptr;
  std::vector<TierScore> tiers = {};
  int kills = 0;         // different configurations
  bool reached = false;  // whether a rank came to the faulty statement
  bool usual = false;    // whether the usual test fails
  // In the smallest configuration that kills it.
  std::string smallest = {};
  std::string expected = {};  // places, see Fault::where
  std::string found = {};     // what the diagnosis says
  bool is_localised = false;
  std::optional<ShrunkFault> shrunk = std::nullopt;
  std::optional<Identification> identification = std::nullopt;
  double seconds = 0.0;
  bool is_killed() const { return kills >= kKillsNeeded; }
};

struct ZooReport {
  ZooOptions options;
  std::vector<std::string> tiers = {};
  std::vector<FaultScore> faults = {};
  int healthy_runs = 0;
  // Configurations in which healthy code does not pass.
  std::vector<std::string> healthy_problems = {};
  double seconds = 0.0;
  bool is_good() const;
};

// The faults that such a run takes. usage_error naming the close ones for a name that no fault has.
std::vector<const Fault*> chosen_faults(const ZooOptions& options);

// `progress` is told the number of faults done, of all, and the next name.
ZooReport run_zoo(const ZooOptions& options, const std::function<void(int, int, std::string_view)>& progress);

// The score table, and what is wrong.
std::string report_text(const ZooReport& report);
// Its parts: every fault with what each tier made of it; how many faults each tier kills; the smallest failures; and
// what stands below them, lines that are ended.
TextTable fault_table(const ZooReport& report);
TextTable score_table(const ZooReport& report);
TextTable shrunk_table(const ZooReport& report);
std::string score_words(const ZooReport& report);
std::string shrinking_words(const ZooReport& report);
std::string sample_words(const ZooReport& report);
// Every fault with what it models; those that cannot be, and those that are none.
std::string list_text();
Json report_json(const ZooReport& report);
// A test for every fault, which fails if it is alive, and one for healthy code.
std::string report_junit(const ZooReport& report, const std::string& version);
std::string report_html(const ZooReport& report, const std::string& version);

}  // namespace shardproof::zoo
