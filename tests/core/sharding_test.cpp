// How n things are divided among ranks: the table of the specification, and the closed form against dealing them out.
// Whether a division is allowed at all is decided by those who divide (movement_test).
#include "core/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/layout.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;

TEST(Sharding, DividesAsTheTableOfTheSpecificationSays) {
  EXPECT_THAT(balanced_sizes(7, 3), ElementsAre(3, 2, 2));
  EXPECT_THAT(balanced_sizes(10, 4), ElementsAre(3, 3, 2, 2));  // not in chunks of three
  EXPECT_THAT(balanced_sizes(8, 3), ElementsAre(3, 3, 2));
  EXPECT_THAT(balanced_sizes(16, 3), ElementsAre(6, 5, 5));
  EXPECT_THAT(balanced_sizes(3, 3), ElementsAre(1, 1, 1));
  EXPECT_THAT(balanced_sizes(2, 3), ElementsAre(1, 1, 0));  // refused by those who divide, see movement_test
  EXPECT_THAT(balanced_sizes(0, 2), ElementsAre(0, 0));
}

TEST(Sharding, DealsOutOneByOneAndKeepsRunsTogether) {
  for (std::int64_t n = 0; n <= 40; ++n) {
    for (int parts = 1; parts <= 9; ++parts) {
      const Indices sizes = dealt(n, parts);
      EXPECT_EQ(balanced_sizes(n, parts), sizes) << n << " in " << parts;
      std::int64_t offset = 0;
      for (int part = 0; part < parts; ++part) {
        EXPECT_EQ(balanced_offset(n, parts, part), offset) << n << " in " << parts << ", part " << part;
        EXPECT_EQ(balanced_size(n, parts, part), sizes[static_cast<std::size_t>(part)]);
        offset += sizes[static_cast<std::size_t>(part)];
      }
    }
  }
}

TEST(Sharding, HoldsForLengthsBeyondThirtyTwoBits) {
  const std::int64_t n = (std::int64_t{1} << 40) + 3;
  EXPECT_EQ(balanced_size(n, 4, 2) + 1, balanced_size(n, 4, 0) + 1);
  EXPECT_EQ(balanced_offset(n, 4, 3) + balanced_size(n, 4, 3), n);
}

TEST(Sharding, RefusesPartsThatDoNotExist) {
  EXPECT_EQ(thrown_by([] { balanced_size(4, 2, 2); }), thrown(ErrorKind::shape_error, "part 2 of 4 items in 2 parts"));
  EXPECT_EQ(thrown_by([] { balanced_size(-1, 2, 0); }),
            thrown(ErrorKind::shape_error, "part 0 of -1 items in 2 parts"));
  EXPECT_EQ(thrown_by([] { balanced_offset(4, 0, 0); }),
            thrown(ErrorKind::shape_error, "part 0 of 4 items in 0 parts"));
}

}  // namespace
}  // namespace shardproof::test
