// The exact tier: the same models and algorithms as everywhere, computed without rounding on a device whose numbers are
// residues (reference/field_device.h), dense and parallel, several times with independent seeds. A seed decides the
// base of exponentials, the salts of functions, and the inputs, which are drawn anew in the case's shapes; from the
// second seed on the weights as well. Integers, masks, coordinates and settings are the case's. Every element on every
// rank must be equal. Movement is followed apart, by identities, and attention made again on inputs with an answer to
// the last bit (structure_check.h, bitwise_check.h). Source: verification specification, sections 1 and 2.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reports/result.h"
#include "verify/parallel_run.h"
#include "verify/subject.h"
#include "verify/verifier.h"

namespace shardproof {

struct ExactOptions {
  int seeds = 2;  // independent runs behind one verdict, at least 2
  GatherChoice gather = GatherChoice::both;
  bool bits = true;      // attention is compared to the last bit as well
  bool diagnose = true;  // a difference is explained
  std::uint64_t seed = 0;
  std::uint64_t schedule_seed = 0;
  int workers = 1;
  // Eight bytes for each parameter and seed; a model that needs more is not checked.
  std::int64_t most_weight_bytes = std::int64_t{1} << 33;
};

class ExactVerifier {
 public:
  // usage_error for fewer than 2 seeds. The subject must outlive this.
  ExactVerifier(Subject& subject, const ExactOptions& options);
  ~ExactVerifier();

  // EXACT, DIFFERENT, REFUSED, or NOT CHECKED where the dense run is no measure.
  VerificationResult verify(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans);

 private:
  struct Draw;
  struct DenseCase;
  struct Variation;

  // Why the model is too large; empty if it is not.
  const std::string& obstacle();
  Draw& draw(int number, int attempt);
  DenseCase& dense_case(Draw& draw, const std::string& case_name, int replica);
  void run_dense(Draw& draw, const ModelCase& raw, DenseCase& dense);
  std::unique_ptr<Module> make_tree(Draw& draw);
  // Judges all variations under one draw. False if a zero had to be divided by, so that another draw must decide.
  bool verify_under(Draw& draw, const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                    const std::vector<Variation>& variations, VerificationResult& result);
  // The first module output that is wrong, and what was moved to the wrong place.
  void diagnose_difference(Draw& draw, const ParallelRun& run, const std::vector<Arguments>& arguments,
                           const ParallelPlans& plans, const ParallelRunOptions& options, VerificationResult& result);
  // Of one run; an empty text if every element on every rank is equal.
  std::string difference_of(Draw& draw, const std::string& case_name, const ParallelRun& run, int tp_degree,
                            VerificationResult& result);

  Subject& subject_;
  ExactOptions options_;
  std::optional<std::string> obstacle_;
  std::vector<std::unique_ptr<Draw>> draws_;
};

}  // namespace shardproof
