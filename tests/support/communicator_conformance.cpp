#include "tests/support/communicator_conformance.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "core/collectives.h"
#include "core/error.h"
#include "core/ops.h"
#include "core/sharding.h"

namespace shardproof::test {
namespace {

using Counts = std::vector<std::int64_t>;
using Tools = ConformanceTools;

constexpr std::array kMovedTypes{kFloat64, kFloat32, kBFloat16, kFloat16, kInt64, kBool};
// Every kind of row: single elements, small blocks, rows without elements.
const std::array kRowShapes{Shape{}, Shape{3}, Shape{2, 5}, Shape{0}};

template <class... Arguments>
void require(bool holds, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  if (!holds) fail(ErrorKind::internal_error, format, std::forward<Arguments>(arguments)...);
}

std::uint64_t mixed(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 31U);
}

// The bytes of row `row` of rank `owner`: finite in every floating type, 0 or 1 for bool, never poison.
void write_row(std::span<std::byte> bytes, DType dtype, int owner, std::int64_t row) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::uint64_t key = (static_cast<std::uint64_t>(owner) << 40U) ^ (static_cast<std::uint64_t>(row) << 16U) ^ i;
    bytes[i] = static_cast<std::byte>(mixed(key + 1) & (dtype == kBool ? 0x01U : 0x3fU));
  }
}

