#include "verify/shrink.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "core/error.h"
#include "verify/subject.h"

namespace shardproof {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMostHeads = 5;
constexpr std::int64_t kMostLayers = 2;
constexpr std::int64_t kMostBatch = 2;
constexpr const char* kCase = "sized";

struct Tokens {
  std::int64_t text = 1, image = 1;
};

std::vector<std::string> rotations_of(int ring_degree) {
  return ring_degree > 1 ? std::vector<std::string>{"allgather", "alltoall"} : std::vector<std::string>{"allgather"};
}

// Context parallelism of that many ranks: ring, Ulysses, their forms for uneven sizes, Unified.
std::vector<ContextParallelConfig> context_configurations(int ranks, const ContextParallelConfig& like) {
  std::vector<ContextParallelConfig> all;
  const auto add = [&](int ring, int ulysses, bool ring_anything, bool ulysses_anything) {
    for (const std::string& rotation : rotations_of(ring)) {
      ContextParallelConfig config;
      config.convert_to_fp32 = like.convert_to_fp32;
      if (ring > 1) config.ring_degree = ring;
      if (ulysses > 1) config.ulysses_degree = ulysses;
      config.rotate_method = rotation;
      config.ring_anything = ring_anything;
      config.ulysses_anything = ulysses_anything;
      all.push_back(config);
    }
  };
  add(ranks, 1, false, false);
  add(1, ranks, false, false);
  add(ranks, 1, true, false);
  add(1, ranks, false, true);
  for (int ring = 2; ring <= ranks / 2; ++ring) {
    if (ranks % ring == 0) add(ring, ranks / ring, false, false);
  }
  return all;
}

int ranks_of(const ParallelConfig& config) { return effective_mesh(config).size(); }

// A search in one model under one plan.
class Search {
 public:
  explicit Search(const ShrinkInput& input)
      : input_(input),
        end_(Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(input.most_seconds))) {
    input_.exact.bits = input.tier == ShrinkTier::exact_bits;
    input_.exact.diagnose = false;
  }

  std::optional<SmallestFailure> run() {
    for (const ParallelConfig& config : smaller_configurations(input_.config)) {
      const std::optional<Tokens> most = probe(config);
      if (!most) continue;
      for (std::int64_t total = 2; total <= most->text + most->image; ++total) {
        for (std::int64_t text = 1; text < total; ++text) {
          const Tokens tokens{text, total - text};
          if (!fails_somewhere(config, tokens)) continue;
          if (auto found = smallest_of(config, tokens)) return found;
        }
      }
    }
    return std::nullopt;
  }
  int tried() const { return tried_; }
  bool was_cut_off() const { return was_cut_off_; }

 private:
  // With all features of the case that failed, and with none.
  std::vector<std::vector<std::string>> rich_features() const {
    std::vector<std::vector<std::string>> all{input_.features};
    if (!input_.features.empty()) all.emplace_back();
    return all;
  }

  // As many heads as leave a rank two, and for Ulysses Anything as many as leave the last rank fewer.
  static std::vector<std::int64_t> rich_heads(const ParallelConfig& config) {
    const auto context = config.context_parallel_config.value_or(ContextParallelConfig{});
    const std::int64_t ulysses = effective_ulysses_degree(context), shares = effective_tp_degree(config);
    std::vector<std::int64_t> heads{2 * ulysses * shares};
    if (context.ulysses_anything && ulysses > 1) heads.push_back((2 * ulysses - 1) * shares);
    return heads;
  }

  // The first of a few sizes that fails, if one does: text and image divide, text alone does not, neither does.
  std::optional<Tokens> probe(const ParallelConfig& config) {
    const std::int64_t ranks = ranks_of(config);
    const Tokens probes[] = {
        {ranks, ranks},     {ranks, ranks + 1},         {ranks + 1, ranks + 1}, {3, 4},
        {ranks, 4 * ranks}, {ranks + 1, 2 * ranks + 1}, {2 * ranks, 3 * ranks}, {2 * ranks + 1, 3 * ranks - 1}};
    for (const Tokens& tokens : probes) {
      if (fails_somewhere(config, tokens)) return tokens;
    }
    return std::nullopt;
  }

  // Whether a large model does with so many tokens.
  bool fails_somewhere(const ParallelConfig& config, const Tokens& tokens) {
    for (const std::int64_t heads : rich_heads(config)) {
      for (const std::vector<std::string>& features : rich_features()) {
        if (failure({tokens.text, tokens.image, heads, kMostLayers, kMostBatch, features}, config)) return true;
      }
    }
    return false;
  }

