// The committed table of fingerprints: it must be that of the code as it is, and faults must be recognised by it. A
// table that is stale would silently recognise nothing.
#include "tests/zoo/fingerprints.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "sim/simulation.h"
#include "tests/zoo/switch.h"
#include "tests/zoo/zoo.h"

namespace shardproof::zoo {
namespace {

using testing::HasSubstr;

constexpr const char* kStale = "verify/data/fingerprints.json is stale: tools/renew_fingerprints.sh makes it anew";

FingerprintTable committed_table() {
  return FingerprintTable::read(std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "verify/data/fingerprints.json");
}

const Fault& fault_named(std::string_view name) { return *std::ranges::find(all_faults(), name, &Fault::name); }

const KnownMistake* find_in(const FingerprintTable& table, std::string_view name) {
  const auto found = std::ranges::find(table.mistakes, name, &KnownMistake::name);
  return found == table.mistakes.end() ? nullptr : &*found;
}

// A sample; another test writes the whole and compares.
TEST(CommittedFingerprints, AreThoseOfTheCode) {
  const FingerprintTable table = committed_table();
  FaultPrinter printer;
  EXPECT_EQ(table.correct, printer.correct()) << kStale;
  for (const Fault* fault : chosen_faults({.seed = 5})) {
    const KnownMistake* known = find_in(table, fault->name);
    const KnownMistake now = printer.print(*fault);
    EXPECT_EQ(known == nullptr, now.prints.empty()) << fault->name << ": " << kStale;
    if (known == nullptr) continue;
    EXPECT_EQ(known->prints, now.prints) << fault->name << ": " << kStale;
    EXPECT_EQ(known->what, now.what) << kStale;
  }
}

TEST(CommittedFingerprints, AreOfFaultsThatExist) {
  for (const KnownMistake& mistake : committed_table().mistakes) {
    EXPECT_NE(std::ranges::find(all_faults(), mistake.name, &Fault::name), all_faults().end())
        << mistake.name << ": " << kStale;
  }
}

TEST(FaultPrinter, FindsFaultsOfSeveralKindsAgain) {
  const FingerprintTable table = committed_table();
  FaultPrinter printer;
  for (const char* name : {"RING_SKIP_LAST", "TP_AR_SKIP_ATTN", "UA_HPAD_FIRST", "PLAN_IDS_WHOLE", "ROPE_LOCAL"}) {
    const Identification found = printer.identify(fault_named(name), table);
    EXPECT_TRUE(found.is_alone) << name << ": " << found.said;
    EXPECT_THAT(found.said, HasSubstr(name));
    EXPECT_THAT(found.said, HasSubstr(found.model));
  }
}

TEST(FaultPrinter, HasNoFingerprintOfAFaultOfRoundingAlone) {
  EXPECT_EQ(find_in(committed_table(), "BF16_MERGE"), nullptr);
  FaultPrinter printer;
  EXPECT_EQ(printer.identify(fault_named("BF16_MERGE"), committed_table()).model, "");
}

TEST(FaultPrinter, TakesNoFaultForCorrectCode) {
  const FaultSwitch on("RING_SKIP_LAST");
  FaultPrinter printer;
  try {
    printer.correct();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("correct code does not compute what its dense run does"));
  }
}

TEST(ReachRecorder, KnowsTheFaultsWhoseStatementsWereReached) {
  const ReachRecorder recorder;
  run_ranks({.world_size = 2}, [](Communicator&) { static_cast<void>(active(id("RING_START_OWN"))); });
  static_cast<void>(active(id("RING_SKIP_LAST")));  // by no rank
  EXPECT_EQ(recorder.reached(), std::set<std::uint64_t>{id("RING_START_OWN")});
}

TEST(ReachRecorder, IsOneAtATime) {
  const ReachRecorder recorder;
  try {
    const ReachRecorder second;
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "another recorder is at work; one at a time");
  }
}

}  // namespace
}  // namespace shardproof::zoo
