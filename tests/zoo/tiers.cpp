#include "tests/zoo/tiers.h"

#include <functional>
#include <map>

#include "core/error.h"
#include "tests/zoo/helpers.h"
#include "verify/bitwise_check.h"
#include "verify/exact_verifier.h"
#include "verify/structure_check.h"
#include "verify/verifier.h"

namespace shardproof::zoo {
namespace {

// A fault that the tier's numbers cannot express is none of its business.
Judgement judged(Judgement::End end, std::string reason) {
  if (reason.find(kNeedsFloats) != std::string::npos) end = Judgement::End::not_checked;
  return {end, std::move(reason)};
}

// A subject and its verifier, which keeps the dense runs.
struct Bench {
  Subject subject;
  std::unique_ptr<Verifier> verifier;
};

class Benches {
 public:
  explicit Benches(const VerifierOptions& options) : options_(options) {}
  Verifier& verifier_of(const std::string& model) {
    std::unique_ptr<Bench>& bench = benches_[model];
    if (!bench) {
      bench = std::make_unique<Bench>(Bench{Subject::of_model(model_named(model), options_.seed), nullptr});
      bench->verifier = std::make_unique<Verifier>(bench->subject, options_);
    }
    return *bench->verifier;
  }
  const VerifierOptions& options() const { return options_; }

 private:
  VerifierOptions options_;
  std::map<std::string, std::unique_ptr<Bench>> benches_;
};

// Attention calls and movements of a run made again on operands that show more than numbers do.
class ReplayTier final : public Tier {
 public:
  using Check = std::function<std::vector<std::string>(const ParallelRun&, const ParallelRunOptions&)>;
  ReplayTier(std::string_view name, Check differences, std::uint64_t seed)
      : name_(name), differences_(std::move(differences)), benches_({.seed = seed, .schedule_seed = seed}) {}
  std::string_view name() const override { return name_; }

  Judgement judge(const Scenario& scenario, const ParallelPlans& plans) override {
    try {
      const ParallelRun run =
          benches_.verifier_of(scenario.model).run(scenario.case_name, scenario.config, plans, GatherForm::ragged);
      if (run.end == RunEnd::refused) return {Judgement::End::refused, run.reason};
      if (run.end == RunEnd::failed) return judged(Judgement::End::stopped, run.reason);
      const std::vector<std::string> differences =
          differences_(run, {.config = scenario.config, .schedule_seed = benches_.options().schedule_seed});
      if (differences.empty()) return {Judgement::End::passed, {}};
      return judged(Judgement::End::differs, differences.front());
    } catch (const std::exception& error) {
      return judged(Judgement::End::stopped, error.what());
    }
  }

 private:
  std::string_view name_;
  Check differences_;
  Benches benches_;
};

// What a verdict says of a run.
Judgement::End end_of(const VerificationResult& result) {
  switch (result.verdict) {
    case Verdict::exact:
    case Verdict::rounding_equivalent: return Judgement::End::passed;
    case Verdict::refused: return Judgement::End::refused;
    case Verdict::not_checked: return Judgement::End::not_checked;
    case Verdict::different: break;
  }
  return result.stopped ? Judgement::End::stopped : Judgement::End::differs;
}

// Exact arithmetic, on two seeds.
class ExactTier final : public Tier {
 public:
  explicit ExactTier(std::uint64_t seed) : seed_(seed) {}
  std::string_view name() const override { return "exact"; }

  Judgement judge(const Scenario& scenario, const ParallelPlans& plans) override {
    try {
      const VerificationResult result = verifier_of(scenario.model).verify(scenario.case_name, scenario.config, plans);
      return judged(end_of(result), result.reason);
    } catch (const std::exception& error) {
      return judged(Judgement::End::stopped, error.what());
    }
  }

 private:
  struct ExactBench {
    Subject subject;
    std::unique_ptr<ExactVerifier> verifier;
  };

  ExactVerifier& verifier_of(const std::string& model) {
    std::unique_ptr<ExactBench>& bench = exact_[model];
    if (!bench) {
      bench = std::make_unique<ExactBench>(ExactBench{Subject::of_model(model_named(model), seed_), nullptr});
      bench->verifier = std::make_unique<ExactVerifier>(
          bench->subject, ExactOptions{.bits = false, .diagnose = false, .seed = seed_, .schedule_seed = seed_});
    }
    return *bench->verifier;
  }

