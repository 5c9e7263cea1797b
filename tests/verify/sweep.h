// The default set of configurations on every case of a subject, judged by the independent table of rules: what breaks
// none must be verified, everything else refused in the words of a rule that it breaks.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/legal_configurations.h"
#include "verify/verifier.h"

namespace shardproof::test {

struct SweepCounts {
  int verified = 0;
  int refused = 0;
  friend bool operator==(const SweepCounts&, const SweepCounts&) = default;
  friend void PrintTo(const SweepCounts& counts, std::ostream* out) {
    *out << counts.verified << " verified, " << counts.refused << " refused";
  }
};

// An export of the tests, "flux/tiny".
std::string golden(const std::string& name);

inline const VerifierOptions kFloat32OnCpu{.dtype = kFloat32, .device = DeviceChoice::cpu};

// The attention of a case as the rules see it, but for degrees and heads, which the sweep fills in.
using DescribeCase = std::function<AttentionConfiguration(const ModelCase&)>;
// Joint attention over [text, image]: encoder_hidden_states and hidden_states, with a key mask if one is given.
AttentionConfiguration joint_attention_of(const ModelCase& model_case);

// The rules speak of streams 0 (text), 1 (image) and those apart. Where a model's plan divides them, and how messages
// name that.
struct StreamNames {
  std::vector<std::string> text = {"argument 'encoder_hidden_states'"};
  std::vector<std::string> image = {"argument 'hidden_states'"};
  std::vector<std::string> apart = {};
};

// With the model's default plan.
SweepCounts sweep(const std::string& source, const VerifierOptions& options, const StreamNames& names = {},
                  const DescribeCase& describe = joint_attention_of);

// The same over default_tensor_parallel_configurations: legal is what divides the heads and, with context parallelism,
// breaks no rule for the heads that a rank is left with. `has_context` false: everything with context parallelism is
// refused, since the model has no plan for it.
SweepCounts tensor_parallel_sweep(const std::string& source, const VerifierOptions& options,
                                  const StreamNames& names = {}, const DescribeCase& describe = joint_attention_of,
                                  bool has_context = true);

}  // namespace shardproof::test
