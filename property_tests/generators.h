// What the property tests draw. Everything is built from increments (numbers from 0 up that are added to the smallest
// legal value), so that any smaller draw is legal too and shrinking walks straight to the smallest counterexample. The
// seed of the scheduler, the number of workers and the form of gathers are drawn like the rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <ostream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

#include "core/random.h"
#include "parallel/config.h"
#include "tests/support/attention_problem.h"
#include "tests/support/layout.h"

namespace shardproof::test {

// ---- orders and parts of a sequence

// Runs of any lengths, none among them, of what follows one another.
inline std::vector<Indices> runs_of(const std::vector<std::int64_t>& lengths) {
  std::vector<Indices> runs;
  std::int64_t next = 0;
  for (const std::int64_t length : lengths) {
    Indices run(static_cast<std::size_t>(length));
    std::iota(run.begin(), run.end(), next);
    next += length;
    runs.push_back(run);
  }
  return runs;
}

// The order of the keys of these streams in which rank f has those of rank shards[f]; all have equally many.
inline Indices keys_in_order_of_shards(const std::vector<std::int64_t>& key_streams, const Indices& shards) {
  const std::vector<Indices> pieces = pieces_of(key_streams, static_cast<int>(shards.size()));
  Indices order(static_cast<std::size_t>(std::accumulate(key_streams.begin(), key_streams.end(), std::int64_t{0})));
  for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
    const Indices& source = pieces[static_cast<std::size_t>(shards[rank])];
    for (std::size_t i = 0; i < source.size(); ++i) order[static_cast<std::size_t>(pieces[rank][i])] = source[i];
  }
  return order;
}

// ---- modes

enum class Mode : std::uint8_t { ulysses, ring, unified, ulysses_anything, ring_anything };
inline constexpr int kModes = 5;

struct ModeDraw {
  int mode = 0;     // of Mode
  int degree = 0;   // + 2
  int second = 0;   // Unified: of the other degree, + 2
  int rotate = 0;   // allgather, alltoall
  int padded = 0;   // form of gathers
  int workers = 0;  // + 1
  std::uint64_t schedule_seed = 0;

  bool is(Mode m) const { return mode == static_cast<int>(m); }
  bool is_anything() const { return is(Mode::ulysses_anything) || is(Mode::ring_anything); }
  // At most eight ranks: 2 x 4, 4 x 2 and less.
  int ring() const {
    if (is(Mode::ulysses) || is(Mode::ulysses_anything)) return 1;
    return is(Mode::unified) ? 2 + degree % 3 : 2 + degree;
  }
  int ulysses() const {
    if (is(Mode::ring) || is(Mode::ring_anything)) return 1;
    if (!is(Mode::unified)) return 2 + degree;
    return degree % 3 == 0 ? 2 + second : 2;
  }
  int ranks() const { return ring() * ulysses(); }
  ContextParallelConfig config() const {
    return {.ring_degree = ring(),
            .ulysses_degree = ulysses(),
            .rotate_method = rotate == 0 ? "allgather" : "alltoall",
            .ulysses_anything = is(Mode::ulysses_anything),
            .ring_anything = is(Mode::ring_anything)};
  }
  // A legal length of a stream.
  std::int64_t length(int increment) const {
    return is_anything() ? ranks() + increment : ranks() * (1 + increment % 4);
  }
  // A legal number of heads: blocks of `block` heads, the last one with `last` of them where pads are allowed.
  std::int64_t heads(int block_increment, int last_increment) const {
    const std::int64_t block = 1 + block_increment;
    const std::int64_t last = is(Mode::ulysses_anything) ? 1 + last_increment % block : block;
    return block * (ulysses() - 1) + last;
  }

  friend std::ostream& operator<<(std::ostream& out, const ModeDraw& draw) {
    const ContextParallelConfig config = draw.config();
    return out << mode_name(config) << " ring " << draw.ring() << " ulysses " << draw.ulysses() << " "
               << config.rotate_method << (draw.padded == 0 ? " ragged" : " padded") << ", workers " << 1 + draw.workers
               << ", schedule seed " << draw.schedule_seed;
  }
};

