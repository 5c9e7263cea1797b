#include "verify/oracle.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "core/error.h"
#include "core/ops.h"
#include "reference/compare.h"
#include "reference/eigen_device.h"
#include "sim/cpu_device.h"

namespace shardproof {
namespace {

using Clock = std::chrono::steady_clock;

// Sinusoids of angles beyond this many radians lose digits in float32 tables.
constexpr double kLargeAngle = 100.0;

double table_tolerance(const ModelType& model, const ModelCase& model_case) {
  double largest = 0.0;
  for (const Name name : {Name("timestep"), Name("guidance")}) {
    const Tensor coordinates = model_case.arguments.optional_tensor(name);
    if (!coordinates.defined()) continue;
    for (const double value : ops::to_doubles(coordinates))
      largest = std::max(largest, std::abs(value) * model.timestep_factor);
  }
  return largest > kLargeAngle ? kLargeAngleTableTolerance : kTableTolerance;
}

// Keeps every module output of one dense run, by path, output and number of the call.
class TraceRecorder final : public ModuleObserver {
 public:
  void on_outputs(const Module& module, const Outputs& outputs) override {
    const std::string path = module.path();
    const int call = calls_[path]++;
    for (std::size_t i = 0; i < outputs.tensors.size(); ++i)
      recorded_[key(path, static_cast<int>(i), call)] = outputs.tensors[i];
  }
  const Tensor* find(const TraceEntry& entry) const {
    const auto found = recorded_.find(key(entry.module, entry.output, entry.occurrence));
    return found == recorded_.end() ? nullptr : &found->second;
  }

 private:
  static std::string key(const std::string& path, int output, int call) {
    return fmt::format("{}#{}#{}", path, output, call);
  }
  std::map<std::string, int> calls_;
  std::map<std::string, Tensor> recorded_;
};

// Complex rotary tables are recorded [tokens, pairs, 2] with (re, im) last; models here carry [tokens, cos | sin].
Tensor in_form_of(const Tensor& actual, const Tensor& recorded) {
  const bool is_complex_table = recorded.rank() == 3 && actual.rank() == 2 && recorded.size(2) == 2 &&
                                recorded.size(0) == actual.size(0) && 2 * recorded.size(1) == actual.size(1);
  return is_complex_table ? ops::reshape(recorded.permute({0, 2, 1}), actual.shape()) : recorded;
}

class OracleRun {
 public:
  OracleRun(Subject& subject, const ModelCase& model_case) : subject_(subject), case_(model_case) {}

  // Compares all outputs of a kind; `relative` scales the tolerance by the largest expected magnitude.
  OracleResult outputs(std::string_view kind, std::string run, const ModelContext& context, double tolerance,
                       bool relative) {
    const Clock::time_point start = Clock::now();
    OracleResult result = named(std::move(run));
    std::vector<Tensor> expected;
    for (const std::string& name : case_.outputs) {
      expected.push_back(subject_.export_directory()->expected_output(case_.name, kind, name, subject_.host()));
      if (expected.back().defined()) continue;
      result.note = fmt::format("the export has no {}.{}", kind, name);
      return result;
    }
    const std::vector<Tensor> actual = dense(context, nullptr);
    result.checked = result.agrees = true;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const Comparison comparison = compare(actual[i], expected[i]);
      if (!is_finite(expected[i])) {
        result.checked = result.agrees = false;
        result.note = fmt::format("the recorded output '{}' is not finite everywhere", case_.outputs[i]);
        return result;
      }
      const double allowed = relative ? tolerance * comparison.max_abs_expected : tolerance;
      result.tolerance = std::max(result.tolerance, allowed);
      result.error = std::max(result.error, comparison.max_abs);
      if (comparison.max_abs <= allowed) continue;
      result.agrees = false;
      result.note = comparison.shape_problem.empty()
                        ? fmt::format("output '{}': worst at {}", case_.outputs[i], index_text(comparison.worst))
                        : fmt::format("output '{}': {}", case_.outputs[i], comparison.shape_problem);
    }
    result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return result;
  }

