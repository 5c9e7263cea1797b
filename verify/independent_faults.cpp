#include "verify/independent_faults.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/device.h"
#include "core/error.h"
#include "verify/module_watch.h"
#include "verify/rank_parts.h"

namespace shardproof {
namespace {

std::vector<std::byte> bytes_of(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.bytes());
  tensor.device().download(bytes, tensor);
  return bytes;
}

// A value of the dense run.
struct Whole {
  Shape shape;
  DType dtype;
  std::vector<std::byte> bytes;
  std::size_t order = 0;
};

// Of one dense run.
class WholeValues final : public ModuleWatch {
 public:
  explicit WholeValues(std::int64_t most_bytes) : left_(most_bytes) {}
  bool is_complete() const { return left_ >= 0; }
  const Whole* find(const WatchedValue& value) const {
    const auto found = values_.find(value.key());
    return found == values_.end() ? nullptr : &found->second;
  }

 private:
  void on_argument(const WatchedValue& value, Tensor& tensor) override { keep(value, tensor); }
  void on_output(const WatchedValue& value, const Tensor& tensor) override { keep(value, tensor); }
  void keep(const WatchedValue& value, const Tensor& tensor) {
    if (!tensor.has_storage()) return;
    left_ -= static_cast<std::int64_t>(tensor.bytes());
    if (left_ < 0) return;
    const std::size_t order = values_.size();
    values_[value.key()] = {tensor.shape(), tensor.dtype(), bytes_of(tensor), order};
  }

  std::int64_t left_;
  std::unordered_map<std::string, Whole> values_;
};

std::string module_name(const std::string& path) {
  return path.empty() ? "the whole model" : fmt::format("'{}'", path);
}

// Of one rank: what it has is compared with its part of the dense run's, and goes on as that.
class ForcedRun final : public ModuleWatch {
 public:
  struct Found {
    std::string module, class_name, value;
  };
  ForcedRun(const WholeValues& whole, const RankParts& parts, int rank) : whole_(whole), parts_(parts), rank_(rank) {}
  // By the order of the dense run.
  const std::map<std::size_t, Found>& found() const { return found_; }
  std::int64_t compared() const { return compared_; }

 private:
  void on_begin(Module& module) override { open_.emplace_back(module.path(), module.class_name()); }
  void on_end(const Module& module) override {
    if (!module.path().empty()) open_.pop_back();  // that of the root is not seen
  }

  void on_argument(const WatchedValue& value, Tensor& tensor) override {
    // The root is not watched, so whoever has nobody around it is called by the root.
    const auto [caller, class_name] =
        open_.size() > 1 ? open_[open_.size() - 2] : std::pair<std::string, std::string>("", "");
    force(value, tensor,
          {caller, class_name, fmt::format("{} of {}, as it gives it", value.name, module_name(value.module))});
  }
  void on_return(const WatchedValue& value, Tensor& tensor) override {
    force(value, tensor, {value.module, value.class_name, "its " + value.name});
  }
  void on_output(const WatchedValue& value, const Tensor& tensor) override {
    Tensor own = tensor;
    if (value.module.empty()) force(value, own, {value.module, value.class_name, "its " + value.name});
  }

  void force(const WatchedValue& value, Tensor& tensor, Found found) {
    const Whole* whole = whole_.find(value);
    if (whole == nullptr || !tensor.has_storage() || !(whole->dtype == tensor.dtype())) return;
    const std::vector<std::byte> actual = bytes_of(tensor);
    const std::size_t size = whole->dtype.size();
    std::vector<std::byte> best;
    std::size_t fewest = actual.size() + 1;
    for (const Places& places : parts_of(whole->shape, tensor.shape())) {
      std::vector<std::byte> part = places.empty() ? whole->bytes : std::vector<std::byte>(actual.size());
      for (std::size_t i = 0; i < places.size(); ++i)
        std::memcpy(&part[i * size], &whole->bytes[static_cast<std::size_t>(places[i]) * size], size);
      std::size_t wrong = 0;
      for (std::size_t at = 0; at < part.size(); at += size)
        wrong += std::memcmp(&part[at], &actual[at], size) == 0 ? 0 : 1;
      if (wrong >= fewest) continue;
      fewest = wrong;
      best = std::move(part);
    }
    if (fewest > actual.size()) return;
    ++compared_;
    if (fewest == 0) return;
    found_.emplace(whole->order, std::move(found));
    tensor = tensor.device().upload(best, tensor.shape(), tensor.dtype());
  }

