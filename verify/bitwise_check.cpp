#include "verify/bitwise_check.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "core/ops.h"
#include "core/random.h"
#include "parallel/attention.h"
#include "reference/dyadic_device.h"
#include "sim/cpu_device.h"
#include "verify/attention_replay.h"

namespace shardproof {
namespace {

constexpr std::int64_t kMostWork = std::int64_t{1} << 28;  // products of one rank's call that are worth their time
constexpr std::int64_t kLargestValue = 8;

// A row of an operand: batch entry, token of the whole sequence, head.
struct Row {
  std::int64_t batch = 0, token = 0, head = 0;
};

// Operands and right answers by their place in the whole, undivided sequence.
class Problem {
 public:
  virtual ~Problem() = default;
  virtual double query(const Row& row, std::int64_t channel) const = 0;
  virtual double key(const Row& row, std::int64_t channel) const = 0;
  // A whole number from 1 to kLargestValue, negative in every third channel: sums of a channel never cancel to 0, where
  // a probe could not be exact.
  double value(const Row& row, std::int64_t channel) const {
    const double size = static_cast<double>(values_.below(index_of(row, channel), kLargestValue) + 1);
    return (row.head + channel) % 3 == 0 ? -size : size;
  }
  // All channels of the query's result.
  virtual std::vector<double> answer(const Row& row) const = 0;

 protected:
  Problem(std::uint64_t seed, std::int64_t keys, std::int64_t width, const DrawnMask& mask)
      : values_(seed, "bits: values"), keys_(keys), width_(width), mask_(mask) {}
  static std::uint64_t index_of(const Row& row, std::int64_t channel) {
    return ((static_cast<std::uint64_t>(row.batch) << 46U) + (static_cast<std::uint64_t>(row.token) << 24U) +
            (static_cast<std::uint64_t>(row.head) << 12U)) +
           static_cast<std::uint64_t>(channel);
  }
  bool attends(const Row& row, std::int64_t key) const { return mask_.attends(row.batch, row.head, row.token, key); }
  std::int64_t keys() const { return keys_; }
  std::int64_t width() const { return width_; }

 private:
  RandomStream values_;
  std::int64_t keys_, width_;
  const DrawnMask& mask_;
};

// Keys have codes of +1 and -1, and a query is the code of its winner times a factor. With `twins`, the keys i and
// i + ceil(keys / 2) have the same code.
class Probe final : public Problem {
 public:
  Probe(std::uint64_t seed, std::int64_t keys, std::int64_t width, const DrawnMask& mask, bool twins, double gap)
      : Problem(seed, keys, width, mask), winners_(seed, "bits: winners"), codes_(twins ? (keys + 1) / 2 : keys) {
    bits_ = std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(codes_ - 1))));
    const double distance = static_cast<double>(width / bits_);
    // The logit of the winner less that of another key is at least 2 * scale * factor * distance.
    factor_ = std::exp2(std::ceil(std::log2(gap * std::sqrt(static_cast<double>(width)) / (2.0 * distance))));
  }
  // False where a head is too narrow for codes that all differ.
  bool fits() const { return width() >= bits_; }

  double query(const Row& row, std::int64_t channel) const override {
    const std::optional<std::int64_t> winner = winner_of(row);
    return winner ? factor_ * code(*winner, channel) : 0.0;
  }
  double key(const Row& row, std::int64_t channel) const override { return code(row.token, channel); }
  std::vector<double> answer(const Row& row) const override {
    std::vector<double> sum(static_cast<std::size_t>(width()), 0.0);
    const std::optional<std::int64_t> winner = winner_of(row);
    if (!winner) return sum;
    double count = 0.0;
    for (std::int64_t key = *winner % codes_; key < keys(); key += codes_) {
      if (!attends(row, key)) continue;
      count += 1.0;
      for (std::int64_t c = 0; c < width(); ++c) {
        sum[static_cast<std::size_t>(c)] += value({row.batch, key, row.head}, c);
      }
    }
    for (double& each : sum) each /= count;
    return sum;
  }

 private:
  double code(std::int64_t token, std::int64_t channel) const {
    return (static_cast<std::uint64_t>(token % codes_) >> static_cast<unsigned>(channel % bits_) & 1U) != 0 ? 1.0
                                                                                                            : -1.0;
  }
  // A drawn key, or the next one that the query may attend to; none where all are masked.
  std::optional<std::int64_t> winner_of(const Row& row) const {
    const std::int64_t first = winners_.below(index_of(row, 0), keys());
    for (std::int64_t i = 0; i < keys(); ++i) {
      if (attends(row, (first + i) % keys())) return (first + i) % keys();
    }
    return std::nullopt;
  }

  RandomStream winners_;
  std::int64_t codes_;
  int bits_ = 1;
  double factor_ = 1.0;
};

