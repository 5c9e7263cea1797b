// The stand-in for the NCCL communicator, which is compiled into this program whatever the build has.
// It must say how to get the real one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real/nccl_communicator.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

TEST(NcclStub, SaysHowToBuildTheCommunicator) {
  EXPECT_FALSE(nccl_is_built());
  EXPECT_EQ(nccl_version(), "");
  const auto error = test::thrown_by([] { const NcclSession session({}, nullptr); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::unsupported_error);
  EXPECT_THAT(error->message, testing::AllOf(testing::HasSubstr("this build has no NCCL; run tools/setup_nccl.sh"),
                                             testing::HasSubstr("-DNCCL_ROOT=FOLDER")));
}

}  // namespace
}  // namespace shardproof
