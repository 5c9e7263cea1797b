// The rounding of every module by itself: each module call of the dense run and of every rank, in the production type,
// is given the arguments that a float64 run has there, rounded to the type, so that errors do not compound from one
// module to the next. What a module returns, and what it gives to the modules that it calls, is compared with the
// float64 run; the ratio is the error of the parallel run over that of the dense one (reference/compare.h).
//
// All module calls take part, from single layers to blocks and the whole model. What is computed in a module between
// its children (attention itself, gates, residuals) shows in the arguments of the child that comes next. The float64
// run has the weights that the type holds and the type's tables, and goes on from rounded arguments itself, so that
// what is left is the rounding of the module alone; end to end, 16-bit types drown a lost key in it. Source:
// verification specification, section 5.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "reports/result.h"
#include "verify/module_watch.h"
#include "verify/parallel_run.h"

namespace shardproof {

struct ModuleReferenceInput {
  TreeFactory reference_tree;  // in float64, with the tables of the type; whatever its weights are
  Arguments reference_arguments;
  TreeFactory tree;  // in the type
  Arguments arguments;
  DType dtype;
  Device* reference_device = nullptr;  // of reference_tree
  // Values that are kept at once, as doubles; a model that needs more is not checked.
  std::int64_t most_bytes = std::int64_t{1} << 30;
};

// What one set of arguments gives in the modules of the dense model: in float64, and how far off it is in the type.
class ModuleReference {
 public:
  // What may separate a value from that of the float64 run.
  enum class Exactness : std::uint8_t {
    computed,   // the rounding of the type
    rounded,    // the same: an argument on the compute device, which goes on rounded to the type
    in_double,  // nothing: coordinates stay on the host, in double, in every run
  };
  struct Entry {
    WatchedValue value;
    Shape shape;
    // float64; of an argument, before it is rounded. Values that are handed on are shared.
    std::shared_ptr<const std::vector<double>> numbers = {};
    double largest = 0.0;  // finite magnitude
    double dense_error = 0.0;
    Exactness exactness = Exactness::computed;
    bool is_compared = false;
  };

  explicit ModuleReference(const ModuleReferenceInput& input);
  // Why ratios to it cannot be had; empty if they can.
  const std::string& obstacle() const { return obstacle_; }
  const std::vector<Entry>& entries() const { return entries_; }
  // Null if there is none: what is no floating-point number, and arguments of the whole model.
  const Entry* find(const std::string& key) const;
  DType dtype() const { return dtype_; }

 private:
  class Recorder;
  class DenseRun;
  void run_reference(const ModuleReferenceInput& input);
  void run_dense(const ModuleReferenceInput& input);

  DType dtype_;
  std::string obstacle_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> index_;
};

struct ModuleRatioInput {
  std::vector<const ModuleReference*> references;  // by replica, none with an obstacle
  TreeFactory tree;
  std::vector<Arguments> arguments;  // by replica
  ParallelPlans plans;
  ParallelRunOptions options;
};

struct ModuleCheck {
  ModuleRatios ratios;
  // Of every module whose ratio is above the limit its worst value, the largest first.
  std::vector<ModuleRatio> wrong;
  // The report in which the run ended; empty if it completed.
  std::string failure;
};

// Runs the model once more on all ranks. `run` is the same without a watch, and completed.
ModuleCheck check_modules(const ModuleRatioInput& input, const ParallelRun& run, double limit);

}  // namespace shardproof
