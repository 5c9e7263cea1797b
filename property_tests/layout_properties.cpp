// Laws of movement, on integer identifiers and bit for bit: P2, P3, P4, P5, P6, P8 and P9 of the verification
// specification, section 7.
#include <algorithm>

#include "core/host_memory.h"
#include "core/ops.h"
#include "core/sharding.h"
#include "parallel/movement.h"
#include "property_tests/generators.h"
#include "reference/eigen_device.h"
#include "tests/support/rank_results.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

// Any element that is poison, which identifiers never are.
bool has_poison(const HostArray& array) {
  return std::any_of(array.values.begin(), array.values.end(), [](double value) { return value < 0; });
}

RC_GTEST_PROP(Layout, P2_GatheringUndoesShardingAndTooFewAreRefused, ()) {
  const int ranks = 1 + *rc::gen::inRange(0, 8);
  const std::int64_t size = *rc::gen::inRange<std::int64_t>(0, 20);
  const int axis = *rc::gen::inRange(0, 3);
  const bool padded = *rc::gen::arbitrary<bool>();
  const bool balanced = *rc::gen::arbitrary<bool>();
  const ScheduleDraw schedule = *any_schedule();
  Shape shape{2, 3, 2};
  shape[axis] = size;
  const HostArray all = identifiers(shape);
  HostDevice device;
  std::vector<HostArray> gathered;
  const auto error = thrown_by([&] {
    gathered = rank_results(schedule.options(static_cast<std::size_t>(ranks)), [&](Communicator& world) {
      world.set_gather_form(padded ? GatherForm::padded : GatherForm::ragged);
      const Division division = balanced ? Division::balanced : Division::equal;
      const Tensor part = shard(to_device(device, all, kInt64), axis, world, division, "x");
      return to_host(gather(part, axis, world, division, "test"));
    });
  });
  const bool legal = balanced ? size >= ranks : size % ranks == 0;
  RC_ASSERT(error.has_value() == !legal);
  for (const HostArray& copy : gathered) RC_ASSERT(max_difference(copy, all) == 0.0);
}

RC_GTEST_PROP(Layout, P3_SizesAddUpDifferByOneAndFallFromTheFirst, ()) {
  const int parts = 1 + *rc::gen::inRange(0, 64);
  const std::int64_t n = *rc::gen::inRange<std::int64_t>(0, 100000);
  const std::vector<std::int64_t> sizes = balanced_sizes(n, parts);
  std::int64_t sum = 0;
  for (int part = 0; part < parts; ++part) {
    RC_ASSERT(balanced_offset(n, parts, part) == sum);
    sum += sizes[static_cast<std::size_t>(part)];
  }
  RC_ASSERT(sum == n);
  RC_ASSERT(std::is_sorted(sizes.rbegin(), sizes.rend()));
  RC_ASSERT(sizes.front() - sizes.back() <= 1);
}

// Members hold any numbers of tokens, zero among them; heads with and without pads.
RC_GTEST_PROP(Layout, P4_GatheringHeadsUndoesScatteringThem, ()) {
  const std::vector<std::int64_t> lengths = *any_lengths();
  const int members = static_cast<int>(lengths.size());
  const std::int64_t block = 1 + *rc::gen::inRange(0, 4);
  const std::int64_t heads = block * (members - 1) + 1 + *rc::gen::inRange<std::int64_t>(0, 4) % block;
  const ScheduleDraw schedule = *any_schedule();
  HostDevice device;
  const auto results = rank_results(schedule.options(lengths.size()), [&](Communicator& world) {
    const std::int64_t tokens = lengths[static_cast<std::size_t>(world.rank())];
    const Tensor own = to_device(device, identifiers({2, tokens, heads, 2}), kInt64);
    const HeadLayout layout = head_layout(heads, members, Division::balanced);
    const Tensor scattered = scatter_heads(own, layout, lengths, world, "test").wait();
    return to_host(gather_heads(scattered, layout, lengths, world, "test").wait());
  });
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    RC_ASSERT(max_difference(results[rank], identifiers({2, lengths[rank], heads, 2})) == 0.0);
  }
}

RC_GTEST_PROP(Layout, P5_GatheredOutputsOfAllRanksAreIdentical, ()) {
  const std::vector<std::int64_t> lengths = *any_lengths();
  const bool padded = *rc::gen::arbitrary<bool>();
  const ScheduleDraw schedule = *any_schedule();
  HostDevice device;
  const auto results = rank_results(schedule.options(lengths.size()), [&](Communicator& world) {
    world.set_gather_form(padded ? GatherForm::padded : GatherForm::ragged);
    const auto rank = static_cast<std::size_t>(world.rank());
    const Tensor own = to_device(device, HostArray({2, lengths[rank], 2}, world.rank()), kInt64);
    return gather(own, 1, world, Division::balanced, "test");
  });
  for (const Tensor& result : results) RC_ASSERT(bitwise_equal(result, results.front()));
}

