#include "tests/zoo/fingerprints.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "tests/zoo/helpers.h"
#include "tests/zoo/plan_changes.h"
#include "tests/zoo/scenarios.h"
#include "tests/zoo/switch.h"
#include "verify/verifier.h"

namespace shardproof::zoo {
namespace {

std::size_t configurations() { return fingerprint_configurations().size(); }

// Whether exact arithmetic can be the fault, and the model has a plan that it changes.
bool concerns(const Fault& fault, const ModelType& model) {
  if (fault.killer != Killer::arithmetic) return false;
  if (!fault.edits.empty()) return true;
  const ParallelPlans plans = plans_of_model(model, model.hostile_config(), "default");
  return fault.modes == "tp" ? plans.tp.has_value() : plans.cp.has_value();
}

// Whether a run stops with the same words every time: memory that was read by mistake holds something else each time.
bool is_repeated(Fingerprinter& printer, std::size_t configuration, const Fingerprinter::Plans& plans,
                 const Fingerprint& first) {
  constexpr int kTimes = 3;
  if (first.reason == kInternalErrorReason) return false;
  for (int i = 0; i < kTimes; ++i) {
    if (printer.take(configuration, plans).print != first.print) return false;
  }
  return true;
}

}  // namespace

Fingerprinter& FaultPrinter::printer_of(const ModelType& model) {
  std::unique_ptr<Fingerprinter>& made = printers_[model.class_name];
  if (!made) made = std::make_unique<Fingerprinter>(model);
  return *made;
}

const Fingerprints& FaultPrinter::correct_of(const ModelType& model) {
  const auto known = correct_.find(model.class_name);
  if (known != correct_.end()) return known->second;
  Fingerprints prints;
  std::vector<std::set<std::uint64_t>> reached;
  Fingerprinter& printer = printer_of(model);
  for (std::size_t i = 0; i < configurations(); ++i) {
    const ReachRecorder recorder;
    const Fingerprint taken =
        printer.take(i, [&](const Json& config) { return plans_of_model(model, config, "default"); });
    reached.push_back(recorder.reached());
    const bool is_outputs = taken.reason.empty() && !taken.print.empty();
    SHARDPROOF_CHECK(!is_outputs || taken.print == printer.dense(i), config_error,
                     "{}, {}: correct code does not compute what its dense run does", model.class_name,
                     fingerprint_configurations()[i].text());
    prints.push_back(taken.print);
  }
  reached_[model.class_name] = std::move(reached);
  return correct_.emplace(model.class_name, std::move(prints)).first->second;
}

const std::map<std::string, Fingerprints>& FaultPrinter::correct() {
  for (const ModelType& model : model_types()) {
    if (model.sized_case) correct_of(model);
  }
  return correct_;
}

Fingerprints FaultPrinter::prints_of(const ModelType& model, const Fault& fault) {
  Fingerprints prints = correct_of(model);
  if (!concerns(fault, model)) return prints;
  Fingerprinter& printer = printer_of(model);
  for (std::size_t i = 0; i < configurations(); ++i) {
    const bool is_reached = fault.edits.empty() || reached_.at(model.class_name)[i].contains(id(fault.name));
    if (prints[i].empty() || !is_reached) continue;
    const FaultSwitch on(fault.name);
    const auto plans = [&](const Json& config) {
      return changed_plans(fault, plans_of_model(model, config, "default"));
    };
    const Fingerprint taken = printer.take(i, plans);
    if (taken.reason.find(kNeedsFloats) != std::string::npos) continue;
    prints[i] = taken.print;
    if (taken.print.starts_with("stopped") && !is_repeated(printer, i, plans, taken)) prints[i] = "stopped";
  }
  return prints;
}

KnownMistake FaultPrinter::print(const Fault& fault) {
  KnownMistake mistake{std::string(fault.name), std::string(fault.what)};
  for (const auto& [model, of_correct] : correct()) {
    const Fingerprints prints = prints_of(find_model_type(model), fault);
    for (std::size_t i = 0; i < configurations(); ++i) {
      if (prints[i] != of_correct[i]) mistake.prints[model].emplace(i, prints[i]);
    }
  }
  return mistake;
}

Identification FaultPrinter::identify(const Fault& fault, const FingerprintTable& table) {
  // Attention alone is no model of the product; these two have it.
  std::vector<std::string> names = words_of(fault.models);
  names.insert(names.end(), {"flux", "qwenimage"});
  for (const std::string& name : names) {
    if (name == "layer") continue;
    const ModelType& model = find_model_type(name);
    if (!model.sized_case) continue;
    const Fingerprints prints = prints_of(model, fault);
    if (prints == correct_of(model)) continue;
    Fingerprints dense;
    for (std::size_t i = 0; i < configurations(); ++i) dense.push_back(printer_of(model).dense(i));
    const Explanation found = explain(table, model.class_name, prints, dense);
    Identification identification{.model = model.class_name, .said = found.obstacle};
    if (!found.hypothesis) return identification;
    identification.said = hypothesis_text(*found.hypothesis);
    identification.is_named =
        std::ranges::any_of(found.hypothesis->mistakes, [&](const auto& each) { return each.name == fault.name; });
    identification.is_alone =
        identification.is_named && found.hypothesis->mistakes.size() == 1 && found.hypothesis->others == 0;
    return identification;
  }
  return {};
}

FingerprintTable make_fingerprint_table(const std::vector<const Fault*>& faults,
                                        const std::function<void(int, int, std::string_view)>& progress) {
  FaultPrinter printer;
  FingerprintTable table{.correct = printer.correct()};
  for (const Fault* fault : faults) {
    progress(static_cast<int>(table.mistakes.size()), static_cast<int>(faults.size()), fault->name);
    KnownMistake mistake = printer.print(*fault);
    if (!mistake.prints.empty()) table.mistakes.push_back(std::move(mistake));
  }
  return table;
}

}  // namespace shardproof::zoo