struct RowRange {
  int owner = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

std::vector<std::byte> bytes_of(std::span<const RowRange> ranges, DType dtype, const Shape& row_shape) {
  const std::size_t row_bytes = static_cast<std::size_t>(row_shape.numel()) * dtype.size();
  std::vector<std::byte> bytes;
  for (const RowRange& range : ranges) {
    for (std::int64_t row = range.first; row < range.first + range.count; ++row) {
      bytes.resize(bytes.size() + row_bytes);
      write_row(std::span(bytes).last(row_bytes), dtype, range.owner, row);
    }
  }
  return bytes;
}

Tensor rows_of(Device& device, std::initializer_list<RowRange> ranges, DType dtype, const Shape& row_shape) {
  std::int64_t rows = 0;
  for (const RowRange& range : ranges) rows += range.count;
  return device.upload(bytes_of(ranges, dtype, row_shape), row_shape.inserted(0, rows), dtype);
}

Tensor own_rows(const Communicator& group, const Tools& tools, std::int64_t count, DType dtype = kInt64,
                const Shape& row_shape = Shape{3}) {
  return rows_of(*tools.device, {{group.world_rank(), 0, count}}, dtype, row_shape);
}

std::vector<std::byte> downloaded(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor.device().download(bytes, tensor);
  return bytes;
}

void require_rows(const Tensor& tensor, std::span<const RowRange> expected, std::string_view what) {
  std::int64_t rows = 0;
  for (const RowRange& range : expected) rows += range.count;
  require(tensor.size(0) == rows, "{}: {} has {} rows, expected {}", what, tensor.text(), tensor.size(0), rows);
  const std::vector<std::byte> wanted = bytes_of(expected, tensor.dtype(), tensor.shape().erased(0));
  const std::vector<std::byte> found = downloaded(tensor);
  const auto [at, other] = std::mismatch(found.begin(), found.end(), wanted.begin(), wanted.end());
  require(at == found.end() && other == wanted.end(), "{}: {} differs at byte {}", what, tensor.text(),
          at - found.begin());
}

void require_rows(const Tensor& tensor, std::initializer_list<RowRange> expected, std::string_view what) {
  require_rows(tensor, std::span(expected.begin(), expected.size()), what);
}

void require_equal_bits(const Tensor& found, const Tensor& expected, std::string_view what) {
  require(found.dtype() == expected.dtype() && found.shape() == expected.shape(), "{}: {} instead of {}", what,
          found.text(), expected.text());
  require(downloaded(found) == downloaded(expected), "{}: the bits of {} differ", what, found.text());
}

Counts equal_counts(const Communicator& group, std::int64_t count) {
  return Counts(static_cast<std::size_t>(group.size()), count);
}

// Uneven, with zeros: 2, 0, 5, 1, 3, 2, 0, ..
Counts uneven_counts(int members) {
  constexpr std::array kPattern{2, 0, 5, 1, 3};
  Counts counts;
  for (int member = 0; member < members; ++member) {
    counts.push_back(kPattern[static_cast<std::size_t>(member) % kPattern.size()]);
  }
  return counts;
}

// Rows that member i sends to member j: uneven, zero for some pairs.
std::int64_t personal_rows(int i, int j) { return (i * 3 + j * 2 + 1) % 4; }

std::int64_t count_of(const Counts& counts, int member) { return counts[static_cast<std::size_t>(member)]; }

int world_rank_of(const Communicator& group, int member) { return group.members()[static_cast<std::size_t>(member)]; }

// The rows of all members of a group one after the other.
std::vector<RowRange> everyone(const Communicator& group, const Counts& counts) {
  std::vector<RowRange> ranges;
  for (int member = 0; member < group.size(); ++member) {
    ranges.push_back({world_rank_of(group, member), 0, count_of(counts, member)});
  }
  return ranges;
}

// ---- gathers

void check_gather(Communicator& group, const Tools& tools, const Counts& counts, DType dtype, const Shape& row_shape) {
  const Tensor mine = own_rows(group, tools, count_of(counts, group.rank()), dtype, row_shape);
  const Gathered gathered = collectives::all_gather(group, mine, counts, "law: gather").wait();
  require(gathered.pieces() == group.size(), "{} pieces for {} members", gathered.pieces(), group.size());
  for (int member = 0; member < group.size(); ++member) {
    const std::int64_t rows = count_of(counts, member);
    require(gathered.rows_of(member) == rows, "piece {} is said to have {} rows", member, gathered.rows_of(member));
    require_rows(gathered.piece(member), {{world_rank_of(group, member), 0, rows}}, "gathered piece");
  }
  require_rows(gathered.joined(), everyone(group, counts), "joined pieces");
}

void gather_joins_equal_rows(Communicator& world, const Tools& tools) {
  for (const DType dtype : kMovedTypes) {
    for (const Shape& row_shape : kRowShapes) {
      const Tensor mine = own_rows(world, tools, 4, dtype, row_shape);
      const Tensor all = collectives::all_gather(world, mine, "law: equal gather").wait();
      require_rows(all, everyone(world, equal_counts(world, 4)), "all_gather");
    }
  }
}

void gather_moves_uneven_rows_in_both_forms(Communicator& world, const Tools& tools) {
  for (const GatherForm form : {GatherForm::ragged, GatherForm::padded}) {
    world.set_gather_form(form);
    for (const DType dtype : kMovedTypes) {
      for (const Shape& row_shape : kRowShapes) {
        check_gather(world, tools, uneven_counts(world.size()), dtype, row_shape);
      }
    }
    check_gather(world, tools, equal_counts(world, 3), kFloat32, Shape{2});
  }
}

void gather_of_nothing_is_empty(Communicator& world, const Tools& tools) {
  for (const GatherForm form : {GatherForm::ragged, GatherForm::padded}) {
    world.set_gather_form(form);
    check_gather(world, tools, equal_counts(world, 0), kFloat32, Shape{2});
  }
}

void gather_takes_strided_rows(Communicator& world, const Tools& tools) {
  // Columns 1..2 of [5, 4]: every row is a part of a longer one.
  const Tensor wide = own_rows(world, tools, 5, kInt64, Shape{4});
  const Tensor narrow = wide.narrow(1, 1, 2);
  const Tensor all = collectives::all_gather(world, narrow, "law: strided gather").wait();
  for (int member = 0; member < world.size(); ++member) {
    const Tensor expected =
        rows_of(*tools.device, {{world_rank_of(world, member), 0, 5}}, kInt64, Shape{4}).narrow(1, 1, 2);
    require_equal_bits(ops::contiguous(all.narrow(0, member * 5, 5)), ops::contiguous(expected), "strided gather");
  }
}

// ---- all_to_all

// Member i sends to j the rows [100 j, 100 j + n(i, j)) of its own numbering.
void check_all_to_all(Communicator& group, const Tools& tools, DType dtype, const Shape& row_shape, bool uneven) {
  const auto rows = [uneven](int i, int j) { return uneven ? personal_rows(i, j) : 2; };
  Counts send;
  Counts receive;
  std::vector<RowRange> sent;
  std::vector<RowRange> expected;
  std::int64_t total = 0;
  for (int peer = 0; peer < group.size(); ++peer) {
    send.push_back(rows(group.rank(), peer));
    receive.push_back(rows(peer, group.rank()));
    sent.push_back({group.world_rank(), 100 * peer, send.back()});
    expected.push_back({world_rank_of(group, peer), 100 * group.rank(), receive.back()});
    total += send.back();
  }
  const Tensor mine = tools.device->upload(bytes_of(sent, dtype, row_shape), row_shape.inserted(0, total), dtype);
  const Tensor received = collectives::all_to_all(group, mine, send, receive, "law: all to all").wait();
  require_rows(received, expected, "all_to_all");
  // The way back restores what was sent.
  const Tensor back = collectives::all_to_all(group, received, receive, send, "law: and back").wait();
  require_equal_bits(back, mine, "all_to_all there and back");
}

void all_to_all_transposes_rows(Communicator& world, const Tools& tools) {
  for (const DType dtype : kMovedTypes) {
    for (const Shape& row_shape : kRowShapes) {
      check_all_to_all(world, tools, dtype, row_shape, false);
      check_all_to_all(world, tools, dtype, row_shape, true);
    }
  }
}

void all_to_all_of_nothing_is_empty(Communicator& world, const Tools& tools) {
  const Counts none = equal_counts(world, 0);
  const Tensor mine = own_rows(world, tools, 0, kFloat16);
  const Tensor received = collectives::all_to_all(world, mine, none, none, "law: nothing").wait();
  require(received.size(0) == 0, "all_to_all of nothing gave {}", received.text());
}

// ---- broadcast, scatter, exchange

void broadcast_gives_every_rank_the_roots_rows(Communicator& world, const Tools& tools) {
  for (int root = 0; root < world.size(); ++root) {
    for (const DType dtype : kMovedTypes) {
      for (const std::int64_t rows : {0, 3}) {
        const Tensor mine = own_rows(world, tools, rows, dtype);
        const Tensor received = collectives::broadcast(world, mine, root, "law: broadcast").wait();
        require_rows(received, {{world_rank_of(world, root), 0, rows}}, "broadcast");
      }
    }
  }
}

void scatter_gives_each_rank_its_rows(Communicator& world, const Tools& tools) {
  const Counts uneven = uneven_counts(world.size());
  for (int root = 0; root < world.size(); ++root) {
    for (const DType dtype : kMovedTypes) {
      for (const Counts& counts : {uneven, equal_counts(world, 2), equal_counts(world, 0)}) {
        const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
        const Tensor mine = own_rows(world, tools, world.rank() == root ? total : 0, dtype);
        const Tensor received = collectives::scatter(world, mine, counts, root, "law: scatter").wait();
        const std::int64_t first = std::accumulate(counts.begin(), counts.begin() + world.rank(), std::int64_t{0});
        require_rows(received, {{world_rank_of(world, root), first, count_of(counts, world.rank())}}, "scatter");
      }
    }
  }
}

void exchange_shifts_around_the_ring(Communicator& world, const Tools& tools) {
  const Counts counts = uneven_counts(world.size());
  for (const DType dtype : kMovedTypes) {
    for (int shift = 0; shift < world.size(); ++shift) {
      const int to = (world.rank() + shift) % world.size();
      const int from = (world.rank() - shift + world.size()) % world.size();
      const Tensor mine = own_rows(world, tools, count_of(counts, world.rank()), dtype);
      const Tensor received = collectives::exchange(world, mine, to, from, count_of(counts, from), "law: ring").wait();
      require_rows(received, {{world_rank_of(world, from), 0, count_of(counts, from)}}, "exchange");
    }
  }
}

void exchange_with_nobody_moves_nothing(Communicator& world, const Tools& tools) {
  // Along a line: the last sends to nobody, the first receives from nobody.
  const int to = world.rank() + 1 < world.size() ? world.rank() + 1 : -1;
  const int from = world.rank() - 1;
  const Tensor mine = own_rows(world, tools, 3);
  const Tensor received = collectives::exchange(world, mine, to, from, from < 0 ? 0 : 3, "law: line").wait();
  require_rows(received, {{from < 0 ? 0 : world_rank_of(world, from), 0, from < 0 ? 0 : 3}}, "line");
  // And nobody with anybody.
  const Tensor none = collectives::exchange(world, mine, -1, -1, 0, "law: silence").wait();
  require(none.size(0) == 0, "an exchange with nobody gave {}", none.text());
}

void exchange_pairs_leave_the_odd_one_out(Communicator& world, const Tools& tools) {
  const int partner = world.rank() ^ 1;
  const int peer = partner < world.size() ? partner : -1;
  const Tensor mine = own_rows(world, tools, 2, kBFloat16);
  const Tensor received = collectives::exchange(world, mine, peer, peer, peer < 0 ? 0 : 2, "law: pairs").wait();
  if (peer >= 0) require_rows(received, {{world_rank_of(world, peer), 0, 2}}, "pairs");
}

void ring_of_exchanges_makes_an_all_gather(Communicator& world, const Tools& tools) {
  const Counts counts = uneven_counts(world.size());
  const int to = (world.rank() + 1) % world.size();
  const int from = (world.rank() + world.size() - 1) % world.size();
  Tensor chunk = own_rows(world, tools, count_of(counts, world.rank()));
  for (int step = 0; step < world.size(); ++step) {
    const int owner = (world.rank() - step + world.size()) % world.size();
    const int next = (owner - 1 + world.size()) % world.size();
    std::optional<Pending<Tensor>> pending;
    if (step + 1 < world.size()) {
      pending.emplace(collectives::exchange(world, chunk, to, from, count_of(counts, next), "law: next chunk"));
    }
    // The present chunk is read while it is being sent on.
    require_rows(chunk, {{world_rank_of(world, owner), 0, count_of(counts, owner)}}, "chunk of the ring");
    if (pending) chunk = pending->wait();
  }
}

// ---- sums

// Values whose float sum depends on the order of additions.
Tensor summands(const SummingDevice& summing, int rank, std::int64_t rows) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < rows * 3; ++i) {
    const auto bits = mixed(static_cast<std::uint64_t>(rank) * 1000 + static_cast<std::uint64_t>(i));
    const double unit = static_cast<double>(bits % 2001) / 1000.0 - 1.0;
    values.push_back((bits >> 32U) % 3 == 0 ? unit * 4096.0 : unit);
  }
  return ops::from_doubles(*summing.device, values, {rows, 3}, summing.dtype);
}

