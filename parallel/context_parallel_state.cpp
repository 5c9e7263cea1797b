#include "parallel/context_parallel_state.h"

#include <algorithm>

namespace shardproof {

ContextParallelState::ContextParallelState(Communicator& world, const ContextParallelConfig& config) : config_(config) {
  throw_problems(validate(config));
  mesh_ = effective_mesh(config);
  ring_degree_ = effective_ring_degree(config);
  ulysses_degree_ = effective_ulysses_degree(config);
  SHARDPROOF_REFUSE_UNLESS(
      mesh_.size() == world.size(), config_error,
      "ring_degree {} x ulysses_degree {} in the mesh '{}' needs {} ranks, but {} has {}; they must be equal",
      ring_degree_, ulysses_degree_, mesh_.text(), mesh_.size(), world.name(), world.size());
  const auto split = [&](std::span<const std::string_view> dimensions, std::string_view name) {
    owned_.push_back(split_along(world, mesh_, dimensions, name));
    return owned_.back().get();
  };
  static constexpr std::string_view kFlat[] = {"ring", "ulysses"};
  flat_ = split(kFlat, "flat");
  // With one degree only, that group is the flat one: same members in the same order.
  ring_ = ulysses_degree_ == 1 ? flat_ : split(std::span(kFlat).first(1), "ring");
  ulysses_ = ring_degree_ == 1 ? flat_ : split(std::span(kFlat).last(1), "ulysses");
}

namespace {

template <class Entry>
void add_once(std::vector<Entry>& list, Entry entry) {
  if (std::find(list.begin(), list.end(), entry) == list.end()) list.push_back(std::move(entry));
}

}  // namespace

std::shared_ptr<const ContextParallelState> ContextParallelState::for_one_rank() {
  return std::shared_ptr<const ContextParallelState>(new ContextParallelState());
}

void ContextParallelState::record_skipped(SkippedEntry entry) const { add_once(skipped_, std::move(entry)); }
void ContextParallelState::record_omitted(std::string module, std::string argument) const {
  add_once(omitted_, SkippedEntry{std::move(module), std::move(argument), "not given"});
}
void ContextParallelState::record_applied(AppliedEntry entry) const { add_once(applied_, std::move(entry)); }

void ContextParallelState::record_attention_exchange(const AttentionCall& call) const {
  const auto known = std::find(attention_calls_.begin(), attention_calls_.end(), call);
  attention_sequence_.push_back(static_cast<int>(known - attention_calls_.begin()));
  if (known == attention_calls_.end()) attention_calls_.push_back(call);
}

}  // namespace shardproof
