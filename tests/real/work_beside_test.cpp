// Work beside words to others: words are given until it has ended and none after, on the thread of the caller, and what
// it throws comes out there.
#include "real/work_beside.h"

#include <atomic>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

namespace shardproof {
namespace {

using std::chrono::milliseconds;

TEST(WorkBeside, IsDoneWhileWordsAreGiven) {
  std::atomic<int> words = 0;
  std::thread::id worker;
  work_beside(
      [&] {
        worker = std::this_thread::get_id();
        while (words < 3) std::this_thread::yield();
      },
      milliseconds(1), [&] { ++words; });
  EXPECT_GE(words, 3);
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(WorkBeside, GivesNoWordIfItIsDoneSoon) {
  int words = 0;
  work_beside([] {}, milliseconds(60'000), [&] { ++words; });
  EXPECT_EQ(words, 0);
}

TEST(WorkBeside, ThrowsWhatTheWorkThrows) {
  EXPECT_THROW(work_beside([] { throw std::runtime_error("full"); }, milliseconds(1), [] {}), std::runtime_error);
}

}  // namespace
}  // namespace shardproof
