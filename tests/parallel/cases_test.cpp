// Faults that public context-parallel code shipped, rebuilt as small cases, one test a row of the case list (C01 to C21
// and C28): our code is right on the case itself, and where the case is a wrong plan, the number that gives it away is
// there. Values are those of the list.
#include <array>
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/ops.h"
#include "core/sharding.h"
#include "parallel/attention.h"
#include "parallel/context_parallel.h"
#include "parallel/movement.h"
#include "parallel/softmax_merge.h"
#include "reference/eigen_device.h"
#include "sim/cpu_device.h"
#include "tests/support/attention_problem.h"
#include "tests/support/rank_results.h"
#include "tests/support/small_model.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kTolerance = 1e-12;
constexpr double kNever = -std::numeric_limits<double>::infinity();

class Cases : public testing::Test {
 protected:
  double difference(const AttentionProblem& problem, AttentionRun run) {
    run.device = device.get();
    return worst_difference(problem, problem.dense(), run_parallel(problem, run));
  }
  Tensor on_device(const HostArray& array, DType dtype = kFloat64) { return to_device(*device, array, dtype); }
  // Attention as a faulty plan would run it: the text keys whole on every rank and routed through the exchange.
  std::vector<AttentionResult> with_whole_text_on_every_rank(const AttentionProblem& problem, std::int64_t text,
                                                             const ContextParallelConfig& config,
                                                             std::vector<std::int64_t>& key_counts) {
    const std::int64_t image = problem.keys() - text;
    const Tensor q = on_device(problem.q), k = on_device(problem.k), v = on_device(problem.v);
    const auto results = rank_results(effective_mesh(config).size(), [&](Communicator& world) {
      const ContextParallelState state(world, config);
      const auto part = [&](const Tensor& x, std::int64_t start, std::int64_t size) {
        return shard(x.narrow(1, start, size), 1, state.flat(), Division::equal, "x");
      };
      const auto joint = [&](const Tensor& x) { return ops::concat({x.narrow(1, 0, text), part(x, text, image)}, 1); };
      const Tensor own_k = joint(k);
      const AttentionOptions options{.scale = problem.scale, .return_lse = true};
      const AttentionResult result = attention(part(q, 0, problem.queries()), own_k, joint(v), {}, options, &state);
      return std::pair(result, own_k.size(1));
    });
    std::vector<AttentionResult> outputs;
    for (const auto& [result, keys] : results) {
      outputs.push_back(result);
      key_counts.push_back(keys);
    }
    return outputs;
  }
  std::unique_ptr<Device> device = make_reference_device(kFloat64);
};

// Keys stand T0-3 I0-1 T4-7 I2-3 after the exchange, and so does their mask.
TEST_F(Cases, C01_TheMaskFollowsTheOrderOfTheKeysAfterTheExchange) {
  const std::vector<std::vector<double>> local{{1, 1, 0, 0, 1, 1}, {0, 0, 0, 0, 1, 1}};
  const auto masks = rank_results(2, [&](Communicator& world) {
    const auto& own = local[static_cast<std::size_t>(world.rank())];
    const AttentionMask mask{.values = ops::from_doubles(*device, own, {1, 1, 1, 6}, kBool)};
    const Indices lengths{6, 6};
    return ops::to_doubles(
        mask_after_head_scatter(mask, head_layout(2, 2, Division::equal), lengths, lengths, world).values);
  });
  for (const auto& mask : masks) EXPECT_THAT(mask, ElementsAre(1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1));
  AttentionProblem problem = random_problem({.heads = 2, .streams = {8, 4}}, 1);
  problem.bias = key_bias(problem, [](auto, auto key) { return key < 2 || key >= 8; });
  EXPECT_LE(difference(problem, {.config = ulysses_config(2)}), kTolerance);
}

