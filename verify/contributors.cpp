#include "verify/contributors.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "parallel/attention.h"
#include "reference/field_device.h"
#include "verify/attention_replay.h"
#include "verify/diagnosis.h"

namespace shardproof {
namespace {

// Weights that one rank may read in one call.
constexpr std::int64_t kMostWeights = std::int64_t{1} << 20;
constexpr std::uint64_t kSeed = 20;

// n, 1/n for small n, or nothing.
std::optional<std::string> small_number(std::uint32_t x) {
  constexpr std::uint32_t kMostTimes = 4096, kMostParts = 64;
  if (x <= kMostTimes) return std::to_string(x);
  for (std::uint32_t parts = 2; parts <= kMostParts; ++parts) {
    const std::uint32_t times = field::multiply_p(x, parts);
    if (times <= kMostParts) return fmt::format("{}/{}", times, parts);
  }
  return std::nullopt;
}

std::uint32_t ratio(std::uint32_t numerator, std::uint32_t denominator) {
  return field::multiply_p(numerator, field::inverse_modulo(denominator, field::kP));
}

// One row of attention: the mass and the weights of all keys.
struct ReadRow {
  std::uint32_t mass = 0;
  std::vector<std::uint32_t> weights;
};

// All rows of a call in the order batch, query, head.
class Weights {
 public:
  Weights(const Tensor& q, const Tensor& k, const AttentionMask& mask, const ContextParallelState* state,
          std::int64_t first_key, std::int64_t all_keys) {
    FieldDevice& device = dynamic_cast<FieldDevice&>(q.device());
    const std::int64_t width = q.size(3);
    for (std::int64_t block = 0; block < all_keys; block += width) {
      const AttentionResult result = attention(q, k, unit_values(device, k.shape(), first_key, block), mask,
                                               {.scale = 1.0, .return_lse = true}, state);
      const std::vector<field::Value> out = field_elements(result.out), masses = field_elements(result.lse);
      rows_.resize(masses.size());
      for (std::size_t row = 0; row < rows_.size(); ++row) {
        rows_[row].mass = masses[row].a;
        for (std::int64_t c = 0; c < std::min(width, all_keys - block); ++c)
          rows_[row].weights.push_back(out[row * static_cast<std::size_t>(width) + static_cast<std::size_t>(c)].a);
      }
    }
  }
  const std::vector<ReadRow>& rows() const { return rows_; }

 private:
  // v[key, c] = 1 where the key is the c-th of the block, in terms of the whole sequence.
  static Tensor unit_values(FieldDevice& device, const Shape& shape, std::int64_t first_key, std::int64_t block) {
    std::vector<field::Value> values(static_cast<std::size_t>(shape.numel()));
    std::size_t at = 0;
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      for (std::int64_t t = 0; t < shape[1]; ++t) {
        for (std::int64_t h = 0; h < shape[2]; ++h) {
          for (std::int64_t c = 0; c < shape[3]; ++c, ++at) {
            if (first_key + t == block + c) values[at] = {1, 1};
          }
        }
      }
    }
    return device.upload(std::as_bytes(std::span(values)), shape, field_dtype());
  }

  std::vector<ReadRow> rows_;
};

// What is wrong with a row in words; empty if nothing is.
class RowJudge {
 public:
  explicit RowJudge(const SequenceLayout& keys) : keys_(keys) {}

  std::string text(const ReadRow& actual, const ReadRow& expected) const {
    if (actual.mass == expected.mass && actual.weights == expected.weights) return {};
    const auto is_poison = [](std::uint32_t x) { return x >> 31 != 0; };
    if (is_poison(actual.mass) || std::any_of(actual.weights.begin(), actual.weights.end(), is_poison))
      return "reads memory that nothing was received into";
    std::string masked;
    for (std::size_t key = 0; key < actual.weights.size(); ++key) {
      if (expected.weights[key] == 0 && actual.weights[key] != 0)
        add(masked, key_text(key) + " counted although masked");
    }
    if (!masked.empty()) return masked;
    if (const std::optional<std::string> counts = counts_text(actual, expected)) return *counts;
    if (actual.weights == expected.weights) return "every weight is right, but not the log-sum-exp";
    return groups_text(actual, expected);
  }

 private:
  static void add(std::string& text, const std::string& more) { text += (text.empty() ? "" : ", ") + more; }

  std::string key_text(std::size_t key) const {
    int member = 0;
    while (keys_.start(member + 1) <= static_cast<std::int64_t>(key)) ++member;
    return fmt::format("key {} (token {} of rank {}'s)", key, static_cast<std::int64_t>(key) - keys_.start(member),
                       member);
  }

  // Sums of exponentials that are small multiples of what they should be; nothing if they are not.
  std::optional<std::string> counts_text(const ReadRow& actual, const ReadRow& expected) const {
    std::map<std::string, std::string> by_count;
    for (std::size_t key = 0; key < actual.weights.size(); ++key) {
      if (expected.weights[key] == 0) continue;
      const std::uint32_t times = ratio(field::multiply_p(actual.weights[key], actual.mass),
                                        field::multiply_p(expected.weights[key], expected.mass));
      const std::optional<std::string> number = small_number(times);
      if (!number) return std::nullopt;
      if (*number != "1")
        add(by_count[*number == "0" ? "missing" : fmt::format("counted {} times", *number)], key_text(key));
    }
    if (by_count.empty()) return std::nullopt;
    std::string text;
    for (const auto& [count, keys] : by_count) text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", count, keys);
    return text;
  }