  const std::vector<Places>& parts_of(const Shape& whole, const Shape& local) {
    const auto [found, is_new] = known_.try_emplace({whole.text(), local.text()});
    if (is_new) found->second = parts_.of(rank_, whole, local);
    return found->second;
  }

  const WholeValues& whole_;
  const RankParts& parts_;
  int rank_;
  std::vector<std::pair<std::string, std::string>> open_;  // path and class of the calls that have begun
  std::map<std::pair<std::string, std::string>, std::vector<Places>> known_;
  std::map<std::size_t, Found> found_;
  std::int64_t compared_ = 0;
};

}  // namespace

IndependentFaults independent_faults(const IndependentFaultsInput& input, const ParallelRun& run) {
  IndependentFaults result;
  if (run.end != RunEnd::completed) {
    result.not_checked = "the run did not complete";
    return result;
  }
  std::vector<std::unique_ptr<WholeValues>> whole;
  for (const Arguments& arguments : input.arguments) {
    whole.push_back(std::make_unique<WholeValues>(input.most_bytes / std::ssize(input.arguments)));
    const std::unique_ptr<Module> tree = input.dense_tree();
    whole.back()->watch(*tree);
    tree->call(arguments);
    if (whole.back()->is_complete()) continue;
    result.not_checked =
        fmt::format("the arguments and outputs of all modules take more than {} bytes", input.most_bytes);
    return result;
  }
  const RankParts parts(*input.dense_tree(), input.plans, input.options.config, run);
  std::vector<std::unique_ptr<ForcedRun>> ranks;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    ranks.push_back(std::make_unique<ForcedRun>(*whole[static_cast<std::size_t>(run.replica_of[rank])], parts,
                                                static_cast<int>(rank)));
  }
  const ParallelRun forced = run_watched(
      input.rank_tree,
      [&](int rank, Module& tree) { ranks[static_cast<std::size_t>(rank)]->watch_outside_of_plans(tree); },
      input.arguments, input.plans, input.options);
  result.not_checked = forced.reason;
  std::map<std::size_t, IndependentFault> by_order;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    result.compared += ranks[rank]->compared();
    for (const auto& [order, found] : ranks[rank]->found()) {
      IndependentFault& fault = by_order[order];
      fault = {found.module, found.class_name, found.value, std::move(fault.ranks)};
      fault.ranks.push_back(static_cast<int>(rank));
    }
  }
  for (auto& [order, fault] : by_order) result.faults.push_back(std::move(fault));
  return result;
}

std::vector<std::string> IndependentFaults::lines() const {
  if (!not_checked.empty()) return {"with the dense run's values given to every module: " + not_checked};
  if (compared == 0) return {};
  if (faults.empty())
    return {fmt::format("given the dense run's values, every module computes its own right ({} values compared)",
                        compared)};
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, faults.size()); ++i) {
    const IndependentFault& fault = faults[i];
    const std::string owner = fault.class_name.empty()
                                  ? module_name(fault.module)
                                  : fmt::format("{} ({})", module_name(fault.module), fault.class_name);
    text += fmt::format("{}{}: {}, on {} {}", i == 0 ? "" : "; ", owner, fault.value,
                        fault.ranks.size() == 1 ? "rank" : "ranks", fmt::join(fault.ranks, ", "));
  }
  if (faults.size() > kShown) text += fmt::format("; and {} more", faults.size() - kShown);
  return {
      fmt::format("wrong even when given the dense run's values ({} of {} values): {}", faults.size(), compared, text)};
}

}  // namespace shardproof