TEST_F(Cases, C02_MasksKeepItemsAndHeadsApart) {
  AttentionProblem problem = random_problem({.batch = 2, .heads = 4, .streams = {4, 8}}, 2);
  // (a) and (c): prompts of different length, mask [2, keys].
  problem.bias = key_bias(problem, [](auto b, auto key) { return key >= 4 || key < (b == 0 ? 1 : 3); });
  EXPECT_LE(difference(problem, {.config = ulysses_config(2)}), kTolerance);
  EXPECT_LE(difference(problem, {.config = ring_config(2, "alltoall")}), kTolerance);
  // (b) [2, 4, queries, keys]; for ulysses_degree 4 each rank keeps one head of four.
  problem.bias = full_bias(problem, [](auto b, auto h, auto q, auto key) { return (b + 2 * h + q + key) % 3 != 0; });
  for (const int degree : {2, 4}) {
    EXPECT_LE(difference(problem, {.config = ulysses_config(degree), .key_axis = KeyAxis::global}), kTolerance);
  }
  EXPECT_LE(difference(problem, {.config = unified_config(2, 2, "allgather"), .key_axis = KeyAxis::global}),
            kTolerance);
}

TEST_F(Cases, C03_ATimestepPerItemIsSkippedAndReportedWhereThePlanDividesOnePerToken) {
  HostDevice host;
  const SmallModelWeights weights({}, *device, kFloat64, 3);
  for (const bool per_token : {true, false}) {
    // Four items and four tokens a rank: the sizes of both forms coincide.
    const Arguments arguments =
        small_model_inputs({.batch = 4, .image = 8, .timestep_per_token = per_token}, *device, host, kFloat64, 3);
    const HostArray dense = to_host(weights.make_model()->call(arguments).tensors.front());
    const auto results = rank_results(2, [&](Communicator& world) {
      const auto model = weights.make_model();
      const auto state = std::make_shared<const ContextParallelState>(world, ulysses_config(2));
      apply_context_parallel(*model, state, small_model_plan({}));
      const HostArray output = to_host(model->call(arguments).tensors.front());
      return std::pair(output, state->skipped());
    });
    for (const auto& [output, skipped] : results) {
      EXPECT_LE(max_difference(output, dense), kTolerance * max_magnitude(dense));
      if (per_token) {
        EXPECT_THAT(skipped, testing::IsEmpty());
      } else {
        ASSERT_EQ(skipped.size(), 1U);
        EXPECT_EQ(skipped[0].argument, "timestep");
        EXPECT_EQ(skipped[0].reason, "1 dimension, plan expects 2");
      }
    }
  }
}

TEST_F(Cases, C04_CrossAttentionToAnOddContextNeedsNoExchange) {
  const AttentionProblem problem = random_problem({.heads = 2, .streams = {8}, .key_streams = {769}}, 4);
  const AttentionRun run{.config = ulysses_config(2), .device = device.get(), .keys = Placement::replicated};
  const ParallelAttention result = run_parallel(problem, run);
  EXPECT_LE(worst_difference(problem, problem.dense(), result), kTolerance);
  for (const RankStatistics& rank : result.report.ranks) EXPECT_EQ(rank.data_calls(), 0);
}

// What gives the faulty plan away: it equals adding ln U to the logits of the text.
TEST_F(Cases, C05_ReplicatedKeysThatAreRoutedCountOnceForEachRank) {
  for (const int degree : {2, 4, 8}) {
    AttentionProblem problem = random_problem({.heads = 8, .streams = {16}, .key_streams = {5, 8}}, 5);
    EXPECT_LE(difference(problem, {.config = ulysses_config(degree), .keys = Placement::replicated}), kTolerance);
    std::vector<std::int64_t> key_counts;
    const auto faulty = with_whole_text_on_every_rank(problem, 5, ulysses_config(degree), key_counts);
    problem.bias = HostArray({1, 1, 1, 13});
    for (std::int64_t key = 0; key < 5; ++key) problem.bias.at({0, 0, 0, key}) = std::log(degree);
    const DenseAttention counted = problem.dense();
    const std::vector<Indices> pieces = pieces_of(problem.query_streams, degree);
    for (std::size_t rank = 0; rank < faulty.size(); ++rank) {
      EXPECT_LE(max_difference(to_host(faulty[rank].out), selected(counted.out, 1, pieces[rank])), kTolerance);
      EXPECT_LE(max_difference(to_host(faulty[rank].lse), selected(counted.lse, 1, pieces[rank])), kTolerance);
    }
  }
}

