// The door for communication on simulated ranks: what each function moves, in both forms of a gather, the sums in
// member order, and the refusals. The laws of a communicator itself have their own suite.
#include "core/collectives.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "reference/eigen_device.h"
#include "tests/support/host_array.h"
#include "tests/support/rank_results.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Doubles = std::vector<double>;
using Counts = std::vector<std::int64_t>;

class CollectivesTest : public testing::Test {
 protected:
  // Rows of two numbers: 100 * rank + row, and its negative.
  Tensor rows(int rank, std::int64_t count) {
    Doubles values;
    for (std::int64_t row = 0; row < count; ++row) {
      values.push_back(static_cast<double>(100 * rank + row));
      values.push_back(-values.back());
    }
    return ops::from_doubles(*device, values, {count, 2}, kFloat64);
  }
  // First numbers of the rows.
  static Doubles firsts(const Tensor& tensor) { return ops::to_doubles(tensor.narrow(1, 0, 1)); }

  std::unique_ptr<Device> device = make_reference_device(kFloat64);
};

TEST_F(CollectivesTest, AllGatherHandsOutPiecesInMemberOrderInBothForms) {
  const Counts counts{2, 0, 3};
  for (const GatherForm form : {GatherForm::ragged, GatherForm::padded}) {
    const auto results = rank_results(3, [&](Communicator& world) {
      world.set_gather_form(form);
      const Tensor own = rows(world.rank(), counts[static_cast<std::size_t>(world.rank())]);
      const Gathered all = collectives::all_gather(world, own, counts, "test").wait();
      return std::tuple(firsts(all.joined()), firsts(all.piece(2)), firsts(all.piece(1)), all.pieces());
    });
    for (const auto& [joined, last, middle, pieces] : results) {
      EXPECT_THAT(joined, ElementsAre(0, 1, 200, 201, 202));
      EXPECT_THAT(last, ElementsAre(200, 201, 202));
      EXPECT_THAT(middle, testing::IsEmpty());
      EXPECT_EQ(pieces, 3);
    }
  }
}

TEST_F(CollectivesTest, PaddedGatherSendsPoisonBehindTheRowsAndCountsIt) {
  const Counts counts{1, 3};
  const auto bytes = [&](GatherForm form) {
    const SimulationReport report = run_ranks({.world_size = 2}, [&](Communicator& world) {
      world.set_gather_form(form);
      const Tensor own = rows(world.rank(), counts[static_cast<std::size_t>(world.rank())]);
      (void)collectives::all_gather(world, own, counts, "test").wait();
    });
    return std::pair(report.ranks[0].bytes_sent, report.ranks[1].bytes_sent);
  };
  EXPECT_EQ(bytes(GatherForm::ragged), std::pair(std::int64_t{16}, std::int64_t{48}));
  EXPECT_EQ(bytes(GatherForm::padded), std::pair(std::int64_t{48}, std::int64_t{48}));
}

TEST_F(CollectivesTest, EqualAllGatherTakesStridedTensors) {
  const auto results = rank_results(2, [&](Communicator& world) {
    const Tensor turned = rows(world.rank(), 2).transpose(0, 1);
    return ops::to_doubles(collectives::all_gather(world, turned, "test").wait());
  });
  for (const Doubles& values : results) EXPECT_THAT(values, ElementsAre(0, 1, 0, -1, 100, 101, -100, -101));
}

TEST_F(CollectivesTest, AllToAllMovesEachBlockToItsMember) {
  // Member r sends r + 1 rows to member 0 and 2 rows to member 1.
  const auto results = rank_results(2, [&](Communicator& world) {
    const int rank = world.rank();
    const Counts send{rank + 1, 2};
    const Counts receive = rank == 0 ? Counts{1, 2} : Counts{2, 2};
    return firsts(collectives::all_to_all(world, rows(rank, rank + 3), send, receive, "test").wait());
  });
  EXPECT_THAT(results[0], ElementsAre(0, 100, 101));
  EXPECT_THAT(results[1], ElementsAre(1, 2, 102, 103));
}

TEST_F(CollectivesTest, ExchangeSendsAndReceivesOrNeither) {
  // 0 -> 1 -> 2, nobody behind.
  const auto results = rank_results(3, [&](Communicator& world) {
    const int rank = world.rank();
    return firsts(
        collectives::exchange(world, rows(rank, rank + 1), rank == 2 ? -1 : rank + 1, rank - 1, rank, "test").wait());
  });
  EXPECT_THAT(results[0], testing::IsEmpty());
  EXPECT_THAT(results[1], ElementsAre(0));
  EXPECT_THAT(results[2], ElementsAre(100, 101));
}