// Logits are sums of two products of -2..2 with -1, 0 or 1.
class Dyadic final : public Problem {
 public:
  static constexpr int kRange = 8;
  Dyadic(std::uint64_t seed, std::int64_t keys, std::int64_t width, const DrawnMask& mask)
      : Problem(seed, keys, width, mask), drawn_(seed, "bits: logits") {}

  double query(const Row& row, std::int64_t channel) const override {
    return channel < 2 ? static_cast<double>(drawn_.below(2 * index_of(row, channel), 3) - 1) : 0.0;
  }
  double key(const Row& row, std::int64_t channel) const override {
    return static_cast<double>(drawn_.below(2 * index_of(row, channel) + 1, 5) - 2);
  }
  std::vector<double> answer(const Row& row) const override {
    std::vector<double> sum(static_cast<std::size_t>(width()), 0.0);
    double weights = 0.0;
    for (std::int64_t key = 0; key < keys(); ++key) {
      if (!attends(row, key)) continue;
      double logit = 0.0;
      for (std::int64_t c = 0; c < std::min<std::int64_t>(2, width()); ++c) {
        logit += query(row, c) * this->key({row.batch, key, row.head}, c);
      }
      const double weight = std::exp2(logit);
      weights += weight;
      for (std::int64_t c = 0; c < width(); ++c) {
        sum[static_cast<std::size_t>(c)] += weight * value({row.batch, key, row.head}, c);
      }
    }
    if (weights == 0.0) return sum;
    for (double& each : sum) each = quotient_(each, weights);
    return sum;
  }
  void round_to(DType real) {
    if (real == kFloat64) return;
    quotient_ = [](double a, double b) { return static_cast<double>(static_cast<float>(a) / static_cast<float>(b)); };
  }

 private:
  RandomStream drawn_;
  std::function<double(double, double)> quotient_ = [](double a, double b) { return a / b; };
};

using Element = double (Problem::*)(const Row& row, std::int64_t channel) const;

std::vector<double> operand(const Problem& problem, Element element, const Shape& shape, std::int64_t first) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(shape.numel()));
  for (std::int64_t b = 0; b < shape[0]; ++b) {
    for (std::int64_t t = 0; t < shape[1]; ++t) {
      for (std::int64_t h = 0; h < shape[2]; ++h) {
        for (std::int64_t c = 0; c < shape[3]; ++c) values.push_back((problem.*element)({b, first + t, h}, c));
      }
    }
  }
  return values;
}

// How values get to a device and back.
struct Transport {
  std::function<Tensor(std::span<const double> values, const Shape& shape)> upload;
  std::function<std::vector<double>(const Tensor& x)> download;
  double scale = 1.0;
};

std::vector<std::string> compare_on_rank(const ReplayedCall& replayed, const Problem& problem, const DrawnMask& mask,
                                         Device& device, const Transport& transport) {
  const AttentionCall& call = replayed.call;
  const auto load = [&](Element element, const Shape& shape, std::int64_t first) {
    return transport.upload(operand(problem, element, shape, first), shape);
  };
  const Tensor q = load(&Problem::query, call.q, replayed.first_query);
  const Tensor k = load(&Problem::key, call.k, replayed.first_key);
  const Tensor v = load(&Problem::value, call.k, replayed.first_key);
  const AttentionMask own_mask = mask.of_rank(device, replayed.first_query, replayed.first_key);
  const std::vector<double> out =
      transport.download(attention(q, k, v, own_mask, {.scale = transport.scale}, &replayed.state).out);
  std::size_t at = 0;
  for (std::int64_t b = 0; b < call.q[0]; ++b) {
    for (std::int64_t t = 0; t < call.q[1]; ++t) {
      for (std::int64_t h = 0; h < call.q[2]; ++h) {
        const std::vector<double> expected = problem.answer({b, replayed.first_query + t, h});
        for (std::size_t c = 0; c < expected.size(); ++c, ++at) {
          if (out[at] == expected[c]) continue;
          return {fmt::format("rank {}: output of query token {}, head {}, channel {} of batch entry {} is {}, not {}",
                              replayed.rank, replayed.first_query + t, h, c, b, out[at], expected[c])};
        }
      }
    }
  }
  return {};
}

double unit_of(DType dtype) {
  if (dtype == kFloat64) return 0x1p-53;
  return dtype == kFloat32 ? 0x1p-24 : 0x1p-8;
}

class BitwiseCheck {
 public:
  BitwiseCheck(const ParallelRun& run, const ParallelRunOptions& options) : run_(run), options_(options) {
    // Merged in the values' own type, dyadic sums would be divided at every step.
    dyadic_options_.config.context_parallel_config->convert_to_fp32 = true;
  }