inline rc::Gen<ModeDraw> any_mode() {
  return rc::gen::build<ModeDraw>(
      rc::gen::set(&ModeDraw::mode, rc::gen::inRange(0, kModes)),
      rc::gen::set(&ModeDraw::degree, rc::gen::inRange(0, 7)), rc::gen::set(&ModeDraw::second, rc::gen::inRange(0, 3)),
      rc::gen::set(&ModeDraw::rotate, rc::gen::inRange(0, 2)), rc::gen::set(&ModeDraw::padded, rc::gen::inRange(0, 2)),
      rc::gen::set(&ModeDraw::workers, rc::gen::inRange(0, 2)),
      rc::gen::set(&ModeDraw::schedule_seed, rc::gen::inRange<std::uint64_t>(0, 1000)));
}
// A ring in any of its modes.
inline rc::Gen<ModeDraw> any_ring() {
  return rc::gen::map(any_mode(), [](ModeDraw draw) {
    draw.mode = static_cast<int>(draw.mode % 2 == 0 ? Mode::ring : Mode::ring_anything);
    return draw;
  });
}
// Modes that take equal or any lengths.
inline rc::Gen<ModeDraw> any_equal_mode() {
  return rc::gen::map(any_mode(), [](ModeDraw draw) {
    draw.mode %= 3;
    return draw;
  });
}
inline rc::Gen<ModeDraw> any_anything_mode() {
  return rc::gen::map(any_mode(), [](ModeDraw draw) {
    draw.mode = static_cast<int>(draw.mode % 2 == 0 ? Mode::ulysses_anything : Mode::ring_anything);
    return draw;
  });
}

// ---- attention

enum class MaskDraw : std::uint8_t { none, key, key_of_all, head, full, whole_shard };
inline constexpr int kMaskDraws = 6;

struct AttentionDraw {
  ModeDraw mode;
  int batch = 0;       // + 1
  int head_block = 0;  // see ModeDraw::heads
  int head_last = 0;
  int width = 0;  // + 1
  int text = 0;   // 0: no text stream; n: increment n - 1
  int image = 0;
  int cross = 0;     // 0: the keys are the same streams; n: one stream of keys of increment n - 1
  int mask = 0;      // of MaskDraw
  int additive = 0;  // the form of the mask
  std::uint64_t seed = 0;

  std::vector<std::int64_t> streams() const {
    std::vector<std::int64_t> lengths;
    if (text > 0) lengths.push_back(mode.length(text - 1));
    lengths.push_back(mode.length(image));
    return lengths;
  }
  ProblemShape shape() const {
    ProblemShape shape{
        .batch = 1 + batch, .heads = mode.heads(head_block, head_last), .width = 1 + width, .streams = streams()};
    if (cross > 0) shape.key_streams = {mode.length(cross - 1)};
    return shape;
  }
  KeyAxis key_axis() const {
    const bool global = mask == static_cast<int>(MaskDraw::key_of_all) || mask == static_cast<int>(MaskDraw::full);
    return global ? KeyAxis::global : KeyAxis::local;
  }
  // With random inputs by `seed`, and the mask.
  AttentionProblem problem() const;
  AttentionRun run(Device& device) const {
    return {.config = mode.config(),
            .device = &device,
            .key_axis = key_axis(),
            .mask_form = additive == 0 ? MaskForm::boolean : MaskForm::additive,
            .gather_form = mode.padded == 0 ? GatherForm::ragged : GatherForm::padded,
            .schedule_seed = mode.schedule_seed,
            .workers = 1 + mode.workers};
  }

  friend std::ostream& operator<<(std::ostream& out, const AttentionDraw& draw) {
    out << draw.mode << "; batch " << draw.shape().batch << ", heads " << draw.shape().heads << ", width "
        << draw.shape().width << ", streams";
    for (const std::int64_t length : draw.shape().streams) out << " " << length;
    for (const std::int64_t length : draw.shape().key_streams) out << ", keys " << length;
    return out << ", mask " << draw.mask << (draw.additive == 0 ? " boolean" : " additive") << ", seed " << draw.seed;
  }
};