TEST_F(CollectivesTest, BroadcastAndScatterComeFromTheRoot) {
  const Counts counts{1, 0, 2};
  const auto results = rank_results(3, [&](Communicator& world) {
    const int rank = world.rank();
    const Tensor same = collectives::broadcast(world, rows(rank, 2), 1, "test").wait();
    const Tensor part = collectives::scatter(world, rows(rank, rank == 1 ? 3 : 0), counts, 1, "test").wait();
    collectives::barrier(world, "test");
    return std::pair(firsts(same), firsts(part));
  });
  for (const auto& [same, part] : results) EXPECT_THAT(same, ElementsAre(100, 101));
  EXPECT_THAT(results[0].second, ElementsAre(100));
  EXPECT_THAT(results[1].second, testing::IsEmpty());
  EXPECT_THAT(results[2].second, ElementsAre(101, 102));
}

TEST_F(CollectivesTest, ReduceScatterSumsEveryMembersSlice) {
  const Counts counts{1, 2};
  const auto results = rank_results(2, [&](Communicator& world) {
    return firsts(collectives::reduce_scatter(world, rows(world.rank(), 3), counts, "test").wait());
  });
  EXPECT_THAT(results[0], ElementsAre(100));
  EXPECT_THAT(results[1], ElementsAre(102, 104));
}

// Values whose sum depends on the order: only member order gives these bits.
TEST_F(CollectivesTest, AllReduceAddsInMemberOrderOnEveryMember) {
  const Doubles values{1.0, 1e16, -1e16, 3.0};
  double expected = 0;
  for (const double value : values) expected += value;
  ASSERT_NE(expected, 4.0);
  for (const int workers : {1, 2}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      const auto results =
          rank_results({.world_size = 4, .schedule_seed = seed, .workers = workers}, [&](Communicator& world) {
            const Tensor own = ops::full(*device, {3, 1}, kFloat64, values[static_cast<std::size_t>(world.rank())]);
            return ops::to_doubles(collectives::all_reduce(world, own, "test").wait());
          });
      for (const Doubles& sums : results) EXPECT_THAT(sums, ElementsAre(expected, expected, expected));
    }
  }
}

TEST_F(CollectivesTest, AllReduceKeepsTheShapeAlsoWhereMembersOutnumberElements) {
  const auto results = rank_results(3, [&](Communicator& world) {
    return collectives::all_reduce(world, rows(world.rank(), 1).transpose(0, 1), "test").wait();
  });
  for (const Tensor& sum : results) {
    EXPECT_EQ(sum.shape(), (Shape{2, 1}));
    EXPECT_THAT(ops::to_doubles(sum), ElementsAre(300, -300));
  }
}

TEST_F(CollectivesTest, NumbersOfAllMembersArriveInMemberOrder) {
  const auto results = rank_results(3, [&](Communicator& world) {
    return collectives::all_gather_numbers(world, Counts{world.rank(), std::int64_t{-1} - world.rank()}, "test");
  });
  for (const Counts& numbers : results) EXPECT_THAT(numbers, ElementsAre(0, -1, 1, -2, 2, -3));
}

TEST_F(CollectivesTest, AGroupOfOneReturnsItsOwnTensor) {
  const auto results = rank_results(1, [&](Communicator& world) {
    const Tensor own = rows(0, 2);
    const std::vector<Tensor> all{collectives::all_gather(world, own, "test").wait(),
                                  collectives::all_gather(world, own, Counts{2}, "test").wait().joined(),
                                  collectives::broadcast(world, own, 0, "test").wait(),
                                  collectives::scatter(world, own, Counts{2}, 0, "test").wait(),
                                  collectives::reduce_scatter(world, own, Counts{2}, "test").wait(),
                                  collectives::all_reduce(world, own, "test").wait(),
                                  collectives::all_to_all(world, own, Counts{2}, Counts{2}, "test").wait()};
    std::vector<Doubles> values;
    for (const Tensor& tensor : all) values.push_back(firsts(tensor));
    return values;
  });
  EXPECT_THAT(results[0], testing::Each(Doubles{0, 1}));
}

TEST_F(CollectivesTest, RefusesScalarsAndCountsThatAreNotOnePerMember) {
  const auto message = [&](const std::function<void(Communicator&)>& body) {
    const auto error = thrown_by([&] { run_ranks({.world_size = 2}, body); });
    return error ? std::string(error_kind_name(error->kind)) + ": " + error->message : std::string();
  };
  EXPECT_THAT(message([&](Communicator& world) {
                (void)collectives::all_gather(world, ops::full(*device, {}, kFloat64, 1), "sums").wait();
              }),
              HasSubstr("shape_error: rank 0: all_gather 'sums' of a scalar"));
  EXPECT_THAT(message([&](Communicator& world) {
                (void)collectives::all_gather(world, rows(0, 1), Counts{1}, "parts").wait();
              }),
              HasSubstr("collective_error: rank 0: 'parts' in world got 1 row counts for 2 members"));
  EXPECT_THAT(message([&](Communicator& world) {
                (void)collectives::all_gather(world, rows(0, 1), Counts{2, 1}, "parts").wait();
              }),
              HasSubstr("all_gather of 1 rows, but the counts [2, 1] say otherwise"));
  EXPECT_THAT(message([&](Communicator& world) {
                (void)collectives::all_to_all(world, rows(0, 3), Counts{1, 1}, Counts{1, 1}, "parts").wait();
              }),
              HasSubstr("send counts [1, 1] do not add up to 3 rows"));
  EXPECT_THAT(message([&](Communicator& world) { (void)collectives::broadcast(world, rows(0, 1), 2, "w").wait(); }),
              HasSubstr("broadcast names root 2; the group has members 0..1"));
  EXPECT_THAT(
      message([&](Communicator& world) { (void)collectives::exchange(world, rows(0, 1), 5, -1, 0, "w").wait(); }),
      HasSubstr("exchange names target 5; the group has members 0..1"));
}

