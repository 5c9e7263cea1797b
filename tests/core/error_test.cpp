// The one exception type.
// Kinds are what callers and exit statuses go by, so their spelling is fixed here.
#include "core/error.h"

#include <gtest/gtest.h>

#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

void check_positive(int value) { SHARDPROOF_CHECK(value > 0, config_error, "degree {} must be {}", value, "positive"); }

TEST(Error, CarriesAKindAndAFormattedMessage) {
  EXPECT_EQ(thrown_by([] { check_positive(-3); }), thrown(ErrorKind::config_error, "degree -3 must be positive"));
  EXPECT_EQ(thrown_by([] { check_positive(1); }), std::nullopt);
  EXPECT_EQ(thrown_by([] { fail(ErrorKind::state_error, "rank {}: too late", 2); }),
            thrown(ErrorKind::state_error, "rank 2: too late"));
}

TEST(Error, IsNotCutAtANulByte) {
  try {
    fail(ErrorKind::file_error, "no '{}' here", std::string("a\0b", 3));
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no 'a\\x00b' here");
  }
}

TEST(Error, IsAStandardException) {
  try {
    fail(ErrorKind::file_error, "a {}", "file");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "a file");
    return;
  }
  FAIL() << "nothing was thrown";
}

TEST(Error, NamesItsKinds) {
  EXPECT_EQ(error_kind_name(ErrorKind::config_error), "config_error");
  EXPECT_EQ(error_kind_name(ErrorKind::unsupported_error), "unsupported_error");
  EXPECT_EQ(error_kind_name(ErrorKind::plan_error), "plan_error");
  EXPECT_EQ(error_kind_name(ErrorKind::shape_error), "shape_error");
  EXPECT_EQ(error_kind_name(ErrorKind::state_error), "state_error");
  EXPECT_EQ(error_kind_name(ErrorKind::type_error), "type_error");
  EXPECT_EQ(error_kind_name(ErrorKind::file_error), "file_error");
  EXPECT_EQ(error_kind_name(ErrorKind::usage_error), "usage_error");
  EXPECT_EQ(error_kind_name(ErrorKind::collective_error), "collective_error");
  EXPECT_EQ(error_kind_name(ErrorKind::deadlock_error), "deadlock_error");
  EXPECT_EQ(error_kind_name(ErrorKind::internal_error), "internal_error");
}

}  // namespace
}  // namespace shardproof::test
