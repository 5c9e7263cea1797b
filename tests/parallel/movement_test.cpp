// Movement on integer identifiers, bit for bit, against the layout as the specification's worked examples state it. An
// identifier says which batch item, token, head and channel an element is; poison is -1, so that a pad which reaches a
// result shows.
#include "parallel/movement.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/mesh.h"
#include "core/ops.h"
#include "parallel/attention_mask.h"
#include "tests/support/host_array.h"
#include "tests/support/layout.h"
#include "tests/support/rank_results.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;

class MovementTest : public testing::Test {
 protected:
  Tensor on_device(const HostArray& array) { return to_device(device, array, kInt64); }
  // Rows of tokens [batch, tokens, ..] that a flat rank holds.
  static HostArray tokens_of(const HostArray& array, const Indices& tokens) { return selected(array, 1, tokens); }
  HostDevice device;
};

// What a rank has after the exchange: the tokens of all ranks, its own heads.
HostArray expected_heads(const HostArray& all, const Indices& order, const Indices& heads) {
  return selected(selected(all, 1, order), 2, heads);
}

TEST_F(MovementTest, ScattersHeadsAsWorkedExampleAStates) {
  // Three ranks, five heads, text 7 (3,2,2), image 10 (4,3,3); dense token t is text, 7 + i is image.
  const std::vector<Indices> pieces{{0, 1, 2, 7, 8, 9, 10}, {3, 4, 11, 12, 13}, {5, 6, 14, 15, 16}};
  const Indices order{0, 1, 2, 7, 8, 9, 10, 3, 4, 11, 12, 13, 5, 6, 14, 15, 16};
  const std::vector<Indices> heads{{0, 1}, {2, 3}, {4}};
  EXPECT_EQ(pieces_of(std::array<std::int64_t, 2>{7, 10}, 3), pieces);
  const HostArray all = identifiers({2, 17, 5, 2});
  const auto results = rank_results(3, [&](Communicator& world) {
    const Tensor own = on_device(tokens_of(all, pieces[static_cast<std::size_t>(world.rank())]));
    const HeadLayout layout = head_layout(5, 3, Division::balanced);
    const Indices lengths = gather_size_by_comm(own.size(1), world, "test");
    const Tensor scattered = scatter_heads(own, layout, lengths, world, "test").wait();
    const Tensor back = gather_heads(scattered, layout, lengths, world, "test").wait();
    const Tensor image = gather(own.narrow(1, own.size(1) - (world.rank() == 0 ? 4 : 3), world.rank() == 0 ? 4 : 3), 1,
                                world, Division::balanced, "test");
    return std::tuple(lengths, to_host(scattered), to_host(back), to_host(image));
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const auto& [lengths, scattered, back, image] = results[rank];
    EXPECT_THAT(lengths, ElementsAre(7, 5, 5));
    EXPECT_EQ(max_difference(scattered, expected_heads(all, order, heads[rank])), 0.0) << rank;
    EXPECT_EQ(max_difference(back, tokens_of(all, pieces[rank])), 0.0) << rank;
    EXPECT_EQ(max_difference(image, tokens_of(all, {7, 8, 9, 10, 11, 12, 13, 14, 15, 16})), 0.0) << rank;
  }
}

TEST_F(MovementTest, GathersTheMaskOfWorkedExampleBByTrueLengths) {
  // Text mask m0..m6 = 1 0 1 0 1 0 1, image all true.
  const std::vector<std::vector<double>> local{{1, 0, 1, 1, 1, 1, 1}, {0, 1, 1, 1, 1}, {0, 1, 1, 1, 1}};
  const Indices lengths{7, 5, 5};
  for (const GatherForm form : {GatherForm::ragged, GatherForm::padded}) {
    const auto results = rank_results(3, [&](Communicator& world) {
      world.set_gather_form(form);
      const auto& own = local[static_cast<std::size_t>(world.rank())];
      const AttentionMask mask{
          .values = ops::from_doubles(device, own, {1, 1, 1, static_cast<std::int64_t>(own.size())}, kBool)};
      return ops::to_doubles(
          mask_after_head_scatter(mask, head_layout(5, 3, Division::balanced), lengths, lengths, world).values);
    });
    for (const auto& mask : results) {
      EXPECT_THAT(mask, ElementsAre(1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1));
    }
  }
}

TEST_F(MovementTest, VisitsChunksInTheOrderOfWorkedExampleC) {
  const auto visits = [](int rank) {
    return std::vector{chunk_at_step(rank, 0, 3), chunk_at_step(rank, 1, 3), chunk_at_step(rank, 2, 3)};
  };
  EXPECT_THAT(visits(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(visits(1), ElementsAre(1, 2, 0));
  EXPECT_THAT(visits(2), ElementsAre(2, 0, 1));
}

TEST_F(MovementTest, HoldsAfterEachRotationTheChunkOfTheSchedule) {
  const Indices lengths{3, 1, 2};
  const auto results = rank_results(3, [&](Communicator& world) {
    Tensor held = on_device(HostArray({lengths[static_cast<std::size_t>(world.rank())], 2}, world.rank()));
    std::vector<HostArray> seen;
    for (int step = 0; step < 3; ++step) {
      seen.push_back(to_host(held));
      const auto next = static_cast<std::size_t>(chunk_at_step(world.rank(), step + 1, 3));
      held = rotate(held, lengths[next], world, "test").wait();
    }
    seen.push_back(to_host(held));
    return seen;
  });
  for (int rank = 0; rank < 3; ++rank) {
    for (int step = 0; step <= 3; ++step) {
      const int chunk = (rank + step) % 3;
      const HostArray expected({lengths[static_cast<std::size_t>(chunk)], 2}, chunk);
      EXPECT_EQ(max_difference(results[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)], expected), 0.0)
          << "rank " << rank << ", step " << step;
    }
  }
}

TEST_F(MovementTest, HoldsTheUnifiedLayoutOfWorkedExampleD) {
  const HostArray all = identifiers({1, 8, 4, 1});
  const std::vector<Indices> chunk{{0, 1, 2, 3}, {0, 1, 2, 3}, {4, 5, 6, 7}, {4, 5, 6, 7}};
  const std::vector<Indices> heads{{0, 1}, {2, 3}, {0, 1}, {2, 3}};
  const auto results = rank_results(4, [&](Communicator& world) {
    const Mesh mesh({"ring", "ulysses"}, {2, 2});
    const auto ulysses = split_along(world, mesh, std::array<std::string_view, 1>{"ulysses"}, "ulysses");
    const auto ring = split_along(world, mesh, std::array<std::string_view, 1>{"ring"}, "ring");
    const Tensor own = shard(on_device(all), 1, world, Division::equal, "x");
    const Tensor mine =
        scatter_heads(own, head_layout(4, 2, Division::equal), std::array<std::int64_t, 2>{2, 2}, *ulysses, "test")
            .wait();
    const Tensor packed = pack_keys_values(mine, mine);
    const Tensor other = rotate(packed, 4, *ring, "test").wait();
    return std::tuple(to_host(own), to_host(mine), to_host(unpack_keys(other)));
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const auto& [own, mine, other] = results[rank];
    const auto first = static_cast<std::int64_t>(2 * rank);
    EXPECT_EQ(max_difference(own, tokens_of(all, {first, first + 1})), 0.0) << rank;
    EXPECT_EQ(max_difference(mine, expected_heads(all, chunk[rank], heads[rank])), 0.0) << rank;
    EXPECT_EQ(max_difference(other, expected_heads(all, chunk[(rank + 2) % 4], heads[rank])), 0.0) << rank;
  }
}

// Text and image uneven apart, heads with pads: the exchange and its inverse, for every legal small shape.
TEST_F(MovementTest, GatheringHeadsUndoesScatteringThem) {
  int legal = 0;
  for (int members = 1; members <= 5; ++members) {
    for (std::int64_t heads = 1; heads <= 11; ++heads) {
      if (thrown_by([&] { head_layout(heads, members, Division::balanced); })) continue;
      ++legal;
      const std::array<std::int64_t, 2> streams{members + 2, 2 * members + 3};
      const std::vector<Indices> pieces = pieces_of(streams, members);
      const HostArray all = identifiers({2, streams[0] + streams[1], heads, 3});
      const auto results = rank_results(members, [&](Communicator& world) {
        const Tensor own = on_device(tokens_of(all, pieces[static_cast<std::size_t>(world.rank())]));
        const HeadLayout layout = head_layout(heads, members, Division::balanced);
        const Indices lengths = gather_size_by_comm(own.size(1), world, "test");
        const Tensor scattered = scatter_heads(own, layout, lengths, world, "test").wait();
        return std::pair(to_host(scattered), to_host(gather_heads(scattered, layout, lengths, world, "test").wait()));
      });
      std::int64_t head = 0;
      const std::int64_t block = (heads + members - 1) / members;
      for (std::size_t rank = 0; rank < results.size(); ++rank) {
        Indices own_heads;
        for (std::int64_t i = 0; i < block && head < heads; ++i) own_heads.push_back(head++);
        EXPECT_EQ(max_difference(results[rank].first, expected_heads(all, rank_major(pieces), own_heads)), 0.0)
            << members << " members, " << heads << " heads, rank " << rank;
        EXPECT_EQ(max_difference(results[rank].second, tokens_of(all, pieces[rank])), 0.0)
            << members << " members, " << heads << " heads, rank " << rank;
      }
    }
  }
  EXPECT_EQ(legal, 37);
}

TEST_F(MovementTest, GatheringUndoesShardingAlongEveryAxisInBothForms) {
  for (const int axis : {0, 1, 2, -1}) {
    for (const Division division : {Division::equal, Division::balanced}) {
      for (const GatherForm form : {GatherForm::ragged, GatherForm::padded}) {
        const std::int64_t n = division == Division::equal ? 6 : 8;  // 8 in three: 3,3,2; 7 below: 3,2,2
        for (const std::int64_t size : {n, n == 8 ? std::int64_t{7} : n}) {
          Shape shape{4, 5, 6};
          shape[normalised_axis(axis, 3)] = size;
          const HostArray all = identifiers(shape);
          const auto results = rank_results(3, [&](Communicator& world) {
            world.set_gather_form(form);
            const Tensor part = shard(on_device(all), axis, world, division, "x");
            return std::pair(to_host(part), to_host(gather(part, axis, world, division, "test")));
          });
          const std::vector<Indices> pieces = pieces_of(std::array{size}, 3);
          for (std::size_t rank = 0; rank < 3; ++rank) {
            EXPECT_EQ(max_difference(results[rank].first, selected(all, normalised_axis(axis, 3), pieces[rank])), 0.0);
            EXPECT_EQ(max_difference(results[rank].second, all), 0.0);
          }
        }
      }
    }
  }
}

// The sizes of joint pieces are sums of two divisions, never the division of the sum.
TEST_F(MovementTest, GathersJointPiecesByExchangedSizes) {
  const std::vector<Indices> pieces = pieces_of(std::array<std::int64_t, 2>{7, 10}, 3);
  const HostArray all = identifiers({1, 17, 2});
  const auto results = rank_results(3, [&](Communicator& world) {
    const Tensor own = on_device(tokens_of(all, pieces[static_cast<std::size_t>(world.rank())]));
    return to_host(gather(own, 1, world, Division::balanced, "test"));
  });
  for (const HostArray& gathered : results) {
    EXPECT_EQ(max_difference(gathered, tokens_of(all, rank_major(pieces))), 0.0);
  }
}

TEST_F(MovementTest, ShardingIsAView) {
  const Tensor x = on_device(identifiers({4, 2}));
  const auto results = rank_results(2, [&](Communicator& world) { return shard(x, 0, world, Division::equal, "x"); });
  for (const Tensor& part : results) EXPECT_EQ(part.storage(), x.storage());
}

TEST_F(MovementTest, PacksKeysAndValuesIntoRowsThatUnpackToViews) {
  const HostArray k = identifiers({2, 3, 2, 2});
  HostArray v = k;
  for (double& value : v.values) value += 1000;
  const Tensor packed = pack_keys_values(on_device(k), on_device(v));
  EXPECT_EQ(packed.shape(), (Shape{3, 2, 2, 2, 2}));
  EXPECT_TRUE(packed.is_contiguous());
  EXPECT_EQ(max_difference(to_host(unpack_keys(packed)), k), 0.0);
  EXPECT_EQ(max_difference(to_host(unpack_values(packed)), v), 0.0);
  EXPECT_EQ(unpack_keys(packed).storage(), packed.storage());
}

struct HeadRow {
  std::int64_t heads;
  int members;
  std::int64_t pads;
  std::int64_t local;
};

std::string head_refusal(std::int64_t heads, int members, Division division) {
  const auto error = thrown_by([&] { head_layout(heads, members, division); });
  return error ? error->message : "accepted";
}

TEST(HeadLayout, IsTheTableOfTheSpecification) {
  for (const HeadRow& row :
       {HeadRow{24, 5, 1, 5}, {30, 8, 2, 4}, {5, 3, 1, 2}, {8, 3, 1, 3}, {30, 15, 0, 2}, {4, 2, 0, 2}}) {
    const HeadLayout layout = head_layout(row.heads, row.members, Division::balanced);
    EXPECT_EQ(layout.pads, row.pads) << row.heads << " on " << row.members;
    EXPECT_EQ(layout.local, row.local) << row.heads << " on " << row.members;
  }
  const HeadLayout layout = head_layout(30, 8, Division::balanced);
  EXPECT_EQ(layout.real(6), 4);
  EXPECT_EQ(layout.real(7), 2);
  EXPECT_EQ(layout.first(7), 28);
}

TEST(HeadLayout, RefusesWhatTheTableRefusesAndListsWhatIsLegal) {
  EXPECT_EQ(thrown_by([] { head_layout(4, 3, Division::balanced); }),
            thrown(ErrorKind::shape_error,
                   "head padding number 2 should be less than the new local head number 2: 4 heads with "
                   "ulysses_degree 3 leave the last rank without a head; legal degrees are 1, 2, 4"));
  EXPECT_THAT(head_refusal(2, 3, Division::balanced),
              testing::StartsWith("head padding number 1 should be less than the new local head number 1"));
  EXPECT_THAT(head_refusal(30, 16, Division::balanced),
              testing::StartsWith("head padding number 2 should be less than the new local head number 2"));
}

TEST(HeadLayout, RefusesAnEqualDivisionThatDoesNotDivide) {
  EXPECT_EQ(thrown_by([] { head_layout(6, 4, Division::equal); }),
            thrown(ErrorKind::shape_error,
                   "6 attention heads cannot be divided among ulysses_degree 4; it must divide the heads: 1, 2, 3, 6 "
                   "(ulysses_anything accepts 1, 2, 3, 6)"));
  EXPECT_THAT(head_refusal(24, 5, Division::equal),
              testing::EndsWith("it must divide the heads: 1, 2, 3, 4, 6, 8, 12, 24 (ulysses_anything accepts 1, 2, 3, "
                                "4, 5, 6, 8, 12, 24)"));
  EXPECT_THROW(head_layout(6, 4, Division::equal), Refusal);
}

std::optional<ThrownError> shard_error(std::int64_t size, int members, Division division) {
  return thrown_by([&] {
    run_ranks({.world_size = members}, [&](Communicator& world) {
      HostDevice device;
      (void)shard(to_device(device, identifiers({1, size}), kInt64), 1, world, division, "argument 'x'");
    });
  });
}

TEST(Shard, RefusesAnUnequalDivisionAndNamesTheNearestLegalLengths) {
  const auto error = shard_error(13, 4, Division::equal);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::shape_error);
  EXPECT_THAT(error->message,
              testing::StartsWith("rank 0: argument 'x': axis 1 has 13 entries, which 4 ranks cannot divide equally; "
                                  "the nearest legal lengths are 12 and 16; ulysses_anything or ring_anything would "
                                  "accept 13\n"));
}

TEST(Shard, DoesNotPromiseThatAnythingWouldAcceptFewerEntriesThanRanks) {
  const auto error = shard_error(2, 3, Division::equal);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, testing::StartsWith("rank 0: argument 'x': axis 1 has 2 entries, which 3 ranks cannot "
                                                  "divide equally; the next legal length is 3\n"));
}

TEST(Shard, RefusesFewerEntriesThanRanks) {
  const auto error = shard_error(2, 3, Division::balanced);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::shape_error);
  EXPECT_THAT(error->message, testing::StartsWith("rank 0: argument 'x': axis 1 has 2 entries, fewer than the 3 ranks; "
                                                  "at least 3 are needed\n"));
}

TEST(Shard, AcceptsLengthZeroEqually) { EXPECT_FALSE(shard_error(0, 3, Division::equal)); }

TEST(GatherSizeByComm, ReturnsWhatEveryMemberHasAnewEveryTime) {
  const auto results = rank_results(3, [&](Communicator& world) {
    const Indices first = gather_size_by_comm(10 * world.rank(), world, "test");
    const Indices second = gather_size_by_comm(10 * world.rank() + (world.rank() == 1 ? 1 : 0), world, "test");
    return std::pair(first, second);
  });
  for (const auto& [first, second] : results) {
    EXPECT_THAT(first, ElementsAre(0, 10, 20));
    EXPECT_THAT(second, ElementsAre(0, 11, 20));
  }
}

}  // namespace
}  // namespace shardproof::test