Tensor sum_in_member_order(const Communicator& group, const SummingDevice& summing, std::int64_t rows) {
  Tensor sum = summands(summing, world_rank_of(group, 0), rows);
  for (int member = 1; member < group.size(); ++member) {
    sum = ops::add(sum, summands(summing, world_rank_of(group, member), rows));
  }
  return sum;
}

void all_reduce_adds_in_member_order(Communicator& world, const Tools& tools) {
  for (const SummingDevice& summing : tools.summing) {
    for (const std::int64_t rows : {0, 1, 2, 7}) {
      const Tensor mine = summands(summing, world.world_rank(), rows);
      const Tensor sum = collectives::all_reduce(world, mine, "law: sum").wait();
      require_equal_bits(sum, sum_in_member_order(world, summing, rows), "all_reduce");
    }
  }
}

void reduce_scatter_adds_in_member_order(Communicator& world, const Tools& tools) {
  const Counts uneven = uneven_counts(world.size());
  for (const SummingDevice& summing : tools.summing) {
    for (const Counts& counts : {uneven, equal_counts(world, 2), equal_counts(world, 0)}) {
      const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
      const std::int64_t first = std::accumulate(counts.begin(), counts.begin() + world.rank(), std::int64_t{0});
      const Tensor mine = summands(summing, world.world_rank(), total);
      const Tensor own = collectives::reduce_scatter(world, mine, counts, "law: sum of slices").wait();
      const Tensor all = sum_in_member_order(world, summing, total);
      require_equal_bits(own, ops::contiguous(all.narrow(0, first, count_of(counts, world.rank()))), "reduce_scatter");
    }
  }
}