inline AttentionProblem AttentionDraw::problem() const {
  AttentionProblem result = random_problem(shape(), seed);
  const RandomStream stream(seed, "mask");
  std::uint64_t next = 0;
  const auto keep = [&](auto...) { return stream.below(next++, 3) > 0; };
  switch (static_cast<MaskDraw>(mask)) {
    case MaskDraw::none: break;
    case MaskDraw::key:
    case MaskDraw::key_of_all: result.bias = key_bias(result, keep); break;
    case MaskDraw::full: result.bias = full_bias(result, keep); break;
    case MaskDraw::head: {
      const HostArray full = full_bias(result, keep);
      result.bias = selected(full, 2, Indices{0});
      break;
    }
    case MaskDraw::whole_shard: {
      const std::vector<Indices> pieces = pieces_of(result.key_streams, mode.ranks());
      const Indices& masked = pieces[static_cast<std::size_t>(seed) % pieces.size()];
      result.bias = key_bias(result, [&](std::int64_t, std::int64_t key) {
        return std::find(masked.begin(), masked.end(), key) == masked.end();
      });
      break;
    }
  }
  return result;
}

inline rc::Gen<AttentionDraw> any_attention(rc::Gen<ModeDraw> mode) {
  return rc::gen::build<AttentionDraw>(rc::gen::set(&AttentionDraw::mode, std::move(mode)),
                                       rc::gen::set(&AttentionDraw::batch, rc::gen::inRange(0, 2)),
                                       rc::gen::set(&AttentionDraw::head_block, rc::gen::inRange(0, 3)),
                                       rc::gen::set(&AttentionDraw::head_last, rc::gen::inRange(0, 3)),
                                       rc::gen::set(&AttentionDraw::width, rc::gen::inRange(0, 5)),
                                       rc::gen::set(&AttentionDraw::text, rc::gen::inRange(0, 8)),
                                       rc::gen::set(&AttentionDraw::image, rc::gen::inRange(0, 12)),
                                       rc::gen::set(&AttentionDraw::cross, rc::gen::inRange(0, 8)),
                                       rc::gen::set(&AttentionDraw::mask, rc::gen::inRange(0, kMaskDraws)),
                                       rc::gen::set(&AttentionDraw::additive, rc::gen::inRange(0, 2)),
                                       rc::gen::set(&AttentionDraw::seed, rc::gen::inRange<std::uint64_t>(0, 100000)));
}
inline rc::Gen<AttentionDraw> any_attention() { return any_attention(any_mode()); }

// ---- movement

// Lengths of the members of a group, zero among them.
inline rc::Gen<std::vector<std::int64_t>> any_lengths() {
  return rc::gen::mapcat(rc::gen::inRange<std::size_t>(0, 7), [](std::size_t members) {
    return rc::gen::container<std::vector<std::int64_t>>(members + 1, rc::gen::inRange<std::int64_t>(0, 6));
  });
}

// A run of simulated ranks.
struct ScheduleDraw {
  std::uint64_t seed = 0;
  int workers = 0;  // + 1
  SimulationOptions options(std::size_t ranks) const {
    return {.world_size = static_cast<int>(ranks), .schedule_seed = seed, .workers = 1 + workers};
  }
  friend std::ostream& operator<<(std::ostream& out, const ScheduleDraw& draw) {
    return out << "schedule seed " << draw.seed << ", workers " << 1 + draw.workers;
  }
};
inline rc::Gen<ScheduleDraw> any_schedule() {
  return rc::gen::build<ScheduleDraw>(rc::gen::set(&ScheduleDraw::seed, rc::gen::inRange<std::uint64_t>(0, 1000)),
                                      rc::gen::set(&ScheduleDraw::workers, rc::gen::inRange(0, 2)));
}

// A permutation of 0 .. n-1 by a seed.
inline Indices permutation(std::int64_t n, std::uint64_t seed) {
  Indices order = counting(n);
  const RandomStream stream(seed, "permutation");
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<std::size_t>(stream.below(i, static_cast<std::int64_t>(i)))]);
  }
  return order;
}

}  // namespace shardproof::test
