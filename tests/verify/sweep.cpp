#include "tests/verify/sweep.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/support/recorded_exports.h"

namespace shardproof::test {
namespace {

AttentionConfiguration described(AttentionConfiguration description, std::int64_t heads,
                                 const ContextParallelConfig& config) {
  description.ring = config.ring_degree.value_or(1);
  description.ulysses = config.ulysses_degree.value_or(1);
  description.ulysses_anything = config.ulysses_anything;
  description.ring_anything = config.ring_anything;
  description.heads = heads;
  return description;
}

bool is_named(const LegalityRule& rule, const std::string& reason, const StreamNames& names) {
  const auto has = [&](const std::string& words) { return reason.find(words) != std::string::npos; };
  if (rule.words.starts_with("stream 0")) return std::any_of(names.text.begin(), names.text.end(), has);
  if (rule.words.starts_with("stream 1")) return std::any_of(names.image.begin(), names.image.end(), has);
  if (rule.words.starts_with("stream apart")) return std::any_of(names.apart.begin(), names.apart.end(), has);
  return has(std::string(rule.words));
}

}  // namespace

std::string golden(const std::string& name) { return (recorded_data() / name).string(); }

AttentionConfiguration joint_attention_of(const ModelCase& model_case) {
  AttentionConfiguration description;
  description.text = model_case.arguments.tensor("encoder_hidden_states").size(1);
  description.image = model_case.arguments.tensor("hidden_states").size(1);
  const bool has_mask = model_case.arguments.optional_tensor("encoder_hidden_states_mask").defined();
  description.mask = has_mask ? MaskKind::key : MaskKind::none;
  return description;
}

SweepCounts sweep(const std::string& source, const VerifierOptions& options, const StreamNames& names,
                  const DescribeCase& describe) {
  Subject subject = Subject::open(source, 3);
  Verifier verifier(subject, options);
  const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  const std::int64_t heads = subject.model().attention_heads(subject.config());
  SweepCounts counts;
  for (const std::string& name : subject.case_names()) {
    const AttentionConfiguration of_case = describe(subject.load_case(name));
    for (const ContextParallelConfig& config : default_configurations()) {
      const VerificationResult result = verifier.verify(name, config, plan);
      const auto broken = broken_rules(described(of_case, heads, config));
      const std::string where = source + " " + name + " " + result.mode + " " + result.mesh + ": " + result.reason;
      if (broken.empty()) {
        EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << where;
        ++counts.verified;
        continue;
      }
      EXPECT_EQ(result.verdict, Verdict::refused) << where;
      EXPECT_TRUE(std::any_of(broken.begin(), broken.end(), [&](const LegalityRule* rule) {
        return is_named(*rule, result.reason, names);
      })) << where;
      ++counts.refused;
    }
  }
  return counts;
}

SweepCounts tensor_parallel_sweep(const std::string& source, const VerifierOptions& options, const StreamNames& names,
                                  const DescribeCase& describe, bool has_context) {
  Subject subject = Subject::open(source, 3);
  Verifier verifier(subject, options);
  ParallelPlans plans = plans_of_model(subject.model(), subject.config(), "default");
  if (!plans.cp) plans.cp.emplace();
  const std::int64_t heads = *plans.attention_heads;
  SweepCounts counts;
  for (const std::string& name : subject.case_names()) {
    const ModelCase model_case = subject.load_case(name);
    for (const ParallelConfig& config : default_tensor_parallel_configurations()) {
      const int degree = effective_tp_degree(config);
      const bool has_both = config.context_parallel_config.has_value();
      const VerificationResult result = verifier.verify(name, config, plans);
      const std::string where = source + " " + name + " " + result.mode + " " + result.mesh + ": " + result.reason;
      std::vector<const LegalityRule*> broken;
      if (heads % degree == 0 && has_both && has_context) {
        broken = broken_rules(described(describe(model_case), heads / degree, *config.context_parallel_config));
      }
      const bool is_legal = heads % degree == 0 && broken.empty() && (has_context || !has_both);
      EXPECT_EQ(result.verdict, is_legal ? Verdict::rounding_equivalent : Verdict::refused) << where;
      ++(is_legal ? counts.verified : counts.refused);
      if (heads % degree != 0) {
        EXPECT_NE(result.reason.find("are not divisible by tp_degree"), std::string::npos) << where;
      } else if (!broken.empty()) {
        EXPECT_TRUE(std::any_of(broken.begin(), broken.end(), [&](const LegalityRule* rule) {
          return is_named(*rule, result.reason, names);
        })) << where;
      }
    }
  }
  return counts;
}

}  // namespace shardproof::test
