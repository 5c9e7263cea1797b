// Every pattern of the table of signatures by made-up rows, each with rows that are nearly so and must not be taken
// for it.
#include "verify/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardproof {
namespace {

using ::testing::IsEmpty;
using ::testing::StartsWith;

const std::vector<double> kRows{1, 2, 3, 5, 7, 11};  // three rows of two

SignatureInput input_of(std::vector<double> actual) {
  return {.channels = 2, .actual = std::move(actual), .expected = kRows, .whole = kRows, .allowed = 1e-12, .ranks = 4};
}

TEST(Signature, NamesRowsOfZeros) {
  EXPECT_THAT(signature_of(input_of({1, 2, 0, 0, 0, 0})), StartsWith("rows of zeros: "));
  EXPECT_THAT(signature_of(input_of({1, 2, 0, 0, 0, 1})), IsEmpty());
}

TEST(Signature, NamesRowsOfOtherPlaces) {
  EXPECT_THAT(signature_of(input_of({1, 2, 7, 11, 3, 5})),
              StartsWith("rows of other places: row 1 has row 2 of the whole; "));
  EXPECT_THAT(signature_of(input_of({1, 2, 7, 11, 3, 6})), IsEmpty());
}

TEST(Signature, NamesAConstantFactor) {
  EXPECT_EQ(signature_of(input_of({4, 8, 12, 20, 28, 44})),
            "a constant factor of 4, the number of ranks: a sum of what was whole already");
  EXPECT_EQ(signature_of(input_of({0.25, 0.5, 0.75, 1.25, 1.75, 2.75})),
            "a constant factor of 0.25, one over the number of ranks: a mean in place of a sum");
  EXPECT_EQ(signature_of(input_of({1, 2, 9, 15, 21, 33})),
            "a constant factor of 3: a scale that is counted twice, or not at all");
  EXPECT_THAT(signature_of(input_of({4, 8, 12, 20, 28, 45})), IsEmpty());
}

TEST(Signature, NamesAVectorTooMuchInEveryRow) {
  EXPECT_THAT(signature_of(input_of({2, 4, 4, 7, 8, 13})), StartsWith("the same vector too much in every row: "));
  EXPECT_THAT(signature_of(input_of({2, 4, 4, 7, 8, 14})), IsEmpty());
}

TEST(Signature, ComparesNamesOfValuesForEqualityOnly) {
  SignatureInput input = input_of({4, 8, 12, 20, 28, 44});
  input.are_numbers = false;
  EXPECT_THAT(signature_of(input), IsEmpty());
  input.actual = {1, 2, 7, 11, 3, 5};
  EXPECT_THAT(signature_of(input), StartsWith("rows of other places: "));
}

TEST(Signature, IsNoneOfRightRows) { EXPECT_THAT(signature_of(input_of(kRows)), IsEmpty()); }

}  // namespace
}  // namespace shardproof