  OracleResult trace(const ModelContext& context, double tolerance) {
    const Clock::time_point start = Clock::now();
    OracleResult result = named("float64 with float32 tables along the trace");
    const std::vector<TraceEntry> entries = subject_.export_directory()->trace_entries(case_.name);
    if (entries.empty()) {
      result.note = "the export has no trace of this case";
      return result;
    }
    TraceRecorder recorder;
    dense(context, &recorder);
    compare_trace(entries, recorder, tolerance, result);
    result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return result;
  }

 private:
  OracleResult named(std::string run) const {
    OracleResult result;
    result.case_name = case_.name;
    result.run = std::move(run);
    return result;
  }

  std::vector<Tensor> dense(const ModelContext& context, ModuleObserver* observer) {
    const std::unique_ptr<Module> tree = subject_.make_tree(context, WeightForm::stored);
    tree->set_observer(observer);
    std::vector<Tensor> outputs =
        tree->call(prepared_arguments(*tree, case_.arguments, context, subject_.host())).tensors;
    SHARDPROOF_CHECK(outputs.size() == case_.outputs.size(), usage_error,
                     "case '{}' names {} outputs, but {} returns {}", case_.name, case_.outputs.size(),
                     tree->class_name(), outputs.size());
    return outputs;
  }

  void compare_trace(const std::vector<TraceEntry>& entries, const TraceRecorder& recorder, double tolerance,
                     OracleResult& result) const {
    const SafetensorsFile& file = *subject_.export_directory()->trace_file(case_.name);
    int compared = 0;
    result.tolerance = tolerance;
    result.checked = true;
    for (const TraceEntry& entry : entries) {
      const Tensor* actual = recorder.find(entry);
      if (actual == nullptr) {
        result.without_counterpart.push_back(entry.key);
        continue;
      }
      ++compared;
      const Comparison comparison = compare(*actual, in_form_of(*actual, file.tensor(entry.key, subject_.host())));
      result.error = std::max(result.error, comparison.max_abs);
      if (comparison.max_abs > tolerance && result.first_module.empty()) {
        result.first_module = entry.key;
        result.note = comparison.shape_problem;
      }
    }
    result.agrees = compared > 0 && result.first_module.empty();
    result.note +=
        fmt::format("{}{} of {} entries compared", result.note.empty() ? "" : "; ", compared, entries.size());
  }

  Subject& subject_;
  const ModelCase& case_;
};

}  // namespace

std::vector<OracleResult> run_oracle(Subject& subject, const std::string& case_name, Device* device) {
  SHARDPROOF_CHECK(subject.export_directory() != nullptr, usage_error,
                   "'{}': recorded outputs are needed; give an export directory", subject.source());
  const ModelCase model_case = subject.load_case(case_name);
  const double tolerance = table_tolerance(subject.model(), model_case);
  const auto& of_model = subject.model().mixed_table_tolerance;
  const double mixed = std::max(tolerance, of_model ? of_model(model_case) : 0.0);
  Device* const of_float64 = device != nullptr ? device : &subject.reference_device();
  Device* const of_float32 = device != nullptr ? device : &subject.cpu_device();
  const ModelContext all_double{of_float64, kFloat64, TablePrecision::float64};
  const ModelContext narrow_tables{of_float64, kFloat64, TablePrecision::float32};
  const ModelContext narrow{of_float32, kFloat32, TablePrecision::float32};
  OracleRun run(subject, model_case);
  std::vector<OracleResult> results;
  try {
    results.push_back(run.outputs("exact", "float64 against exact", all_double, kExactTolerance, true));
    results.push_back(run.outputs("fp32", "float32 against fp32", narrow, tolerance, false));
    results.push_back(run.outputs("fp64", "float64 with float32 tables against fp64", narrow_tables, mixed, false));
    results.push_back(run.trace(narrow_tables, mixed));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}, case '{}': {}", subject.source(), case_name, error.what()));
  }
  return results;
}

}  // namespace shardproof
