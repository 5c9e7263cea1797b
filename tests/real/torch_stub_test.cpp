// A build without LibTorch has a stub in the place of its device: it says how to get the real one. The stub is tested
// in every build, so that it does not rot where LibTorch is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real/torch_device.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

TEST(TorchStub, SaysHowToGetTheDevice) {
  EXPECT_FALSE(torch_is_built());
  const auto error = thrown_by([] { make_torch_device(); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(thrown_by([] { compute_on_torch_stream({}, nullptr); }), error);
  EXPECT_EQ(error->kind, ErrorKind::unsupported_error);
  EXPECT_EQ(error->message,
            "this build has no LibTorch; run tools/setup_python.sh, or name the folder of a LibTorch or of the Python "
            "package torch with -DSHARDPROOF_TORCH_ROOT=FOLDER, and configure again");
}

}  // namespace
}  // namespace shardproof::test