// ---- host numbers, barrier

void numbers_arrive_in_member_order(Communicator& world, const Tools&) {
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
  for (const std::size_t count : {0U, 1U, 3U}) {
    Counts mine;
    Counts expected;
    for (int member = 0; member < world.size(); ++member) {
      const Counts theirs{kLowest + member, -member, kHighest - member};
      expected.insert(expected.end(), theirs.begin(), theirs.begin() + static_cast<std::ptrdiff_t>(count));
      if (member == world.rank()) mine.assign(theirs.begin(), theirs.begin() + static_cast<std::ptrdiff_t>(count));
    }
    const Counts all = collectives::all_gather_numbers(world, mine, "law: numbers");
    require(all == expected, "numbers [{}], expected [{}]", fmt::join(all, ", "), fmt::join(expected, ", "));
  }
}

void barriers_can_be_repeated(Communicator& world, const Tools&) {
  for (int i = 0; i < 5; ++i) collectives::barrier(world, "law: barrier");
}

// ---- groups

void require_members(const Communicator& group, const std::vector<int>& expected, int world_rank) {
  require(std::ranges::equal(group.members(), expected), "{} has members [{}], expected [{}]", group.name(),
          fmt::join(group.members(), ", "), fmt::join(expected, ", "));
  require(group.world_rank() == world_rank, "rank {} of {} is world rank {}, expected {}", group.rank(), group.name(),
          group.world_rank(), world_rank);
}