  BitwiseResult result() && {
    for (const CallOfAllRanks& call : different_attention_calls(run_)) {
      const AttentionCall& first = call.by_rank.front();
      std::int64_t keys = 0;
      for (const AttentionCall& each : call.by_rank) keys = std::max(keys, each.k[1]);
      const std::int64_t most_keys = keys * static_cast<std::int64_t>(call.by_rank.size());
      if (first.q.numel() * most_keys > kMostWork || first.q[1] * run_.mesh.size() >= std::int64_t{1} << 22) {
        result_.not_checked.push_back(call_text(first) + " is too large for answers to the last bit");
        continue;
      }
      ++result_.attention_calls;
      for (const DType dtype : {kFloat64, kFloat32, kBFloat16}) {
        for (const bool twins : {false, true}) probe(call, dtype, twins);
      }
      for (const DType real : {kFloat64, kFloat32}) dyadic(call, real, most_keys);
    }
    return std::move(result_);
  }

 private:
  void probe(const CallOfAllRanks& call, DType dtype, bool twins) {
    const std::string name = fmt::format("{} probe with {}", dtype.name(), twins ? "two winners" : "one winner");
    const AttentionCall& first = call.by_rank.front();
    std::atomic<bool> fits = true;
    compare(options_, call, name, [&](const ReplayedCall& replayed) -> std::vector<std::string> {
      const DrawnMask mask(replayed.call, options_.schedule_seed);
      const std::int64_t keys = replayed.keys.total();
      const Probe problem(options_.schedule_seed, keys, first.q[3], mask, twins, probe_gap(dtype, keys));
      if (!problem.fits()) {
        fits = false;
        return {};
      }
      const Transport transport{
          .upload = [&](std::span<const double> values,
                        const Shape& shape) { return ops::from_doubles(*cpu_, values, shape, dtype); },
          .download = [](const Tensor& x) { return ops::to_doubles(x); },
          .scale = 1.0 / std::sqrt(static_cast<double>(first.q[3]))};
      return compare_on_rank(replayed, problem, mask, *cpu_, transport);
    });
    if (fits) return;
    --result_.problems;
    result_.not_checked.push_back(fmt::format("{}: heads of {} channels cannot tell so many keys apart ({})", name,
                                              first.q[3], call_text(first)));
  }

  void dyadic(const CallOfAllRanks& call, DType real, std::int64_t most_keys) {
    const std::string name = fmt::format("dyadic {}", real.name());
    const double sum = static_cast<double>(most_keys * kLargestValue);
    if (Dyadic::kRange + static_cast<int>(std::ceil(std::log2(sum))) > dyadic_precision(real)) {
      result_.not_checked.push_back(
          fmt::format("{}: sums over {} keys need more than {} bits", name, most_keys, dyadic_precision(real)));
      return;
    }
    compare(dyadic_options_, call, name, [&](const ReplayedCall& replayed) {
      const DrawnMask mask(replayed.call, options_.schedule_seed);
      Dyadic problem(options_.schedule_seed, replayed.keys.total(), replayed.call.q[3], mask);
      problem.round_to(real);
      return compare_on_rank(replayed, problem, mask, *dyadic_, dyadic_transport(real));
    });
  }

  Transport dyadic_transport(DType real) {
    return {.upload =
                [this, real](std::span<const double> values, const Shape& shape) {
                  const DType type = dyadic_dtype(real);
                  if (real == kFloat64) return dyadic_->upload(std::as_bytes(values), shape, type);
                  const std::vector<float> narrow(values.begin(), values.end());
                  return dyadic_->upload(std::as_bytes(std::span(narrow)), shape, type);
                },
            .download =
                [real](const Tensor& x) {
                  std::vector<double> values(static_cast<std::size_t>(x.numel()));
                  if (real == kFloat64) {
                    x.device().download(std::as_writable_bytes(std::span(values)), x);
                    return values;
                  }
                  std::vector<float> narrow(values.size());
                  x.device().download(std::as_writable_bytes(std::span(narrow)), x);
                  return std::vector<double>(narrow.begin(), narrow.end());
                },
            .scale = 1.0};
  }

  void compare(const ParallelRunOptions& options, const CallOfAllRanks& call, const std::string& name,
               const std::function<std::vector<std::string>(const ReplayedCall&)>& body) {
    ++result_.problems;
    std::vector<std::string> differences;
    replay_on_all_ranks(options, call, body, differences);
    for (const std::string& difference : differences) {
      if (result_.differences.size() < kMostDifferences) {
        result_.differences.push_back(fmt::format("{}: {}", name, difference));
      }
    }
  }

  const ParallelRun& run_;
  const ParallelRunOptions& options_;
  ParallelRunOptions dyadic_options_ = options_;
  std::unique_ptr<Device> cpu_ = make_cpu_device();
  std::unique_ptr<Device> dyadic_ = make_dyadic_device();
  BitwiseResult result_;
};

}  // namespace

double probe_gap(DType dtype, std::int64_t keys) {
  return std::log(2.0 * static_cast<double>(keys * kLargestValue) / unit_of(dtype)) + 1.0;
}

BitwiseResult check_bits(const ParallelRun& run, const ParallelRunOptions& options) {
  if (!options.config.context_parallel_config || run.end != RunEnd::completed) return {};
  return BitwiseCheck(run, options).result();
}

}  // namespace shardproof
