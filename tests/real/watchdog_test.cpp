// The watchdog: it is heard when time is over, and never when the wait ended in time.
// Times are generous where a slow machine must not fail the test.
#include "real/watchdog.h"

#include <atomic>
#include <future>
#include <optional>

#include <gtest/gtest.h>

namespace shardproof {
namespace {

using std::chrono::milliseconds;

TEST(Watchdog, BarksWhenTimeIsOver) {
  std::promise<void> heard;
  const Watchdog watchdog(milliseconds(10), [&] { heard.set_value(); });
  EXPECT_EQ(heard.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

TEST(Watchdog, IsSilentWhenTheWaitEndsInTime) {
  std::atomic<bool> barked = false;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) Watchdog(std::chrono::hours(1), [&] { barked = true; });
  EXPECT_FALSE(barked);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace shardproof