// Every operation once, on a group.
void use_group(Communicator& group, const Tools& tools) {
  check_gather(group, tools, uneven_counts(group.size()), kFloat32, Shape{2});
  check_all_to_all(group, tools, kInt64, Shape{3}, true);
  broadcast_gives_every_rank_the_roots_rows(group, tools);
  scatter_gives_each_rank_its_rows(group, tools);
  exchange_shifts_around_the_ring(group, tools);
  all_reduce_adds_in_member_order(group, tools);
  numbers_arrive_in_member_order(group, tools);
  collectives::barrier(group, "law: barrier of a group");
}

void split_forms_groups_of_neighbours(Communicator& world, const Tools& tools) {
  const int color = world.rank() / 2;
  const auto group = world.split(color, world.rank(), "pair");
  require(group != nullptr, "split gave no group");
  std::vector<int> expected{2 * color};
  if (2 * color + 1 < world.size()) expected.push_back(2 * color + 1);
  require_members(*group, expected, world.rank());
  require(group->name() == world.name() + "/pair", "the group is called '{}'", group->name());
  use_group(*group, tools);
}

void split_forms_interleaved_groups(Communicator& world, const Tools& tools) {
  const auto group = world.split(world.rank() % 2, world.rank(), "parity");
  std::vector<int> expected;
  for (int rank = world.rank() % 2; rank < world.size(); rank += 2) expected.push_back(rank);
  require_members(*group, expected, world.rank());
  use_group(*group, tools);
  use_group(world, tools);
}

void split_orders_members_by_key(Communicator& world, const Tools& tools) {
  const auto reversed = world.split(0, -world.rank(), "reversed");
  std::vector<int> expected(static_cast<std::size_t>(world.size()));
  std::iota(expected.rbegin(), expected.rend(), 0);
  require_members(*reversed, expected, world.rank());
  require(reversed->rank() == world.size() - 1 - world.rank(), "rank {} in the reversed group", reversed->rank());
  use_group(*reversed, tools);
  // Equal keys: by rank.
  const auto same = world.split(7, 5, "same");
  std::iota(expected.begin(), expected.end(), 0);
  require_members(*same, expected, world.rank());
}

void split_leaves_out_negative_colours(Communicator& world, const Tools& tools) {
  const bool joins = world.rank() != 0;
  const auto group = world.split(joins ? 3 : -1, 0, "others");
  require((group != nullptr) == joins, "rank {} {} a group", world.rank(), group ? "got" : "did not get");
  if (group) use_group(*group, tools);
  collectives::barrier(world, "law: after the split");
}

void groups_of_one_need_nobody(Communicator& world, const Tools& tools) {
  const auto alone = world.split(world.rank(), 0, "alone");
  require_members(*alone, {world.rank()}, world.rank());
  use_group(*alone, tools);
}

void groups_can_be_split_again(Communicator& world, const Tools& tools) {
  const auto half = world.split(world.rank() % 2, world.rank(), "half");
  const auto quarter = half->split(half->rank() % 2, -half->rank(), "quarter");
  std::vector<int> expected;
  for (int rank = world.rank() % 4; rank < world.size(); rank += 4) expected.insert(expected.begin(), rank);
  require_members(*quarter, expected, world.rank());
  require(quarter->name() == world.name() + "/half/quarter", "the group is called '{}'", quarter->name());
  use_group(*quarter, tools);
}