TEST_F(Cases, C06_ReplicatedTextIsRightInEveryFactoring) {
  for (const auto& [ulysses, ring] : {std::pair{1, 2}, {2, 1}, {2, 2}}) {
    for (const char* rotate_method : {"allgather", "alltoall"}) {
      const ContextParallelConfig config = unified_config(ring, ulysses, rotate_method);
      const AttentionProblem problem = random_problem({.heads = 2, .streams = {8}, .key_streams = {5}}, 6);
      EXPECT_LE(difference(problem, {.config = config, .keys = Placement::replicated}), kTolerance);
      // The other way round has no meaning and is refused by name.
      const Tensor x = on_device(problem.q);
      const auto error = thrown_by([&] {
        run_ranks({.world_size = ring * ulysses}, [&](Communicator& world) {
          const ContextParallelState state(world, config);
          attention(x, x, x, {}, {.queries = Placement::replicated}, &state);
        });
      });
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind, ErrorKind::unsupported_error);
      EXPECT_THAT(error->message, HasSubstr("attention of replicated queries against split keys is not supported"));
    }
  }
}

TEST_F(Cases, C07_WholeTextBesideALocalImageHasTooManyKeys) {
  for (const int degree : {2, 4}) {
    AttentionProblem problem = random_problem({.heads = 4, .streams = {6, 8}}, 7);
    std::vector<std::int64_t> key_counts;
    problem.query_streams = {8};
    problem.q = selected(problem.q, 1, std::array<std::int64_t, 8>{6, 7, 8, 9, 10, 11, 12, 13});
    const auto faulty = with_whole_text_on_every_rank(problem, 6, ulysses_config(degree), key_counts);
    std::int64_t sum = 0;
    for (const std::int64_t keys : key_counts) sum += keys;
    EXPECT_EQ(sum, degree * 6 + 8);  // instead of 6 + 8
    const DenseAttention dense = problem.dense();
    const std::vector<Indices> pieces = pieces_of(problem.query_streams, degree);
    for (std::size_t rank = 0; rank < faulty.size(); ++rank) {
      EXPECT_GT(max_difference(to_host(faulty[rank].out), selected(dense.out, 1, pieces[rank])), 1e-3);
    }
  }
}

TEST_F(Cases, C08_APlanThatDividesTokensWithoutAnExchangeShowsInTheCount) {
  HostDevice host;
  // The model takes its context as replicated, but the plan divides it.
  const SmallModelConfig config{.layers = 1};
  const SmallModelWeights weights(config, *device, kFloat64, 8);
  const Arguments arguments = small_model_inputs({.context = 4}, *device, host, kFloat64, 8);
  const HostArray dense = to_host(weights.make_model()->call(arguments).tensors.front());
  ContextParallelPlan plan = small_model_plan({.context = Placement::split});
  const auto results = rank_results(2, [&](Communicator& world) {
    const auto model = weights.make_model();
    const auto state = std::make_shared<const ContextParallelState>(world, ulysses_config(2));
    apply_context_parallel(*model, state, plan);
    const HostArray output = to_host(model->call(arguments).tensors.front());
    return std::pair(output, state->attention_exchanges());
  });
  for (const auto& [output, exchanges] : results) {
    EXPECT_EQ(exchanges, 1);  // the joint attention only
    EXPECT_GT(max_difference(output, dense), 1e-3);
  }
  // A module without any attention: the count is zero.
  const ContextParallelPlan linear{{{"", SplitEntries{{"hidden_states", ContextParallelInput{.split_dim = 1}}}}}};
  const auto counts = rank_results(2, [&](Communicator& world) {
    const auto model = weights.make_model();
    const auto state = std::make_shared<const ContextParallelState>(world, ulysses_config(2));
    Module& module = *model->find_module("x_embedder");
    apply_context_parallel(module, state, linear);
    module.call({{"hidden_states", *arguments.find("hidden_states")}});
    return state->attention_exchanges();
  });
  EXPECT_THAT(counts, ElementsAre(0, 0));
}