  std::uint64_t seed_;
  std::map<std::string, std::unique_ptr<ExactBench>> exact_;
};

// Rounding of one element type, end to end.
class RoundingTier final : public Tier {
 public:
  RoundingTier(DType dtype, DeviceChoice device, std::uint64_t seed)
      : benches_({.dtype = dtype,
                  .device = device,
                  .seed = seed,
                  .schedule_seed = seed,
                  .modules = false,
                  .extremes = false}) {}
  std::string_view name() const override { return benches_.options().dtype.name(); }

  Judgement judge(const Scenario& scenario, const ParallelPlans& plans) override {
    try {
      Verifier& verifier = benches_.verifier_of(scenario.model);
      const VerificationResult result = verifier.verify(scenario.case_name, scenario.config, plans);
      return judged(end_of(result), result.reason);
    } catch (const std::exception& error) {
      return judged(Judgement::End::stopped, error.what());
    }
  }

 private:
  Benches benches_;
};

// Every module by itself, in float32 and in bfloat16: outputs of the whole model are among them, but errors that have
// compounded are not.
class ModulesTier final : public Tier {
 public:
  explicit ModulesTier(std::uint64_t seed)
      : float32_({.dtype = kFloat32, .device = DeviceChoice::cpu, .seed = seed, .schedule_seed = seed}),
        bfloat16_({.dtype = kBFloat16, .device = DeviceChoice::cpu, .seed = seed, .schedule_seed = seed}) {}
  std::string_view name() const override { return "modules"; }

  Judgement judge(const Scenario& scenario, const ParallelPlans& plans) override {
    Judgement judgement;
    for (Benches* benches : {&float32_, &bfloat16_}) {
      judgement = judged_by(benches->verifier_of(scenario.model), scenario, plans);
      if (judgement.end != Judgement::End::passed) break;
    }
    return judgement;
  }

 private:
  static Judgement judged_by(Verifier& verifier, const Scenario& scenario, const ParallelPlans& plans) {
    try {
      const ParallelRun run = verifier.run(scenario.case_name, scenario.config, plans, GatherForm::ragged);
      if (run.end == RunEnd::refused) return {Judgement::End::refused, run.reason};
      if (run.end == RunEnd::failed) return judged(Judgement::End::stopped, run.reason);
      std::string obstacle;
      const ModuleCheck check = verifier.module_ratios(scenario.case_name, scenario.config, plans, run, obstacle);
      if (!obstacle.empty()) return {Judgement::End::not_checked, obstacle};
      if (!check.wrong.empty()) return judged(Judgement::End::differs, module_ratio_text(check.wrong.front()));
      if (!check.failure.empty()) return judged(Judgement::End::stopped, check.failure);
      return {Judgement::End::passed, {}};
    } catch (const std::exception& error) {
      return judged(Judgement::End::stopped, error.what());
    }
  }

  Benches float32_, bfloat16_;
};

}  // namespace

std::string_view end_word(Judgement::End end) {
  switch (end) {
    case Judgement::End::passed: return "passed";
    case Judgement::End::differs: return "differs";
    case Judgement::End::stopped: return "stopped";
    case Judgement::End::refused: return "refused";
    case Judgement::End::not_checked: return "not checked";
  }
  return "?";
}

std::vector<std::unique_ptr<Tier>> make_tiers(std::uint64_t seed) {
  std::vector<std::unique_ptr<Tier>> tiers;
  tiers.push_back(std::make_unique<ReplayTier>(
      "structure",
      [](const ParallelRun& run, const ParallelRunOptions& options) {
        return check_structure(run, options).differences;
      },
      seed));
  tiers.push_back(std::make_unique<ReplayTier>(
      "bits",
      [](const ParallelRun& run, const ParallelRunOptions& options) { return check_bits(run, options).differences; },
      seed));
  tiers.push_back(std::make_unique<ExactTier>(seed));
  tiers.push_back(std::make_unique<RoundingTier>(kFloat64, DeviceChoice::reference, seed));
  tiers.push_back(std::make_unique<RoundingTier>(kFloat32, DeviceChoice::cpu, seed));
  tiers.push_back(std::make_unique<ModulesTier>(seed));
  return tiers;
}

ParallelPlans healthy_plans(const std::string& model) {
  const ModelType type = model_named(model);
  return plans_of_model(type, type.hostile_config(), "default");
}

}  // namespace shardproof::zoo
