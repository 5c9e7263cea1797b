// Masks: declared axes that are checked and never guessed, and what a member of a Ulysses group makes of them.
// Entries are integer identifiers, so that every one can be followed.
#include "parallel/attention_mask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/ops.h"
#include "tests/support/host_array.h"
#include "tests/support/layout.h"
#include "tests/support/rank_results.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

class AttentionMaskTest : public testing::Test {
 protected:
  Tensor values(const Shape& shape) { return to_device(device, identifiers(shape), kInt64); }
  // Against q [2, 3, 4, 5] and 6 local keys.
  AttentionMask normalised(AttentionMask mask) { return normalised_mask(mask, values({2, 3, 4, 5}), 6); }
  std::optional<ThrownError> refusal(const AttentionMask& mask) {
    return thrown_by([&] { normalised(mask); });
  }
  HostDevice device;
};

TEST_F(AttentionMaskTest, LiftsTwoAndThreeDimensionsToFour) {
  EXPECT_EQ(normalised({.values = values({2, 6})}).values.shape(), (Shape{2, 1, 1, 6}));
  EXPECT_EQ(normalised({.values = values({2, 3, 6}), .query_axis = QueryAxis::local}).values.shape(),
            (Shape{2, 1, 3, 6}));
  EXPECT_EQ(normalised({.values = values({1, 4, 1, 6}), .head_axis = HeadAxis::all}).values.shape(),
            (Shape{1, 4, 1, 6}));
  EXPECT_FALSE(normalised({}).defined());
}

TEST_F(AttentionMaskTest, LetsAGlobalKeyAxisHaveAnyLength) {
  EXPECT_EQ(normalised({.values = values({1, 17}), .key_axis = KeyAxis::global}).values.shape(), (Shape{1, 1, 1, 17}));
}

TEST_F(AttentionMaskTest, RefusesAxesThatAreNotWhatTheyAreDeclaredToBe) {
  const auto shape_error = [](std::string message) { return thrown(ErrorKind::shape_error, std::move(message)); };
  EXPECT_EQ(refusal({.values = values({6})}),
            shape_error("an attention mask must have 2, 3 or 4 dimensions, got int64 [6]"));
  EXPECT_EQ(refusal({.values = values({3, 6})}),
            shape_error("attention mask int64 [3, 1, 1, 6] must have batch 2 or 1, not 3"));
  EXPECT_EQ(
      refusal({.values = values({2, 4, 1, 6})}),
      shape_error("attention mask int64 [2, 4, 1, 6]: its head axis is declared 'one' and must have size 1, not 4"));
  EXPECT_EQ(
      refusal({.values = values({2, 1, 1, 6}), .head_axis = HeadAxis::all}),
      shape_error("attention mask int64 [2, 1, 1, 6]: its head axis is declared 'all' and must have size 4, not 1"));
  EXPECT_EQ(
      refusal({.values = values({2, 3, 6})}),
      shape_error("attention mask int64 [2, 1, 3, 6]: its query axis is declared 'one' and must have size 1, not 3"));
  EXPECT_EQ(
      refusal({.values = values({2, 6}), .query_axis = QueryAxis::local}),
      shape_error("attention mask int64 [2, 1, 1, 6]: its query axis is declared 'local' and must have size 3, not 1"));
  EXPECT_EQ(
      refusal({.values = values({2, 7})}),
      shape_error("attention mask int64 [2, 1, 1, 7]: its key axis is declared 'local' and must cover 6 keys, not 7"));
}

TEST_F(AttentionMaskTest, NeedsTheGlobalKeyAxisForRowsOfQueries) {
  const AttentionMask local = normalised({.values = values({2, 3, 6}), .query_axis = QueryAxis::local});
  EXPECT_EQ(
      thrown_by([&] { check_mask_for_exchange(local); }),
      thrown(ErrorKind::unsupported_error,
             "attention mask int64 [2, 1, 3, 6] has a local query axis and a local key axis: it says nothing about "
             "the keys of other ranks; it needs the global key axis"));
  check_mask_for_exchange({});
  check_mask_for_exchange(normalised({.values = values({2, 6})}));
  check_mask_for_exchange(
      normalised({.values = values({2, 3, 9}), .key_axis = KeyAxis::global, .query_axis = QueryAxis::local}));
}

TEST_F(AttentionMaskTest, TravelsAsRowsOfKeys) {
  const HostArray mask = identifiers({2, 3, 1, 4});
  const Tensor rows = mask_to_rows(to_device(device, mask, kInt64));
  EXPECT_EQ(rows.shape(), (Shape{4, 2, 3, 1}));
  EXPECT_EQ(max_difference(to_host(mask_from_rows(rows)), mask), 0.0);
}

// Five heads on three members: the masks of the pads go with the pads. Query rows are gathered by the query lengths,
// keys by theirs.
TEST_F(AttentionMaskTest, BecomesTheMaskOfTheMembersOwnHeads) {
  const Indices query_lengths{2, 1, 1}, key_lengths{3, 2, 2};
  const std::vector<Indices> heads{{0, 1}, {2, 3}, {4}};
  const HostArray key_mask = identifiers({2, 5, 1, 7}), row_mask = identifiers({1, 5, 4, 7});
  const std::vector<Indices> keys{{0, 1, 2}, {3, 4}, {5, 6}}, queries{{0, 1}, {2}, {3}};
  const auto results = rank_results(3, [&](Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const HeadLayout layout = head_layout(5, 3, Division::balanced);
    const AttentionMask by_key{.values = to_device(device, selected(key_mask, 3, keys[rank]), kInt64),
                               .head_axis = HeadAxis::all};
    const AttentionMask by_row{.values = to_device(device, selected(row_mask, 2, queries[rank]), kInt64),
                               .key_axis = KeyAxis::global,
                               .query_axis = QueryAxis::local,
                               .head_axis = HeadAxis::all};
    const AttentionMask none = mask_after_head_scatter({}, layout, query_lengths, key_lengths, world);
    const AttentionMask first = mask_after_head_scatter(by_key, layout, query_lengths, key_lengths, world);
    const AttentionMask second = mask_after_head_scatter(by_row, layout, query_lengths, key_lengths, world);
    return std::tuple(to_host(first.values), to_host(second.values), none.defined());
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto& [by_key, by_row, is_defined] = results[rank];
    EXPECT_EQ(max_difference(by_key, selected(key_mask, 1, heads[rank])), 0.0) << rank;
    EXPECT_EQ(max_difference(by_row, selected(row_mask, 1, heads[rank])), 0.0) << rank;
    EXPECT_FALSE(is_defined);
  }
}

}  // namespace
}  // namespace shardproof::test
