// Dense against parallel: runs configurations of one subject on simulated ranks, compares every rank with the dense run
// and judges by the rules of the architecture. Source of the rules: verification specification, sections 1, 4.3, 5.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reports/result.h"
#include "verify/module_ratio.h"
#include "verify/parallel_run.h"
#include "verify/subject.h"

namespace shardproof {

enum class DeviceChoice : std::uint8_t { reference, cpu, given };
enum class GatherChoice : std::uint8_t {
  both,  // ragged modes are run in both forms, which must give the same bits
  ragged,
  padded,
};

// The form in which a run is made first, or alone.
GatherForm first_form(GatherChoice gather);

struct VerifierOptions {
  DType dtype = kFloat64;
  DeviceChoice device = DeviceChoice::reference;
  Device* given_device = nullptr;  // of DeviceChoice::given; must outlive the subject
  GatherChoice gather = GatherChoice::both;
  std::uint64_t seed = 0;
  std::uint64_t schedule_seed = 0;
  int workers = 1;
  Mover* mover = nullptr;  // how simulated ranks move the tensors of the device; null: they lie in host memory
  // But in float64: the ratio of every module by itself, and attention with extreme inputs.
  bool modules = true;
  bool extremes = true;
};

// What a configuration has passed already when it is verified in a 16-bit type.
enum class Passed : std::uint8_t { nothing, exact };

// Relative difference that float64 may show, and the rounding ratio of the other types.
inline constexpr double kFloat64Tolerance = 1e-11;
inline constexpr double kRatioLimit = 16.0;
// A dense float32 run that has lost more than half of its 24 digits is no measure for another one.
inline constexpr double kFloat32DenseLimit = 0x1p-12;

// The configurations of a run that names none: every mode at 2, 3 and 4 ranks, both rotate methods.
std::vector<ContextParallelConfig> default_configurations();
// Tensor parallelism at 2, 3 and 4 ranks, and at 2 together with every mode of context parallelism on 2 ranks, and with
// Unified on 4.
std::vector<ParallelConfig> default_tensor_parallel_configurations();

// The plans of a model of the given name ("default" or "shipped"), with its heads.
ParallelPlans plans_of_model(const ModelType& model, const Json& config, std::string_view name);

class Verifier {
 public:
  // config_error if the device cannot compute in the type, or none is given that should be.
  Verifier(Subject& subject, const VerifierOptions& options);
  ~Verifier();

  // The verdict on one case under one configuration and the plans that it needs. A 16-bit type drowns a lost key in its
  // rounding end to end: it is ROUNDING-EQUIVALENT only if the configuration is right in exact arithmetic, as the
  // caller says, or else in float64, which is then run here, and if every module is by itself.
  VerificationResult verify(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                            Passed passed = Passed::nothing);
  VerificationResult verify(const std::string& case_name, const ContextParallelConfig& config,
                            const ContextParallelPlan& plan) {
    return verify(case_name, ParallelConfig{.context_parallel_config = config}, ParallelPlans{.cp = plan});
  }
  // The run alone, for printing what a plan does.
  ParallelRun run(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                  GatherForm form, ReductionOrder order = ReductionOrder::ranks);
  ParallelRun run(const std::string& case_name, const ContextParallelConfig& config, const ContextParallelPlan& plan,
                  GatherForm form) {
    return run(case_name, ParallelConfig{.context_parallel_config = config}, ParallelPlans{.cp = plan}, form);
  }
  // The ratio of every module of a run that completed; `obstacle` says why there is none. Not for float64.
  ModuleCheck module_ratios(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                            const ParallelRun& run, std::string& obstacle);
  // What one rank of a configuration needs to run by itself, over any communicator (see run_rank).
  TreeFactory tree_factory();
  const Arguments& arguments_of_rank(const std::string& case_name, const ParallelConfig& config, int rank);

  // The verdict on one rank by the comparison with the dense run alone, where other ranks are judged elsewhere: of
  // `run` it needs the outputs of that rank and, of all ranks, the mesh, the replicas and what attention saw. No module
  // is judged by itself. ROUNDING-EQUIVALENT, DIFFERENT or NOT CHECKED, with its reason and figure.
  VerificationResult judge_rank(const std::string& case_name, const ParallelConfig& config, const ParallelRun& run,
                                int rank);

 private:
  struct DenseCase;
  void run_dense(DenseCase& dense);
  // The inputs of a case alone, and with its dense run.
  DenseCase& prepared_case(const std::string& case_name, int replica);
  DenseCase& dense_case(const std::string& case_name, int replica);
  class Findings;
  void judge_outputs(DenseCase& dense, const Outputs& actual, int rank, Findings& findings);
  // True, and noted in the result, if a dense run of these replicas is no measure.
  bool cannot_be_judged(const std::string& case_name, std::span<const int> replicas, VerificationResult& result);
  void conclude(const std::string& case_name, const ParallelRun& run, std::span<const int> replicas, int tp_degree,
                const Findings& findings, VerificationResult& result);
  const std::vector<Tensor>& reference_outputs(DenseCase& dense);
  const ModuleReference& module_reference(DenseCase& dense);
  // Why a run cannot be judged at all: the dense run is empty, not finite, or too inexact. Empty if it can.
  std::string unjudgeable(DenseCase& dense);
  // The same, looked at once a case.
  const std::string& obstacle_of(DenseCase& dense);
  // True if every output of the dense run has one value in all its elements: whatever equals it proves little.
  static bool says_nothing(DenseCase& dense);
  void judge(const std::string& case_name, const ParallelRun& run, int tp_degree, VerificationResult& result);
  void judge_modules(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                     const ParallelRun& run, VerificationResult& result);
  void judge_extremes(const ParallelConfig& config, const ParallelRun& run, VerificationResult& result);
  // What a 16-bit type is verified by besides.
  void judge_sixteen_bits(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                          Passed passed, VerificationResult& result);
  // Runs again with padded gathers, which must give the same bits.
  void check_padded_form(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                         const ParallelRun& first, VerificationResult& result);
  // Runs again with every other order of adding partial results, each judged as the first.
  void check_other_orders(const std::string& case_name, const ParallelConfig& config, const ParallelPlans& plans,
                          VerificationResult& result);

  Subject& subject_;
  VerifierOptions options_;
  std::unique_ptr<Device> own_device_;  // where the subject has none of the kind
  Device* device_ = nullptr;
  ModelContext context_;
  ModelContext reference_context_;
  std::vector<std::unique_ptr<DenseCase>> cases_;
  std::unique_ptr<Verifier> in_float64_;  // of a 16-bit type, when first needed
};

}  // namespace shardproof
