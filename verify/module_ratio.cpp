#include "verify/module_ratio.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/ops.h"
#include "reference/compare.h"
#include "verify/rank_parts.h"

namespace shardproof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_floating(const Tensor& tensor) {
  return tensor.has_storage() && tensor.dtype().category() == DTypeCategory::floating;
}

// Equal infinities differ by nothing, what is not a number infinitely.
double distance(double actual, double expected) {
  if (actual == expected) return 0.0;
  const double difference = std::abs(actual - expected);
  return std::isnan(difference) ? kInfinity : difference;
}

struct Largest {
  double error = 0.0;
  std::size_t at = 0;
};

// Between a tensor's numbers and those at `places` of the whole.
Largest largest_error(const std::vector<double>& actual, const std::vector<double>& whole, const Places& places) {
  Largest largest;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = distance(actual[i], whole[places.empty() ? i : static_cast<std::size_t>(places[i])]);
    if (error > largest.error) largest = {error, i};
  }
  return largest;
}

// What a module is given instead of `given`.
Tensor forced(const ModuleReference::Entry& entry, DType dtype, const Tensor& given, const Places& places) {
  std::vector<double> part;
  for (const std::int64_t place : places) part.push_back((*entry.numbers)[static_cast<std::size_t>(place)]);
  const DType first = entry.exactness == ModuleReference::Exactness::rounded ? dtype : given.dtype();
  const std::span<const double> numbers = places.empty() ? std::span(*entry.numbers) : std::span<const double>(part);
  return ops::cast(ops::from_doubles(given.device(), numbers, given.shape(), first), given.dtype());
}

}  // namespace

// Of the float64 run: keeps every value and hands arguments on as the type has them. A module has the type's weights
// while it runs.
class ModuleReference::Recorder final : public ModuleWatch {
 public:
  Recorder(ModuleReference& reference, Module& typed, Module& tree, const ModuleReferenceInput& input)
      : reference_(reference), device_(*input.reference_device), left_(input.most_bytes) {
    typed.for_each_module([&](Module& module) { typed_[module.path()] = &module; });
    watch(tree);
  }
  bool is_complete() const { return left_ >= 0; }

 private:
  void on_begin(Module& module) override {
    const std::vector<Module::Parameter>& own = own_.emplace_back(module.parameters());
    const std::vector<Module::Parameter>& typed = typed_.at(module.path())->parameters();
    for (std::size_t i = 0; i < own.size(); ++i) {
      const Tensor& tensor = *typed[i].tensor;
      // Of a file that is in the type.
      if (own[i].tensor->has_storage() && own[i].tensor->dtype() == tensor.dtype()) continue;
      std::vector<std::byte> bytes(tensor.bytes());
      tensor.device().download(bytes, tensor);
      module.assign_parameter(
          own[i].name, std::make_shared<const Tensor>(device_.upload(bytes, tensor.shape(), tensor.dtype())), kFloat64);
    }
    open_.push_back(&module);
  }
  void on_end(const Module&) override {
    for (const Module::Parameter& parameter : own_.back()) {
      open_.back()->assign_parameter(parameter.name, parameter.tensor, parameter.used_as);
    }
    own_.pop_back();
    open_.pop_back();
  }
  void on_argument(const WatchedValue& value, Tensor& tensor) override {
    if (!is_floating(tensor)) return;
    const bool is_rounded = &tensor.device() == &device_;
    if (!value.module.empty()) keep(value, tensor, is_rounded ? Exactness::rounded : Exactness::in_double);
    if (is_rounded) tensor = ops::cast(ops::cast(tensor, reference_.dtype_), tensor.dtype());
  }
  void on_output(const WatchedValue& value, const Tensor& tensor) override {
    if (is_floating(tensor)) keep(value, tensor, Exactness::computed);
  }
  void keep(const WatchedValue& value, const Tensor& tensor, Exactness exactness) {
    Entry entry{
        .value = value, .shape = tensor.shape(), .numbers = shared(ops::to_doubles(tensor)), .exactness = exactness};
    if (left_ < 0) return;
    for (const double number : *entry.numbers) {
      if (std::isfinite(number)) entry.largest = std::max(entry.largest, std::abs(number));
    }
    reference_.index_[value.key()] = reference_.entries_.size();
    reference_.entries_.push_back(std::move(entry));
  }
  // What most modules are given is what another one returned.
  std::shared_ptr<const std::vector<double>> shared(std::vector<double> numbers) {
    const auto bytes = [](const std::vector<double>& x) {
      return std::string_view(reinterpret_cast<const char*>(x.data()), x.size() * sizeof(double));
    };
    auto& alike = kept_[std::hash<std::string_view>()(bytes(numbers))];
    for (const auto& known : alike) {
      if (bytes(*known) == bytes(numbers)) return known;
    }
    left_ -= static_cast<std::int64_t>(bytes(numbers).size());
    alike.push_back(std::make_shared<const std::vector<double>>(std::move(numbers)));
    return alike.back();
  }

