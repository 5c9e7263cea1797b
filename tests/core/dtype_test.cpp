// The registry of element types.
// Exact scalars are added to it later by the library that defines them, so its refusals count.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

TEST(DType, DescribesThePlainTypes) {
  EXPECT_EQ(kFloat64.size(), 8U);
  EXPECT_EQ(kFloat32.size(), 4U);
  EXPECT_EQ(kBFloat16.size(), 2U);
  EXPECT_EQ(kFloat16.size(), 2U);
  EXPECT_EQ(kInt64.size(), 8U);
  EXPECT_EQ(kBool.size(), 1U);
  EXPECT_EQ(kBFloat16.name(), "bfloat16");
  EXPECT_TRUE(kFloat16.is_value());
  EXPECT_FALSE(kInt64.is_value());
  EXPECT_FALSE(kBool.is_value());
  EXPECT_EQ(kInt64.category(), DTypeCategory::integer);
  EXPECT_EQ(kBool.category(), DTypeCategory::boolean);
}

TEST(DType, HasAWideAndALogTypeForEveryValueType) {
  for (const DType type : {kBFloat16, kFloat16, kFloat32}) {
    EXPECT_EQ(wide_dtype(type), kFloat32);
    EXPECT_EQ(log_dtype(type), kFloat32);
  }
  EXPECT_EQ(wide_dtype(kFloat64), kFloat64);
  EXPECT_EQ(log_dtype(kFloat64), kFloat64);
  EXPECT_EQ(wide_dtype(kInt64), kInt64);
}

TEST(DType, IsFoundByName) {
  EXPECT_EQ(dtype_named("float16"), kFloat16);
  EXPECT_EQ(dtype_named("bool"), kBool);
  const auto error = thrown_by([] { dtype_named("float8"); });
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind, ErrorKind::type_error);
  EXPECT_EQ(
      error->message.rfind("no element type is named 'float8'; known: float64, float32, bfloat16, float16, int64, "
                           "bool",
                           0),
      0U)
      << error->message;
}

TEST(DType, IsRegisteredOnceUnderOneDescription) {
  const DTypeDescription description{.name = "dtype_test_exact", .size = 8, .category = DTypeCategory::exact};
  const DType type = register_dtype(description);
  EXPECT_EQ(register_dtype(description), type);
  EXPECT_EQ(type.size(), 8U);
  EXPECT_EQ(type.name(), "dtype_test_exact");
  EXPECT_TRUE(type.is_value());
  EXPECT_EQ(wide_dtype(type), type);
  EXPECT_EQ(dtype_named("dtype_test_exact"), type);
  const std::string message = "element type 'dtype_test_exact' is registered already with another size or category";
  EXPECT_EQ(thrown_by([&] { register_dtype({.name = "dtype_test_exact", .size = 4}); }),
            thrown(ErrorKind::type_error, message));
  EXPECT_EQ(
      thrown_by([&] { register_dtype({.name = "dtype_test_exact", .size = 8, .category = DTypeCategory::integer}); }),
      thrown(ErrorKind::type_error, message));
}

TEST(DType, TakesDeclaredWideAndLogTypes) {
  const DType value = register_dtype({.name = "dtype_test_value", .size = 8});
  const DType wide = register_dtype({.name = "dtype_test_wide", .size = 8});
  const DType log = register_dtype({.name = "dtype_test_log", .size = 8, .category = DTypeCategory::log_mass});
  set_related_dtypes(value, wide, log);
  EXPECT_EQ(wide_dtype(value), wide);
  EXPECT_EQ(log_dtype(value), log);
  EXPECT_FALSE(log.is_value());
}

}  // namespace
}  // namespace shardproof::test