void groups_inherit_the_gather_form(Communicator& world, const Tools&) {
  world.set_gather_form(GatherForm::padded);
  const auto group = world.split(0, world.rank(), "padded");
  require(group->gather_form() == GatherForm::padded, "the gather form was not inherited");
  world.set_gather_form(GatherForm::ragged);
  require(group->gather_form() == GatherForm::padded, "the gather form of a group changed with its parent's");
}

// ---- several operations in flight

void operations_in_flight_may_be_waited_for_in_any_order(Communicator& world, const Tools& tools) {
  constexpr int kOperations = 6;
  const int to = (world.rank() + 1) % world.size();
  const int from = (world.rank() + world.size() - 1) % world.size();
  std::vector<Pending<Tensor>> pending;
  for (int i = 0; i < kOperations; ++i) {
    const Tensor mine = rows_of(*tools.device, {{world.world_rank(), 10 * i, i}}, kFloat32, Shape{2});
    if (i % 2 == 0) {
      pending.push_back(collectives::exchange(world, mine, to, from, i, "law: even"));
    } else {
      pending.push_back(collectives::all_gather(world, mine, "law: odd"));
    }
  }
  for (int i = kOperations - 1; i >= 0; --i) {
    const Tensor received = pending[static_cast<std::size_t>(i)].wait();
    if (i % 2 == 0) {
      require_rows(received, {{world_rank_of(world, from), 10 * i, i}}, "exchange in flight");
    } else {
      std::vector<RowRange> expected;
      for (int member = 0; member < world.size(); ++member) {
        expected.push_back({world_rank_of(world, member), 10 * i, i});
      }
      require_rows(received, expected, "gather in flight");
    }
  }
}

void operations_of_several_groups_may_be_in_flight(Communicator& world, const Tools& tools) {
  const auto neighbours = world.split(world.rank() / 2, world.rank(), "neighbours");
  const auto parity = world.split(world.rank() % 2, -world.rank(), "parity");
  for (int round = 0; round < 3; ++round) {
    const Tensor mine = own_rows(world, tools, 2);
    Pending<Tensor> a = collectives::all_gather(*neighbours, mine, "law: neighbours");
    Pending<Tensor> b = collectives::all_gather(*parity, mine, "law: parity");
    Pending<Tensor> c = collectives::all_gather(world, mine, "law: world");
    require_rows(c.wait(), everyone(world, equal_counts(world, 2)), "world");
    require_rows(a.wait(), everyone(*neighbours, equal_counts(*neighbours, 2)), "neighbours");
    require_rows(b.wait(), everyone(*parity, equal_counts(*parity, 2)), "parity");
  }
}

void one_tensor_may_be_sent_several_times_at_once(Communicator& world, const Tools& tools) {
  const Tensor mine = own_rows(world, tools, 3);
  Pending<Tensor> first = collectives::all_gather(world, mine, "law: first copy");
  Pending<Tensor> second = collectives::all_gather(world, mine, "law: second copy");
  require_rows(first.wait(), everyone(world, equal_counts(world, 3)), "first copy");
  require_rows(second.wait(), everyone(world, equal_counts(world, 3)), "second copy");
  require_rows(mine, {{world.world_rank(), 0, 3}}, "what was sent");
}

void large_tensors_arrive_whole(Communicator& world, const Tools& tools) {
  constexpr std::int64_t kRows = 70'001;  // not a multiple of anything convenient
  const Tensor mine = own_rows(world, tools, kRows, kFloat16, Shape{5});
  const int to = (world.rank() + 1) % world.size();
  const int from = (world.rank() + world.size() - 1) % world.size();
  const Tensor received = collectives::exchange(world, mine, to, from, kRows, "law: large").wait();
  require_rows(received, {{world_rank_of(world, from), 0, kRows}}, "large exchange");
}

