// The line of progress: rewritten in place on a terminal, absent elsewhere.
// The standard error of a test is no terminal, so showing is forced here.
#include "app/progress.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

TEST(Progress, RewritesOneLineAndTakesItAway) {
  testing::internal::CaptureStderr();
  {
    Progress progress(Progress::Show::always);
    progress.step(0, 2, "base: ring ring=2");
    progress.step(1, 2, "b\nc");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "\r\x1b[K0/2 base: ring ring=2\r\x1b[K1/2 b\\x0ac\r\x1b[K");
}

TEST(Progress, ShortensWhatWouldNotFitOnOneLine) {
  testing::internal::CaptureStderr();
  {
    Progress progress(Progress::Show::always);
    progress.step(1, 2, std::string(500, 'x'));
  }
  EXPECT_LT(testing::internal::GetCapturedStderr().size(), 100U);
}

TEST(Progress, IsSilentWhenStandardErrorIsNoTerminal) {
  testing::internal::CaptureStderr();
  {
    Progress progress;
    progress.step(1, 2, "x");
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace shardproof
