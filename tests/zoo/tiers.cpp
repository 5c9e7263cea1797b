#include "tests/zoo/tiers.h"

#include <map>

#include "core/error.h"
#include "verify/verifier.h"

namespace shardproof::zoo {
namespace {

// Rounding of one element type.
class RoundingTier final : public Tier {
 public:
  RoundingTier(DType dtype, DeviceChoice device, std::uint64_t seed) : dtype_(dtype), device_(device), seed_(seed) {}
  std::string_view name() const override { return dtype_.name(); }

  Judgement judge(const Scenario& scenario, const ParallelPlans& plans) override {
    try {
      const VerificationResult result = verifier_of(scenario.model).verify(scenario.case_name, scenario.config, plans);
      return {end_of(result), result.reason};
    } catch (const std::exception& error) {
      return {Judgement::End::stopped, error.what()};
    }
  }

 private:
  struct Bench {
    Subject subject;
    std::unique_ptr<Verifier> verifier;
  };

  static Judgement::End end_of(const VerificationResult& result) {
    switch (result.verdict) {
      case Verdict::exact:
      case Verdict::rounding_equivalent: return Judgement::End::passed;
      case Verdict::refused: return Judgement::End::refused;
      case Verdict::not_checked: return Judgement::End::not_checked;
      // A run that ended in a report left no tokens behind.
      case Verdict::different:
        return result.tokens_per_rank.empty() ? Judgement::End::stopped : Judgement::End::differs;
    }
    return Judgement::End::not_checked;
  }

  Verifier& verifier_of(const std::string& model) {
    std::unique_ptr<Bench>& bench = benches_[model];
    if (!bench) {
      bench = std::make_unique<Bench>(Bench{Subject::of_model(model_named(model), seed_), nullptr});
      bench->verifier = std::make_unique<Verifier>(
          bench->subject, VerifierOptions{.dtype = dtype_, .device = device_, .seed = seed_, .schedule_seed = seed_});
    }
    return *bench->verifier;
  }

  DType dtype_;
  DeviceChoice device_;
  std::uint64_t seed_;
  std::map<std::string, std::unique_ptr<Bench>> benches_;
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
  tiers.push_back(std::make_unique<RoundingTier>(kFloat64, DeviceChoice::reference, seed));
  tiers.push_back(std::make_unique<RoundingTier>(kFloat32, DeviceChoice::cpu, seed));
  return tiers;
}

ParallelPlans healthy_plans(const std::string& model) {
  const ModelType type = model_named(model);
  return plans_of_model(type, type.hostile_config(), "default");
}

}  // namespace shardproof::zoo
