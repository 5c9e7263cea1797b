// The stand-ins for the NCCL communicator, for ranks that share a GPU and for what GPUs tell of themselves, which are
// compiled into this program whatever the build has. They must say how to get the real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real/cuda_threads.h"
#include "real/device_activity.h"
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

TEST(CudaThreadsStub, SaysHowToBuildThem) {
  EXPECT_FALSE(cuda_threads_are_built());
  const auto error = test::thrown_by([] { run_cuda_ranks({}, {}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::unsupported_error);
  EXPECT_THAT(error->message, testing::HasSubstr("this build has no CUDA; run tools/setup_nccl.sh"));
}

TEST(DeviceActivityStub, SaysHowToBuildIt) {
  EXPECT_FALSE(device_activity_is_built());
  const auto error = test::thrown_by([] { (void)watch_device_activity(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::unsupported_error);
  EXPECT_THAT(error->message, testing::HasSubstr("this build has no CUPTI; run tools/setup_nccl.sh"));
}

}  // namespace
}  // namespace shardproof