  // Keys whose weights are wrong by one factor belong together.
  static std::string groups_text(const ReadRow& actual, const ReadRow& expected) {
    std::map<std::uint32_t, std::vector<bool>> by_factor;
    for (std::size_t key = 0; key < actual.weights.size(); ++key) {
      if (expected.weights[key] == 0) continue;
      std::vector<bool>& keys = by_factor[ratio(actual.weights[key], expected.weights[key])];
      keys.resize(actual.weights.size());
      keys[key] = true;
    }
    if (by_factor.size() == 1) return "all weights are wrong by one factor";
    if (by_factor.size() > actual.weights.size() / 2 && by_factor.size() > 4) return "no weight is right";
    std::string text;
    for (const auto& [factor, keys] : by_factor)
      text += fmt::format("{}keys {}", text.empty() ? "" : " against ", places_text(keys));
    return "weighted wrongly against each other: " + text;
  }

  const SequenceLayout& keys_;
};

// The queries and heads of one rank that are wrong in the same words.
struct KeyPlaces {
  std::vector<bool> queries, heads;
};

class ContributorCheck {
 public:
  ContributorCheck(const ReplayedCall& replayed, std::uint64_t seed)
      : replayed_(replayed), device_(make_field_device(kSeed, FieldCast::kept)), mask_(replayed.call, seed) {}

  std::vector<std::string> run() {
    const AttentionCall& call = replayed_.call;
    const Tensor q = whole("q", call.q, replayed_.queries.total()), k = whole("k", call.k, replayed_.keys.total());
    const Tensor own_q = q.narrow(1, replayed_.first_query, call.q[1]);
    const std::int64_t keys = replayed_.keys.total();
    const Weights actual(own_q, k.narrow(1, replayed_.first_key, call.k[1]),
                         mask_.of_rank(*device_, replayed_.first_query, replayed_.first_key), &replayed_.state,
                         replayed_.first_key, keys);
    const Weights expected(own_q, k, whole_mask(), nullptr, 0, keys);
    return compare(actual.rows(), expected.rows());
  }

 private:
  // The whole operand, the same on all ranks.
  Tensor whole(std::string_view name, const Shape& part, std::int64_t tokens) {
    return random_field_tensor(*device_, kSeed, name, {part[0], tokens, part[2], part[3]});
  }

  // Of this rank's queries over the keys of all ranks.
  AttentionMask whole_mask() const {
    if (!mask_.defined()) return {};
    const Shape& recorded = replayed_.call.mask;
    const std::int64_t keys = replayed_.keys.total();
    const Shape shape{recorded[0], recorded[1], recorded[2], keys};
    std::vector<std::byte> values;
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      for (std::int64_t h = 0; h < shape[1]; ++h) {
        for (std::int64_t i = 0; i < shape[2]; ++i) {
          for (std::int64_t j = 0; j < keys; ++j)
            values.push_back(std::byte{mask_.attends(b, h, replayed_.first_query + i, j)});
        }
      }
    }
    return {.values = device_->upload(values, shape, kBool),
            .key_axis = KeyAxis::local,
            .query_axis = replayed_.call.query_axis,
            .head_axis = shape[1] == 1 ? HeadAxis::one : HeadAxis::all};
  }

  std::vector<std::string> compare(const std::vector<ReadRow>& actual, const std::vector<ReadRow>& expected) const {
    const Shape& shape = replayed_.call.q;
    const RowJudge judge(replayed_.keys);
    std::vector<std::string> order;
    std::map<std::string, KeyPlaces> by_text;
    std::size_t row = 0;
    for (std::int64_t b = 0; b < shape[0]; ++b) {
      for (std::int64_t t = 0; t < shape[1]; ++t) {
        for (std::int64_t h = 0; h < shape[2]; ++h, ++row) {
          const std::string text = judge.text(actual[row], expected[row]);
          if (text.empty()) continue;
          const auto [found, is_new] = by_text.try_emplace(text);
          if (is_new) {
            order.push_back(text);
            found->second = {std::vector<bool>(static_cast<std::size_t>(shape[1])),
                             std::vector<bool>(static_cast<std::size_t>(shape[2]))};
          }
          found->second.queries[static_cast<std::size_t>(t)] = true;
          found->second.heads[static_cast<std::size_t>(h)] = true;
        }
      }
    }
    std::vector<std::string> differences;
    for (const std::string& text : order) {
      const KeyPlaces& places = by_text.at(text);
      differences.push_back(fmt::format("rank {}, its queries {}, heads {}: {}", replayed_.rank,
                                        places_text(places.queries), places_text(places.heads), text));
    }
    return differences;
  }

  const ReplayedCall& replayed_;
  std::unique_ptr<FieldDevice> device_;
  DrawnMask mask_;
};

}  // namespace

std::vector<std::string> wrong_contributors(const ParallelRun& run, const ParallelRunOptions& options) {
  std::vector<std::string> differences;
  if (!options.config.context_parallel_config || run.end != RunEnd::completed) return differences;
  const int world = run.mesh.size();
  for (const CallOfAllRanks& call : different_attention_calls(run)) {
    const AttentionCall& first = call.by_rank.front();
    if (first.q[0] * first.q[1] * first.q[2] * first.k[1] * world > kMostWeights) continue;
    replay_on_all_ranks(
        options, call,
        [&](const ReplayedCall& replayed) { return ContributorCheck(replayed, options.schedule_seed).run(); },
        differences);
    // The same code makes all calls: the first that is wrong says it.
    if (!differences.empty()) break;
  }
  return differences;
}

}  // namespace shardproof