  ModuleReference& reference_;
  Device& device_;
  std::int64_t left_;
  std::unordered_map<std::string, Module*> typed_;
  std::unordered_map<std::size_t, std::vector<std::shared_ptr<const std::vector<double>>>> kept_;  // by hash
  std::vector<Module*> open_;                        // calls that have begun
  std::vector<std::vector<Module::Parameter>> own_;  // of each of them
};

// Of the dense run in the type.
class ModuleReference::DenseRun final : public ModuleWatch {
 public:
  DenseRun(ModuleReference& reference, Module& tree) : reference_(reference) { watch(tree); }

 private:
  void on_argument(const WatchedValue& value, Tensor& tensor) override {
    const Entry* entry = compare(value, tensor);
    if (entry != nullptr) tensor = forced(*entry, reference_.dtype_, tensor, {});
  }
  void on_output(const WatchedValue& value, const Tensor& tensor) override { compare(value, tensor); }
  const Entry* compare(const WatchedValue& value, const Tensor& tensor) {
    const auto found = reference_.index_.find(value.key());
    if (found == reference_.index_.end() || !is_floating(tensor)) return nullptr;
    Entry& entry = reference_.entries_[found->second];
    if (!(entry.shape == tensor.shape())) return nullptr;
    entry.dense_error = largest_error(ops::to_doubles(tensor), *entry.numbers, {}).error;
    entry.is_compared = true;
    if (!std::isfinite(entry.dense_error) && reference_.obstacle_.empty()) {
      reference_.obstacle_ =
          fmt::format("{} of {} is not finite where the float64 run is, in the dense {} run", value.name,
                      module_phrase(value.module, value.class_name), reference_.dtype_.name());
    }
    return &entry;
  }

  ModuleReference& reference_;
};

ModuleReference::ModuleReference(const ModuleReferenceInput& input) : dtype_(input.dtype) {
  run_reference(input);
  if (obstacle_.empty()) run_dense(input);
}

void ModuleReference::run_reference(const ModuleReferenceInput& input) {
  const std::unique_ptr<Module> typed = input.tree(), tree = input.reference_tree();
  Recorder recorder(*this, *typed, *tree, input);
  tree->call(input.reference_arguments);
  if (!recorder.is_complete()) {
    obstacle_ = fmt::format("the arguments and outputs of all modules take more than {} bytes", input.most_bytes);
  }
}

void ModuleReference::run_dense(const ModuleReferenceInput& input) {
  const std::unique_ptr<Module> tree = input.tree();
  DenseRun dense(*this, *tree);
  tree->call(input.arguments);
}