// Writing to what was sent or received, once the operation is waited for, shows nowhere else, also where an
// implementation moved nothing.
void writing_afterwards_changes_nobody_elses(Communicator& world, const Tools& tools) {
  constexpr std::int64_t kRows = 4'001;  // large enough to be worth sharing
  const int to = (world.rank() + 1) % world.size();
  const int from = (world.rank() + world.size() - 1) % world.size();
  const bool writes = world.rank() % 2 == 1;
  const auto check = [&](std::string_view what, const Tensor& sent, const Tensor& received,
                         std::span<const RowRange> expected) {
    if (writes) tools.device->fill(received, 7);
    collectives::barrier(world, "law: some wrote to what they received");
    require_rows(sent, {{world.world_rank(), 0, kRows}}, what);
    if (world.size() > 1) tools.device->fill(sent, 9);
    collectives::barrier(world, "law: all wrote to what they sent");
    if (!writes) require_rows(received, expected, what);
    if (writes)
      require(downloaded(received.narrow(0, 0, 1)) != bytes_of({{expected[0]}}, kInt64, Shape{3}), "{}", what);
  };
  const auto mine = [&] { return own_rows(world, tools, kRows); };
  const RowRange neighbour{world_rank_of(world, from), 0, kRows}, root{world_rank_of(world, 0), 0, kRows};
  Tensor sent = mine();
  check("exchange", sent, collectives::exchange(world, sent, to, from, kRows, "law: exchange").wait(), {{neighbour}});
  sent = mine();
  check("broadcast", sent, collectives::broadcast(world, sent, 0, "law: broadcast").wait(), {{root}});
  sent = mine();
  check("gather", sent, collectives::all_gather(world, sent, "law: gather").wait(),
        everyone(world, equal_counts(world, kRows)));
}

}  // namespace

std::span<const CommunicatorLaw> communicator_laws() {
  static const std::vector<CommunicatorLaw> laws{
      {"AllGatherJoinsEqualRowsInMemberOrder", gather_joins_equal_rows},
      {"AllGatherMovesUnevenRowsInBothForms", gather_moves_uneven_rows_in_both_forms},
      {"AllGatherOfNothingIsEmpty", gather_of_nothing_is_empty},
      {"AllGatherTakesStridedRows", gather_takes_strided_rows},
      {"AllToAllTransposesRowsAndBack", all_to_all_transposes_rows},
      {"AllToAllOfNothingIsEmpty", all_to_all_of_nothing_is_empty},
      {"BroadcastGivesEveryRankTheRootsRows", broadcast_gives_every_rank_the_roots_rows},
      {"ScatterGivesEachRankItsRows", scatter_gives_each_rank_its_rows},
      {"ExchangeShiftsAroundTheRing", exchange_shifts_around_the_ring},
      {"ExchangeWithNobodyMovesNothing", exchange_with_nobody_moves_nothing},
      {"ExchangeInPairsLeavesTheOddOneOut", exchange_pairs_leave_the_odd_one_out},
      {"RingOfExchangesMakesAnAllGather", ring_of_exchanges_makes_an_all_gather},
      {"AllReduceAddsInMemberOrderBitForBit", all_reduce_adds_in_member_order},
      {"ReduceScatterAddsInMemberOrderBitForBit", reduce_scatter_adds_in_member_order},
      {"NumbersArriveInMemberOrder", numbers_arrive_in_member_order},
      {"BarriersCanBeRepeated", barriers_can_be_repeated},
      {"SplitFormsGroupsOfNeighbours", split_forms_groups_of_neighbours},
      {"SplitFormsInterleavedGroups", split_forms_interleaved_groups},
      {"SplitOrdersMembersByKeyThenRank", split_orders_members_by_key},
      {"SplitLeavesOutNegativeColours", split_leaves_out_negative_colours},
      {"GroupsOfOneNeedNobody", groups_of_one_need_nobody},
      {"GroupsCanBeSplitAgain", groups_can_be_split_again},
      {"GroupsInheritTheGatherForm", groups_inherit_the_gather_form},
      {"OperationsInFlightMayBeWaitedForInAnyOrder", operations_in_flight_may_be_waited_for_in_any_order},
      {"OperationsOfSeveralGroupsMayBeInFlight", operations_of_several_groups_may_be_in_flight},
      {"OneTensorMayBeSentSeveralTimesAtOnce", one_tensor_may_be_sent_several_times_at_once},
      {"LargeTensorsArriveWhole", large_tensors_arrive_whole},
      {"WritingAfterwardsChangesNobodyElses", writing_afterwards_changes_nobody_elses},
  };
  return laws;
}

void check_communicator_law(const CommunicatorLaw& law, int world_size, const RankRunner& runner,
                            const ConformanceTools& tools) {
  runner(world_size, [&](Communicator& world) { law.body(world, tools); });
}

}  // namespace shardproof::test
