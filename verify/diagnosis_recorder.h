// What one run of a tree of modules gave and returned, point by point, for a diagnosis: every tensor argument as its
// caller gives it and as plans have divided it, every output before and after plans gather it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "core/hook.h"
#include "parallel/attention.h"
#include "verify/diagnosis.h"

namespace shardproof {

// One tensor at one point of a call.
struct Trace {
  std::string module, class_name;
  int call = 0;
  Point point = Point::output;
  std::string value;
  Origin origin;
  Tensor tensor;
};

// Keeps what calls were given and what they returned, in order, up to a limit of bytes.
class Recorder final : public ModuleObserver {
 public:
  explicit Recorder(std::int64_t most_bytes) : left_(most_bytes) {}

  // The dense run's calls are given what no plan divides.
  void watch_dense(Module& tree) {
    tree.set_observer(this);
    tree.for_each_module([this](Module& module) { module.hooks().register_hook(kGiven, watcher(Kind::given)); });
  }
  // Hooks of plans stand between the innermost, which are there before them, and the outermost, which come when the
  // model is called.
  void watch_rank(Module& tree) {
    tree.set_observer(this);
    tree.for_each_module([&](Module& module) {
      module.hooks().register_hook(kForward, watcher(&module == &tree ? Kind::root : Kind::forward));
    });
  }

  void on_outputs(const Module& module, const Outputs& outputs) override {
    keep_outputs(module, outputs, Point::gather);
    ++calls_[module.path()];
    open_.pop_back();
  }
  bool is_complete() const { return left_ >= 0; }
  // The innermost call that has not ended; none if the model has returned.
  std::optional<EndedRank> where_it_ended() const {
    if (!open_.empty()) return open_.back();
    return calls_.contains("") ? std::nullopt : std::optional(EndedRank{.origin = {}, .point = Point::division});
  }
  const std::vector<Trace>& traces() const { return traces_; }
  // The same at another point.
  const Tensor* find(const Trace& wanted, Point point) const {
    const auto found = index_.find({wanted.module, wanted.call, point, wanted.value});
    return found == index_.end() ? nullptr : &traces_[found->second].tensor;
  }

 private:
  static constexpr std::string_view kGiven = "diagnosis: given", kForward = "diagnosis: forward";
  enum class Kind : std::uint8_t { given, forward, root };

  class Watcher final : public Hook {
   public:
    Watcher(Recorder& recorder, Kind kind) : recorder_(recorder), kind_(kind) {}
    std::string_view class_name() const override { return "DiagnosisHook"; }
    void pre_forward(Module& module, Arguments& arguments) override {
      if (kind_ == Kind::root) recorder_.watch_callers(module);
      if (kind_ != Kind::forward) recorder_.open_.push_back({0, origin_of(module), Point::division});
      recorder_.keep_arguments(module, arguments, kind_ == Kind::given ? Point::argument : Point::division);
      if (kind_ != Kind::given) recorder_.open_.back().point = Point::output;
    }
    void post_forward(Module& module, Outputs& outputs) override {
      if (kind_ == Kind::given) return;
      recorder_.keep_outputs(module, outputs, Point::output);
      recorder_.open_.back().point = Point::gather;
    }

   private:
    Recorder& recorder_;
    Kind kind_;
  };

  std::unique_ptr<Hook> watcher(Kind kind) { return std::make_unique<Watcher>(*this, kind); }
  void watch_callers(Module& root) {
    root.for_each_module([&](Module& module) {
      if (&module != &root && module.hooks().find(kGiven) == nullptr)
        module.hooks().register_hook(kGiven, watcher(Kind::given));
    });
  }
  void keep_arguments(const Module& module, const Arguments& arguments, Point point) {
    for (const auto& [name, value] : arguments.entries()) {
      if (const auto* tensor = std::get_if<Tensor>(&value)) keep(module, *tensor, point, name.text());
      const auto* list = std::get_if<std::vector<Tensor>>(&value);
      for (std::size_t i = 0; list != nullptr && i < list->size(); ++i)
        keep(module, (*list)[i], point, fmt::format("{}.{}", name.text(), i));
    }
  }
  void keep_outputs(const Module& module, const Outputs& outputs, Point point) {
    for (std::size_t i = 0; i < outputs.tensors.size(); ++i) keep(module, outputs.tensors[i], point, std::to_string(i));
  }
  void keep(const Module& module, const Tensor& tensor, Point point, const std::string& value) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    left_ -= static_cast<std::int64_t>(tensor.bytes());
    if (left_ < 0) return;
    const std::string path = module.path();
    const bool is_given = point == Point::argument && open_.size() > 1;
    index_[{path, calls_[path], point, value}] = traces_.size();
    traces_.push_back({path, module.class_name(), calls_[path], point, value,
                       is_given ? open_[open_.size() - 2].origin : origin_of(module), tensor});
  }
  static Origin origin_of(const Module& module) {
    return {module.path(), module.class_name(), dynamic_cast<const AttentionSlot*>(&module) != nullptr};
  }

  std::int64_t left_;
  std::vector<EndedRank> open_;  // calls that have begun, the latest last
  std::map<std::string, int> calls_;
  std::map<std::tuple<std::string, int, Point, std::string>, std::size_t> index_;
  std::vector<Trace> traces_;
};

}  // namespace shardproof