const ModuleReference::Entry* ModuleReference::find(const std::string& key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

namespace {

// Of one rank.
class RankRun final : public ModuleWatch {
 public:
  using Entry = ModuleReference::Entry;
  RankRun(const ModuleReference& reference, const RankParts& parts, int rank)
      : reference_(reference), parts_(parts), rank_(rank), explained_(reference.entries().size(), 0) {}

  // The worst value of every module.
  const std::map<std::string, ModuleRatio>& worst() const { return worst_; }
  // For each entry of the reference, whether it was compared.
  const std::vector<char>& explained() const { return explained_; }

 private:
  void on_argument(const WatchedValue& value, Tensor& tensor) override {
    const Entry* entry = reference_.find(value.key());
    if (entry == nullptr || !entry->is_compared || !is_floating(tensor)) return;
    if (const Places* places = compare(*entry, tensor)) tensor = forced(*entry, reference_.dtype(), tensor, *places);
  }
  void on_output(const WatchedValue& value, const Tensor& tensor) override {
    const Entry* entry = reference_.find(value.key());
    if (entry != nullptr && entry->is_compared && is_floating(tensor)) compare(*entry, tensor);
  }

  // The part that fits best, which is kept by the rank's run; null if sizes allow none.
  const Places* compare(const Entry& entry, const Tensor& tensor) {
    const auto [found, is_new] = places_.try_emplace({entry.shape.text(), tensor.shape().text()});
    if (is_new) found->second = parts_.of(rank_, entry.shape, tensor.shape());
    const bool in_double = entry.exactness == ModuleReference::Exactness::in_double;
    const double unit = unit_roundoff(in_double ? kFloat64 : reference_.dtype());
    const double allowed = std::max(entry.dense_error, unit * entry.largest);
    const std::vector<double> numbers = ops::to_doubles(tensor);
    const Places* best = nullptr;
    Largest least{.error = kInfinity};
    // Of its output the whole model must return all.
    const bool is_cut = entry.value.module.empty() && !(entry.shape == tensor.shape());
    if (is_cut) keep(entry, tensor.shape(), least, allowed);
    for (const Places& places : found->second) {
      if (is_cut) break;
      const Largest largest = largest_error(numbers, *entry.numbers, places);
      if (best != nullptr && largest.error >= least.error) continue;
      best = &places;
      least = largest;
      if (least.error <= allowed) break;
    }
    if (best != nullptr) keep(entry, tensor.shape(), least, allowed);
    return best;
  }

  void keep(const Entry& entry, const Shape& local, const Largest& largest, double allowed) {
    explained_[static_cast<std::size_t>(&entry - reference_.entries().data())] = 1;
    const double ratio = largest.error == 0.0 ? 0.0 : allowed > 0.0 ? largest.error / allowed : kInfinity;
    const auto [known, is_new] = worst_.try_emplace(entry.value.module);
    if (!is_new && known->second.ratio >= ratio) return;
    known->second = {.module = entry.value.module,
                     .class_name = entry.value.class_name,
                     .call = entry.value.call,
                     .value = entry.value.name,
                     .ratio = ratio,
                     .rank = rank_,
                     .index = index_of(static_cast<std::int64_t>(largest.at), local)};
  }

  const ModuleReference& reference_;
  const RankParts& parts_;
  int rank_;
  std::map<std::pair<std::string, std::string>, std::vector<Places>> places_;  // by shapes of the whole and the part
  std::map<std::string, ModuleRatio> worst_;                                   // by module
  std::vector<char> explained_;
};

// Of all ranks.
ModuleCheck summary(const std::vector<std::unique_ptr<RankRun>>& ranks, const ModuleRatioInput& input,
                    const ParallelRun& run, double limit) {
  std::map<std::string, ModuleRatio> by_module;
  for (const auto& rank : ranks) {
    for (const auto& [module, ratio] : rank->worst()) {
      const auto [known, is_new] = by_module.try_emplace(module, ratio);
      if (!is_new && ratio.ratio > known->second.ratio) known->second = ratio;
    }
  }
  std::vector<ModuleRatio> sorted;
  for (auto& [module, ratio] : by_module) sorted.push_back(std::move(ratio));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const ModuleRatio& a, const ModuleRatio& b) { return a.ratio > b.ratio; });
  ModuleCheck check;
  if (!sorted.empty()) check.ratios.worst = sorted[0];
  if (sorted.size() > 1) check.ratios.runner_up = sorted[1];
  check.ratios.modules = std::ssize(sorted);
  for (ModuleRatio& each : sorted) {
    if (!(each.ratio <= limit)) check.wrong.push_back(std::move(each));
  }
  for (std::size_t replica = 0; replica < input.references.size(); ++replica) {
    for (std::size_t i = 0; i < input.references[replica]->entries().size(); ++i) {
      bool is_explained = true;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        if (run.replica_of[rank] == static_cast<int>(replica)) is_explained &= ranks[rank]->explained()[i] != 0;
      }
      ++(is_explained ? check.ratios.compared : check.ratios.not_comparable);
    }
  }
  return check;
}

}  // namespace

ModuleCheck check_modules(const ModuleRatioInput& input, const ParallelRun& run, double limit) {
  const ParallelRunOptions& options = input.options;
  const RankParts parts(*input.tree(), input.plans, options.config, run);
  std::vector<std::unique_ptr<RankRun>> ranks;
  for (int rank = 0; rank < run.mesh.size(); ++rank) {
    const auto replica = static_cast<std::size_t>(run.replica_of[static_cast<std::size_t>(rank)]);
    ranks.push_back(std::make_unique<RankRun>(*input.references[replica], parts, rank));
  }
  ParallelRun watched = run_watched(
      input.tree, [&](int rank, Module& tree) { ranks[static_cast<std::size_t>(rank)]->watch_outside_of_plans(tree); },
      input.arguments, input.plans, options);
  ModuleCheck check = summary(ranks, input, run, limit);
  check.failure = std::move(watched.reason);
  return check;
}

}  // namespace shardproof