  // None, every single one, all.
  std::vector<std::vector<std::string>> subsets_of_features() const {
    std::vector<std::vector<std::string>> all{{}};
    for (const std::string& feature : input_.features) all.push_back({feature});
    if (input_.features.size() > 1) all.push_back(input_.features);
    return all;
  }

  std::optional<SmallestFailure> smallest_of(const ParallelConfig& config, const Tokens& tokens) {
    std::vector<std::int64_t> heads_to_try;
    for (std::int64_t heads = 1; heads <= kMostHeads; ++heads) heads_to_try.push_back(heads);
    for (const std::int64_t heads : rich_heads(config)) {
      if (heads > kMostHeads) heads_to_try.push_back(heads);
    }
    std::sort(heads_to_try.begin(), heads_to_try.end());
    for (const std::int64_t heads : heads_to_try) {
      for (std::int64_t layers = 1; layers <= kMostLayers; ++layers) {
        for (const std::vector<std::string>& features : subsets_of_features()) {
          for (std::int64_t batch = 1; batch <= kMostBatch; ++batch) {
            const ModelSize size{tokens.text, tokens.image, heads, layers, batch, features};
            if (!failure(size, config)) continue;
            if (auto confirmed = confirmed_failure(size, config)) return confirmed;
          }
        }
      }
    }
    return std::nullopt;
  }

  // Under seeds of its own, with its diagnosis.
  std::optional<SmallestFailure> confirmed_failure(const ModelSize& size, const ParallelConfig& config) {
    ExactOptions exact = input_.exact;
    exact.diagnose = true;
    ++exact.seed;
    VerifierOptions rounding = input_.rounding;
    ++rounding.seed;
    std::optional<VerificationResult> result = failure(size, config, exact, rounding);
    if (!result) return std::nullopt;
    return SmallestFailure{size, config, std::move(*result)};
  }

  std::optional<VerificationResult> failure(const ModelSize& size, const ParallelConfig& config) {
    return failure(size, config, input_.exact, input_.rounding);
  }

  // What verification says of it, if it fails like the one that failed.
  std::optional<VerificationResult> failure(const ModelSize& size, const ParallelConfig& config,
                                            const ExactOptions& exact, const VerifierOptions& rounding) {
    was_cut_off_ = was_cut_off_ || Clock::now() > end_;
    if (was_cut_off_) return std::nullopt;
    const bool is_exact = input_.tier != ShrinkTier::rounding;
    try {
      Subject subject = Subject::of_size(input_.model, input_.settings, size, is_exact ? exact.seed : rounding.seed);
      const ParallelPlans plans = input_.plans(subject.config());
      ++tried_;
      VerificationResult result = is_exact ? ExactVerifier(subject, exact).verify(kCase, config, plans)
                                           : Verifier(subject, rounding).verify(kCase, config, plans);
      if (result.verdict != Verdict::different || result.stopped != input_.stopped) return std::nullopt;
      return result;
    } catch (const std::exception&) {
      // A size that the model cannot have, that the plan does not fit, or under which a mistake asks for what nobody
      // has: no failure like the one that is looked for.
      return std::nullopt;
    }
  }

  ShrinkInput input_;
  Clock::time_point end_;
  int tried_ = 0;
  bool was_cut_off_ = false;
};

}  // namespace

std::vector<ParallelConfig> smaller_configurations(const ParallelConfig& failed) {
  std::vector<ParallelConfig> all;
  const auto& context = failed.context_parallel_config;
  const auto& tensor = failed.tensor_parallel_config;
  const int most = ranks_of(failed);
  for (int ranks = 2; ranks <= most; ++ranks) {
    const auto contexts_of = [&](int number) {
      return context ? context_configurations(number, *context) : std::vector<ContextParallelConfig>();
    };
    for (const ContextParallelConfig& config : contexts_of(ranks)) all.push_back({.context_parallel_config = config});
    for (int degree = ranks; tensor && degree >= 2; --degree) {
      if (ranks % degree != 0) continue;
      const TensorParallelConfig shares{.tp_degree = degree, .device_type = tensor->device_type};
      if (degree == ranks) {
        all.push_back({.tensor_parallel_config = shares});
        continue;
      }
      for (const ContextParallelConfig& config : contexts_of(ranks / degree))
        all.push_back({.context_parallel_config = config, .tensor_parallel_config = shares});
    }
  }
  all.push_back(failed);
  return all;
}

Shrunk shrink(const ShrinkInput& input) {
  sized_config(input.model, input.settings, {});  // throws for a model without sizes
  const Clock::time_point start = Clock::now();
  Search search(input);
  Shrunk shrunk;
  shrunk.smallest = search.run();
  shrunk.tried = search.tried();
  shrunk.was_cut_off = search.was_cut_off();
  shrunk.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return shrunk;
}

}  // namespace shardproof
