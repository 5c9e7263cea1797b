// Identities: that they pack and unpack, that attention and its merges keep count of keys, and that every row in the
// wrong place is found and named.
#include "reference/identity_device.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "parallel/softmax_merge.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class IdentityDeviceTest : public testing::Test {
 protected:
  std::shared_ptr<KeySets> sets = std::make_shared<KeySets>();
  IdentityDevice device{sets, 3};

  // [1, tokens, heads, 2] from token `start` on.
  Tensor rows(IdentityRole role, std::int64_t start, std::int64_t tokens, std::int64_t heads = 2) {
    std::vector<std::int64_t> values;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t c = 0; c < 2; ++c) values.push_back(packed({role, 0, start + t, h, c}));
      }
    }
    return device.upload(std::as_bytes(std::span(values)), {1, tokens, heads, 2}, identity_dtype());
  }
  AttentionOutput attend(std::int64_t first_key, std::int64_t keys, const Tensor& mask = {}) {
    return ops::attention(rows(IdentityRole::query, 7, 2), rows(IdentityRole::key, first_key, keys),
                          rows(IdentityRole::value, first_key, keys), mask, 1.0);
  }
  KeySets::Counts counts(const AttentionOutput& output, std::int64_t row) {
    bool is_known = false;
    KeySets::Counts result = sets->counts_of(ops::contiguous(output.lse).data_as<std::int64_t>()[row], is_known);
    EXPECT_TRUE(is_known);
    return result;
  }
};

TEST(IdentityValues, SurvivePacking) {
  for (const Identity& identity :
       {Identity{IdentityRole::query, 0, 0, 0, 0}, Identity{IdentityRole::key, 5, 1234567, 31, 127},
        Identity{IdentityRole::value, kIdentityBatches - 1, kIdentityTokens - 1, kIdentityHeads - 1,
                 kIdentityChannels - 1}}) {
    Identity found;
    EXPECT_TRUE(unpack(packed(identity), found));
    EXPECT_EQ(found, identity);
  }
  Identity found;
  EXPECT_FALSE(unpack(-1, found));
  EXPECT_FALSE(unpack(std::int64_t{3} << 58, found));
  EXPECT_EQ(text_of({IdentityRole::key, 1, 4, 2, 3}), "key token 4, head 2, channel 3 of batch entry 1");
  EXPECT_EQ(thrown_by([] { packed({IdentityRole::key, 64, 4, 2, 3}); }),
            (ThrownError{ErrorKind::shape_error,
                         "key token 4, head 2, channel 3 of batch entry 64 is more than an identity can carry"}));
}

TEST_F(IdentityDeviceTest, CountsKeysAndKeepsTheQuerysIdentity) {
  const AttentionOutput output = attend(1, 3);
  EXPECT_THAT(counts(output, 0), ElementsAre(0, 1, 1, 1));
  Identity first;
  ASSERT_TRUE(unpack(ops::contiguous(output.out).data_as<std::int64_t>()[0], first));
  EXPECT_EQ(first, (Identity{IdentityRole::query, 0, 7, 0, 0}));
  EXPECT_THAT(device.findings(), IsEmpty());
}

TEST_F(IdentityDeviceTest, LeavesOutMaskedKeys) {
  const std::vector<std::byte> attends{std::byte{1}, std::byte{0}, std::byte{1}};
  const Tensor mask = device.upload(attends, {1, 1, 1, 3}, kBool);
  EXPECT_THAT(counts(attend(0, 3, mask), 1), ElementsAre(1, 0, 1));
}

TEST_F(IdentityDeviceTest, AddsWhatPartialResultsHaveMet) {
  const AttentionOutput merged = merge_softmax(attend(0, 2), attend(1, 2));
  EXPECT_THAT(counts(merged, 3), ElementsAre(1, 2, 1));
  EXPECT_THAT(device.findings(), IsEmpty());
}

TEST_F(IdentityDeviceTest, NamesValuesOfOtherKeys) {
  ops::attention(rows(IdentityRole::query, 0, 1), rows(IdentityRole::key, 0, 2), rows(IdentityRole::value, 1, 2), {},
                 1);
  EXPECT_EQ(
      device.findings().front(),
      "rank 3: the value of key token 1, head 0, channel 0 of batch entry 0 came with key token 0, head 0, channel "
      "0 of batch entry 0");
}

TEST_F(IdentityDeviceTest, NamesKeysOfOtherHeads) {
  const Tensor keys = rows(IdentityRole::key, 0, 2, 2).narrow(2, 1, 1), values = rows(IdentityRole::value, 0, 2, 2);
  ops::attention(rows(IdentityRole::query, 0, 1, 1), keys, values.narrow(2, 1, 1), {}, 1);
  EXPECT_EQ(
      device.findings().front(),
      "rank 3: query token 0, head 0, channel 0 of batch entry 0 met key token 0, head 1, channel 0 of batch entry "
      "0");
}

TEST_F(IdentityDeviceTest, NamesMemoryThatNothingWasReceivedInto) {
  ops::attention(rows(IdentityRole::query, 0, 1), device.poisoned({1, 1, 2, 2}, identity_dtype()),
                 rows(IdentityRole::value, 0, 1), {}, 1);
  EXPECT_EQ(
      device.findings().front(),
      "rank 3: attention was given memory that nothing was received into where its key at position 0 of head 0 was "
      "to have channel 0");
}

TEST_F(IdentityDeviceTest, NamesPartialResultsOfDifferentQueries) {
  const AttentionOutput a = attend(0, 1);
  const AttentionOutput b{a.out.narrow(1, 1, 1), a.lse.narrow(1, 1, 1)};
  merge_softmax({a.out.narrow(1, 0, 1), a.lse.narrow(1, 0, 1)}, b);
  EXPECT_THAT(device.findings().front(),
              HasSubstr("partial results of query token 7, head 0, channel 0 of batch entry 0 and query token 8"));
}

TEST_F(IdentityDeviceTest, KeepsAFewFindings) {
  for (int i = 0; i < 4; ++i) {
    ops::attention(rows(IdentityRole::query, 0, 1), rows(IdentityRole::key, 0, 2), rows(IdentityRole::value, 1, 2), {},
                   1);
  }
  EXPECT_EQ(device.findings().size(), 5U);
}

TEST(KeySetsTest, KnowsNothingOfNumbersThatItNeverGave) {
  KeySets sets;
  bool is_known = true;
  EXPECT_THAT(sets.counts_of(-1, is_known), IsEmpty());
  EXPECT_FALSE(is_known);
  EXPECT_EQ(sets.sum_of(sets.number_of({1}), 17), -1);
  EXPECT_EQ(sets.number_of({1, 0, 0}), sets.number_of({1}));
}

}  // namespace
}  // namespace shardproof::test