TEST_F(Cases, C09_ALengthThatDoesNotDivideIsRefusedWithEverythingToMendIt) {
  HostDevice host;
  const SmallModelWeights weights({.heads = 4}, *device, kFloat64, 9);
  for (const int degree : {2, 4}) {
    const Arguments arguments = small_model_inputs({.text = 13}, *device, host, kFloat64, 9);
    const auto error = thrown_by([&] {
      run_ranks({.world_size = degree}, [&](Communicator& world) {
        const auto model = weights.make_model();
        apply_context_parallel(*model, std::make_shared<const ContextParallelState>(world, ulysses_config(degree)),
                               small_model_plan({}));
        model->call(arguments);
      });
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind, ErrorKind::shape_error);
    EXPECT_THAT(
        error->message,
        HasSubstr("argument 'encoder_hidden_states' of module '' (SmallModel): axis 1 has 13 entries, which " +
                  std::to_string(degree) + " ranks cannot divide equally; the nearest legal lengths are 12 and " +
                  (degree == 2 ? "14" : "16") + "; ulysses_anything or ring_anything would accept 13"));
  }
}

TEST_F(Cases, C10_OneFunctionDividesUnevenLengthsInABalancedWay) {
  EXPECT_THAT(balanced_sizes(13, 4), ElementsAre(4, 3, 3, 3));
  EXPECT_THAT(balanced_sizes(5, 4), ElementsAre(2, 1, 1, 1));
  for (const std::int64_t length : {13, 5}) {
    const auto sizes = rank_results(4, [&](Communicator& world) {
      return shard(on_device(identifiers({length})), 0, world, Division::balanced, "x").size(0);
    });
    EXPECT_EQ(sizes, balanced_sizes(length, 4));
  }
}

TEST_F(Cases, C11_SizesThatDoNotMatchAcrossPeersNameBothRanks) {
  const auto error = thrown_by([&] {
    run_ranks({.world_size = 3}, [&](Communicator& world) {
      // Seven rows for three ranks: rank 0 sends the rest to rank 1, which expects equal parts.
      const Indices send = world.rank() == 0 ? Indices{2, 3, 2} : Indices{2, 2, 2};
      const Indices receive{2, 2, 2};
      const std::int64_t rows = world.rank() == 0 ? 7 : 6;
      (void)collectives::all_to_all(world, on_device(identifiers({rows, 1})), send, receive, "heads").wait();
    });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::collective_error);
  EXPECT_THAT(error->message, HasSubstr("rank 0 sends 3 rows to rank 1, which expects 2"));
}

// Twelve tokens on seven ranks travel as fourteen in the padded form; the pads are poison.
TEST_F(Cases, C12_PadsNeverReachASoftmax) {
  const AttentionProblem problem = random_problem({.heads = 2, .streams = {12}}, 12);
  AttentionRun run{.config = ring_config(7, "allgather", Lengths::anything), .device = device.get()};
  const ParallelAttention ragged = run_parallel(problem, run);
  run.gather_form = GatherForm::padded;
  const ParallelAttention padded = run_parallel(problem, run);
  EXPECT_LE(worst_difference(problem, problem.dense(), padded), kTolerance);
  EXPECT_EQ(padded.report.ranks[6].bytes_sent, 2 * ragged.report.ranks[6].bytes_sent);  // one row and one pad
  for (std::size_t rank = 0; rank < 7; ++rank) {
    EXPECT_TRUE(bitwise_equal(padded.ranks[rank].out, ragged.ranks[rank].out));
    EXPECT_TRUE(bitwise_equal(padded.ranks[rank].lse, ragged.ranks[rank].lse));
  }
}

TEST_F(Cases, C13_RealKeysOfAPaddedSequenceAreCountedByRank) {
  struct Row {
    int ring;
    std::int64_t real, padded;
  };
  for (const Row& row : {Row{2, 7, 8}, Row{4, 698, 704}}) {
    // The tokens past the real ones are masked and hold large values.
    AttentionProblem problem = random_problem({.heads = 1, .width = 2, .streams = {row.padded}}, 13);
    for (std::int64_t key = row.real; key < row.padded; ++key) problem.v.at({0, key, 0, 0}) = 1e6;
    problem.bias = key_bias(problem, [&](auto, auto key) { return key < row.real; });
    EXPECT_LE(difference(problem, {.config = ring_config(row.ring, "allgather")}), kTolerance);
    EXPECT_LE(difference(problem, {.config = ring_config(row.ring, "alltoall")}), kTolerance);
    // Without pads: 4 and 3, or 175, 175, 174, 174.
    const AttentionProblem bare = random_problem({.heads = 1, .width = 2, .streams = {row.real}}, 13);
    EXPECT_LE(difference(bare, {.config = ring_config(row.ring, "alltoall", Lengths::anything)}), kTolerance);
  }
}

TEST_F(Cases, C14_AnEmptyChunkHasNoWeightAtAnyRingPosition) {
  for (const int ring : {2, 3, 4}) {
    AttentionProblem problem = random_problem({.heads = 2, .streams = {3 * ring}}, 14);
    const std::vector<Indices> pieces = pieces_of(problem.key_streams, ring);
    for (const char* rotate_method : {"allgather", "alltoall"}) {
      for (const double bias : {kNever, -1e9}) {
        for (const Indices& masked : pieces) {
          problem.bias = HostArray({1, 1, 1, problem.keys()});
          for (const std::int64_t key : masked) problem.bias.at({0, 0, 0, key}) = bias;
          const AttentionRun run{.config = ring_config(ring, rotate_method), .mask_form = MaskForm::additive};
          EXPECT_LE(difference(problem, run), kTolerance) << ring << " " << rotate_method << " " << bias;
        }
      }
      // Query 1 without any key.
      problem.bias = full_bias(problem, [](auto, auto, auto q, auto) { return q != 1; });
      const AttentionRun run{
          .config = ring_config(ring, rotate_method), .device = device.get(), .key_axis = KeyAxis::global};
      const ParallelAttention result = run_parallel(problem, run);
      EXPECT_LE(worst_difference(problem, problem.dense(), result), kTolerance);
      EXPECT_EQ(max_magnitude(to_host(result.ranks[0].out.narrow(1, 1, 1))), 0.0);
      EXPECT_THAT(ops::to_doubles(result.ranks[0].lse.narrow(1, 1, 1)), ElementsAre(kNever, kNever));
    }
  }
}

TEST_F(Cases, C15_ShortSequencesAreRefusedAndEmptyPartsWork) {
  for (const std::int64_t length : {1, 3}) {
    const AttentionProblem problem = random_problem({.heads = 4, .streams = {length}}, 15);
    for (const ContextParallelConfig& config :
         {ulysses_config(4, Lengths::anything), ring_config(4, "alltoall", Lengths::anything)}) {
      const auto error = thrown_by([&] { difference(problem, {.config = config}); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->message, HasSubstr("axis 1 has " + std::to_string(length) +
                                            " entries, fewer than the 4 ranks; at least 4 are needed"));
    }
  }
  // An empty middle shard, as a program of its own may make one: three and two tokens around none.
  const AttentionProblem problem = random_problem({.batch = 2, .heads = 5, .streams = {5}}, 15);
  const std::vector<Indices> pieces{{0, 1, 2}, {}, {3, 4}};
  const DenseAttention dense = problem.dense();
  for (const ContextParallelConfig& config :
       {ulysses_config(3, Lengths::anything), ring_config(3, "alltoall", Lengths::anything),
        ring_config(3, "allgather", Lengths::anything)}) {
    for (const GatherForm form : {GatherForm::ragged, GatherForm::padded}) {
      const auto results = rank_results(3, [&](Communicator& world) {
        world.set_gather_form(form);
        const ContextParallelState state(world, config);
        const Indices& own = pieces[static_cast<std::size_t>(world.rank())];
        const AttentionOptions options{.scale = problem.scale, .return_lse = true};
        return attention(on_device(selected(problem.q, 1, own)), on_device(selected(problem.k, 1, own)),
                         on_device(selected(problem.v, 1, own)), {}, options, &state);
      });
      for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_LE(max_difference(to_host(results[rank].out), selected(dense.out, 1, pieces[rank])), kTolerance);
        EXPECT_LE(max_difference(to_host(results[rank].lse), selected(dense.lse, 1, pieces[rank])), kTolerance);
      }
    }
  }
}

TEST_F(Cases, C16_LogSumExpsAreNaturalLogarithms) {
  const auto part = [&](double out, double mass) {
    return AttentionOutput{ops::full(*device, {1, 1, 1, 1}, kFloat64, out),
                           ops::full(*device, {1, 1, 1}, kFloat64, std::log(mass))};
  };
  const AttentionOutput merged = merge_softmax(part(0, 2), part(10, 8));
  EXPECT_NEAR(ops::to_doubles(merged.out).front(), 8.0, 1e-14);  // 7.2330317 with another base
  // And the device's own: two keys of logit 0 have ln 2.
  const Tensor zero = ops::zeros(*device, {1, 2, 1, 1}, kFloat64);
  EXPECT_NEAR(ops::to_doubles(ops::attention(zero, zero, zero, {}, 1.0).lse).front(), std::log(2.0), 1e-15);
}

TEST_F(Cases, C17_TokensEqualToHeadsAreNotTransposed) {
  const AttentionProblem problem = random_problem({.batch = 2, .heads = 8, .streams = {8}}, 17);
  for (const ContextParallelConfig& config :
       {ulysses_config(2), ring_config(2, "allgather"), unified_config(2, 2, "alltoall"), ulysses_config(8)}) {
    EXPECT_LE(difference(problem, {.config = config}), kTolerance) << mode_name(config);
  }
}

TEST_F(Cases, C18_AChunkFarAboveTheOthersTakesTheWholeWeightInFloat32) {
  device = make_reference_device(kFloat32);
  for (const double shift : {100.0, 1000.0}) {
    for (const int ring : {2, 3, 4}) {
      AttentionProblem problem = random_problem({.heads = 2, .streams = {2 * ring}}, 18);
      for (const Indices& above : pieces_of(problem.key_streams, ring)) {
        problem.bias = HostArray({1, 1, 1, problem.keys()});
        for (const std::int64_t key : above) problem.bias.at({0, 0, 0, key}) = shift;
        const AttentionRun run{
            .config = ring_config(ring, "alltoall"), .dtype = kFloat32, .mask_form = MaskForm::additive};
        // Logits near 1000 have float32 steps of 6e-5, so weights are off by a few of them.
        EXPECT_LE(difference(problem, run), 4 * shift * std::ldexp(1.0, -23) + 1e-5) << ring << " by " << shift;
      }
    }
  }
}

// Error against float64 in units of bfloat16, with merges in float32 and in bfloat16.
TEST_F(Cases, C19_TheErrorInBFloat16StaysFlatInTheRingUnlessMergedNarrow) {
  device = make_cpu_device();
  std::vector<double> wide, narrow;
  for (const int ring : {2, 4, 8}) {
    AttentionProblem problem = random_problem({.heads = 4, .width = 16, .streams = {64}}, 19);
    for (HostArray* array : {&problem.q, &problem.k, &problem.v}) *array = to_host(on_device(*array, kBFloat16));
    AttentionRun run{.config = ring_config(ring, "allgather"), .dtype = kBFloat16, .return_lse = false};
    wide.push_back(difference(problem, run) / std::ldexp(1.0, -8));
    run.config.convert_to_fp32 = false;
    narrow.push_back(difference(problem, run) / std::ldexp(1.0, -8));
  }
  for (const double error : wide) EXPECT_LE(error, 1.0);
  EXPECT_GT(narrow[2], wide[2]);
  EXPECT_GT(narrow[2], narrow[0]);
}

// Values 16 b + 4 s + h: two items, four tokens, four heads, two ranks.
TEST_F(Cases, C20_TwoItemsAreNotMixed) {
  const HostArray all = identifiers({2, 4, 4, 1});
  const auto results = rank_results(2, [&](Communicator& world) {
    const Tensor own = shard(on_device(all, kInt64), 1, world, Division::equal, "x");
    const Indices lengths{2, 2};
    return ops::to_doubles(scatter_heads(own, head_layout(4, 2, Division::equal), lengths, world, "test").wait());
  });
  EXPECT_THAT(results[0], ElementsAre(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29));
  EXPECT_THAT(results[1], ElementsAre(2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31));
}

// World of four, groups {0,1} and {2,3}: inside the second, group ranks are not world ranks.
TEST_F(Cases, C21_ASecondGroupWithAnOffsetWorksLikeTheFirst) {
  const std::vector<AttentionProblem> problems{random_problem({.heads = 4, .streams = {8}}, 21),
                                               random_problem({.heads = 4, .streams = {8}}, 22)};
  const Mesh ring = Mesh::parse("dp=2,ring=2,ulysses=1"), ulysses = Mesh::parse("dp=2,ring=1,ulysses=2");
  for (const Mesh& mesh : {ring, ulysses}) {
    for (const char* rotate_method : {"allgather", "alltoall"}) {
      const auto results = rank_results(4, [&](Communicator& world) {
        const ContextParallelState state(world, {.rotate_method = rotate_method, .mesh = mesh});
        const AttentionProblem& own = problems[static_cast<std::size_t>(mesh.coordinate(world.rank(), "dp"))];
        const auto part = [&](const HostArray& x) {
          return shard(on_device(x), 1, state.flat(), Division::equal, "x");
        };
        return attention(part(own.q), part(own.k), part(own.v), {}, {.scale = own.scale}, &state).out;
      });
      for (std::size_t rank = 0; rank < 4; ++rank) {
        const AttentionProblem& own = problems[rank / 2];
        const Indices tokens = pieces_of(own.query_streams, 2)[rank % 2];
        EXPECT_LE(max_difference(to_host(results[rank]), selected(own.dense().out, 1, tokens)), kTolerance)
            << mesh.text() << " " << rotate_method << ", rank " << rank;
      }
    }
  }
}

TEST_F(Cases, C28_HeadsAreDividedByTheLayerAndNotByAnEarlierModel) {
  HostDevice host;
  const HeadLayout layout = head_layout(12, 4, Division::balanced);
  EXPECT_THAT((std::vector{layout.real(0), layout.real(1), layout.real(2), layout.real(3)}), ElementsAre(3, 3, 3, 3));
  const SmallModelWeights first({.heads = 13, .layers = 1}, *device, kFloat64, 28);
  const SmallModelWeights second({.heads = 12, .layers = 1}, *device, kFloat64, 29);
  const Arguments arguments = small_model_inputs({.text = 5, .image = 9}, *device, host, kFloat64, 28);
  const auto results = rank_results(4, [&](Communicator& world) {
    std::vector<HostArray> outputs;
    for (const SmallModelWeights* weights : {&first, &second, &first}) {
      const auto model = weights->make_model();
      apply_context_parallel(*model,
                             std::make_shared<const ContextParallelState>(world, ulysses_config(4, Lengths::anything)),
                             small_model_plan({}));
      outputs.push_back(to_host(model->call(arguments).tensors.front()));
    }
    return outputs;
  });
  const HostArray dense_first = to_host(first.make_model()->call(arguments).tensors.front());
  const HostArray dense_second = to_host(second.make_model()->call(arguments).tensors.front());
  for (const auto& outputs : results) {
    EXPECT_LE(max_difference(outputs[0], dense_first), kTolerance * max_magnitude(dense_first));
    EXPECT_LE(max_difference(outputs[1], dense_second), kTolerance * max_magnitude(dense_second));
    EXPECT_EQ(outputs[2].values, outputs[0].values);
  }
}

}  // namespace
}  // namespace shardproof::test