// Integers in float64: every order of addition gives the same number.
RC_GTEST_PROP(Layout, P6_AllReduceIsTheSumOverRanksInAnyOrder, ()) {
  const auto ranks = static_cast<std::size_t>(1 + *rc::gen::inRange(0, 7));
  const std::int64_t size = *rc::gen::inRange<std::int64_t>(0, 9);
  const std::uint64_t seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
  const ScheduleDraw schedule = *any_schedule();
  const auto device = make_reference_device(kFloat64);
  std::vector<HostArray> parts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    HostArray part({size});
    const RandomStream stream(seed, "part " + std::to_string(rank));
    for (std::size_t i = 0; i < part.values.size(); ++i)
      part.values[i] = static_cast<double>(stream.below(i, 2000) - 1000);
    parts.push_back(part);
  }
  HostArray sum({size});
  for (const std::int64_t rank : permutation(static_cast<std::int64_t>(ranks), seed)) {
    for (std::size_t i = 0; i < sum.values.size(); ++i)
      sum.values[i] += parts[static_cast<std::size_t>(rank)].values[i];
  }
  const auto results = rank_results(schedule.options(ranks), [&](Communicator& world) {
    const Tensor own = to_device(*device, parts[static_cast<std::size_t>(world.rank())], kFloat64);
    return to_host(collectives::all_reduce(world, own, "test").wait());
  });
  for (const HostArray& result : results) RC_ASSERT(max_difference(result, sum) == 0.0);
}

// Pads go over the wire, are poison there, and are cut off of every piece.
RC_GTEST_PROP(Layout, P8_PadsAreWrittenNeverReadAndTrimmed, ()) {
  const std::vector<std::int64_t> lengths = *any_lengths();
  const auto members = static_cast<std::int64_t>(lengths.size());
  const ScheduleDraw schedule = *any_schedule();
  HostDevice device;
  std::vector<std::vector<HostArray>> pieces(lengths.size());
  const SimulationReport report = run_ranks(schedule.options(lengths.size()), [&](Communicator& world) {
    world.set_gather_form(GatherForm::padded);
    const auto rank = static_cast<std::size_t>(world.rank());
    const Tensor own = to_device(device, HostArray({lengths[rank], 3}, world.rank()), kInt64);
    const Gathered all = collectives::all_gather(world, own, lengths, "test").wait();
    for (int member = 0; member < all.pieces(); ++member) pieces[rank].push_back(to_host(all.piece(member)));
    pieces[rank].push_back(to_host(all.joined()));
  });
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    RC_ASSERT(report.ranks[rank].bytes_sent == (members - 1) * longest * 3 * 8);
    for (std::size_t member = 0; member < lengths.size(); ++member) {
      const HostArray expected({lengths[member], 3}, static_cast<double>(member));
      RC_ASSERT(max_difference(pieces[rank][member], expected) == 0.0);
    }
    RC_ASSERT(!has_poison(pieces[rank].back()));
  }
}

// Identifiers through every movement of a Unified call: heads to tokens, then every chunk of the ring.
RC_GTEST_PROP(Layout, P9_EveryElementStandsWhereTheLayoutSays, ()) {
  const AttentionDraw draw = *any_attention();
  const ProblemShape shape = draw.shape();
  const int ring = draw.mode.ring(), ulysses = draw.mode.ulysses();
  const std::vector<Indices> pieces = pieces_of(shape.streams, draw.mode.ranks());
  std::int64_t tokens = 0;
  for (const std::int64_t length : shape.streams) tokens += length;
  const HostArray all = identifiers({shape.batch, tokens, shape.heads, shape.width});
  HostDevice device;
  const auto results = rank_results(
      {.world_size = draw.mode.ranks(), .schedule_seed = draw.mode.schedule_seed, .workers = 1 + draw.mode.workers},
      [&](Communicator& world) {
        const ContextParallelState state(world, draw.mode.config());
        const Tensor own = to_device(device, selected(all, 1, pieces[static_cast<std::size_t>(world.rank())]), kInt64);
        const HeadLayout layout = head_layout(shape.heads, ulysses, Division::balanced);
        const Indices lengths = gather_size_by_comm(own.size(1), state.ulysses(), "test");
        const Tensor mine = ulysses == 1 ? own : scatter_heads(own, layout, lengths, state.ulysses(), "test").wait();
        const Indices chunks = gather_size_by_comm(mine.size(1), state.ring(), "test");
        std::vector<HostArray> seen{to_host(mine)};
        Tensor held = pack_keys_values(mine, mine);
        for (int step = 1; step < ring; ++step) {
          const int chunk = chunk_at_step(state.ring().rank(), step, ring);
          held = rotate(held, chunks[static_cast<std::size_t>(chunk)], state.ring(), "test").wait();
          seen.push_back(to_host(unpack_values(held)));
        }
        return seen;
      });
  const std::int64_t block = (shape.heads + ulysses - 1) / ulysses;
  for (int rank = 0; rank < draw.mode.ranks(); ++rank) {
    const int u = rank % ulysses, r = rank / ulysses;
    Indices heads;
    for (std::int64_t head = u * block; head < std::min(shape.heads, (u + 1) * block); ++head) heads.push_back(head);
    for (int step = 0; step < ring; ++step) {
      Indices order;
      for (int member = 0; member < ulysses; ++member) {
        const Indices& piece = pieces[static_cast<std::size_t>((r + step) % ring * ulysses + member)];
        order.insert(order.end(), piece.begin(), piece.end());
      }
      const HostArray expected = selected(selected(all, 1, order), 2, heads);
      const HostArray& seen = results[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
      RC_ASSERT(max_difference(seen, expected) == 0.0);
    }
  }
}

}  // namespace
}  // namespace shardproof::test