TEST_F(CollectivesTest, FindsUnequalLengthsOfAnEqualGatherByTheirCounts) {
  const auto error = thrown_by([&] {
    run_ranks({.world_size = 2}, [&](Communicator& world) {
      (void)collectives::all_gather(world, rows(world.rank(), world.rank() + 1), "equal").wait();
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::collective_error);
  EXPECT_THAT(error->message, HasSubstr("row counts of the gather"));
}

TEST_F(CollectivesTest, RefusesToChangeWhatIsStillBeingSent) {
  const auto changing = thrown_by([&] {
    run_ranks({.world_size = 2}, [&](Communicator& world) {
      const Tensor own = rows(world.rank(), 2);
      Pending<Tensor> pending = collectives::all_gather(world, own, "first");
      ops::copy_into(own, rows(7, 2));
      (void)pending.wait();
    });
  });
  ASSERT_TRUE(changing);
  EXPECT_EQ(changing->kind, ErrorKind::state_error);
  EXPECT_THAT(changing->message, HasSubstr("is changed while it is still being sent"));
}

TEST(Request, PrintsItsSignatureOnOneLine) {
  Request request;
  request.operation = Operation::all_to_all;
  request.purpose = "ulysses: heads of q";
  request.dtype = kFloat32;
  request.row_shape = {2, 2, 16};
  request.send = Tensor({8, 2, 2, 16}, kFloat32);
  request.receive = Tensor({8, 2, 2, 16}, kFloat32);
  request.send_rows = {4, 4};
  request.receive_rows = {4, 4};
  EXPECT_EQ(request.text(), "all_to_all 'ulysses: heads of q' float32 rows of [2, 2, 16], send [4, 4], receive [4, 4]");
}

TEST(Operation, HasANameForEachValue) {
  std::vector<std::string_view> names;
  for (int i = 0; i < kOperationCount; ++i) names.push_back(operation_name(static_cast<Operation>(i)));
  EXPECT_THAT(names, ElementsAre("all_gather", "all_to_all", "broadcast", "scatter", "exchange", "barrier",
                                 "all_gather_numbers", "split"));
}

// One number a rank and slice, chosen so that the sum shows the order: 1e16 + 1 is 1e16.
TEST_F(CollectivesTest, AllReduceAddsInTheOrderThatTheCommunicatorIsSetTo) {
  const auto sums = [&](ReductionOrder order, std::uint64_t seed) {
    const auto results = rank_results(4, [&](Communicator& world) {
      world.set_reduction_order(order, seed);
      const std::unique_ptr<Communicator> group = world.split(0, world.rank(), "inherits");
      const double contribution[] = {1e16, 1, -1e16, 1};
      const Tensor own = ops::full(*device, {4}, kFloat64, contribution[world.rank()]);
      Doubles both = ops::to_doubles(collectives::all_reduce(*group, own, "test").wait());
      const Doubles second = ops::to_doubles(collectives::all_reduce(*group, own, "test").wait());
      both.insert(both.end(), second.begin(), second.end());
      return both;
    });
    for (const Doubles& result : results) EXPECT_EQ(result, results.front()) << reduction_order_name(order);
    return results.front();
  };
  EXPECT_THAT(sums(ReductionOrder::ranks, 0), testing::Each(1));
  EXPECT_THAT(sums(ReductionOrder::tree, 0), testing::Each(0));
  // Owner 0 adds 1, -1e16, 1, 1e16; owner 1 -1e16, 1, 1e16, 1; owner 2 1, 1e16, 1, -1e16; owner 3 1e16, 1, -1e16, 1.
  EXPECT_THAT(sums(ReductionOrder::ring, 0), ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
  const Doubles random = sums(ReductionOrder::random, 5);
  EXPECT_EQ(sums(ReductionOrder::random, 5), random);
  bool differs = false;
  for (std::uint64_t seed = 6; seed < 16; ++seed) differs = differs || sums(ReductionOrder::random, seed) != random;
  EXPECT_TRUE(differs);
}

}  // namespace
}  // namespace shardproof::test
