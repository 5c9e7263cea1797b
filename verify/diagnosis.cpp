#include "verify/diagnosis.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "core/error.h"
#include "parallel/config.h"
#include "parallel/tensor_parallel_specs.h"
#include "reference/compare.h"
#include "verify/diagnosis_layouts.h"
#include "verify/diagnosis_recorder.h"

namespace shardproof {
namespace {

class Diagnoser {
 public:
  explicit Diagnoser(const DiagnosisInput& input) : input_(input), mesh_(effective_mesh(input.options.config)) {}

  Diagnosis run() && {
    find_blocks();
    std::vector<std::unique_ptr<Recorder>> dense = run_dense();
    run_ranks_recorded();
    const auto is_complete = [](const auto& recorder) { return recorder->is_complete(); };
    if (!std::all_of(dense.begin(), dense.end(), is_complete) ||
        !std::all_of(recorders_.begin(), recorders_.end(), is_complete)) {
      result_.not_diagnosed =
          fmt::format("the arguments and outputs of all modules take more than {} MB", input_.most_bytes >> 20);
      return std::move(result_);
    }
    for (const Trace& expected : dense.front()->traces()) find_streams(expected);
    for (const Trace& expected : dense.front()->traces()) {
      const bool is_argument = expected.point == Point::argument;
      if (compare(expected, is_argument ? Point::argument : Point::output, dense)) break;
      if (compare(expected, is_argument ? Point::division : Point::gather, dense)) break;
    }
    find_ends();
    find_suspects(*dense.front());
    return std::move(result_);
  }

 private:
  // Of layers that join several, and of those that tensor parallelism shards; a plan that it refuses has none.
  void find_blocks() {
    const int degree = effective_tp_degree(input_.options.config);
    if (!input_.plans.tp || degree < 2) return;
    const std::unique_ptr<Module> tree = input_.dense_tree();
    tree->for_each_module([&](Module& module) {
      const auto* layer = dynamic_cast<const Linear*>(&module);
      if (layer == nullptr) return;
      rows_[module.path()] = layer->packed_col_blocks();
      columns_[module.path()] = layer->packed_row_blocks();
      blocks_.insert(layer->packed_col_blocks());
      blocks_.insert(layer->packed_row_blocks());
    });
    try {
      for (const ShardSpec& spec : resolve_tp_shard_specs(*tree, *input_.plans.tp, degree)) {
        blocks_.insert(spec.blocks);
        sharded_.insert(spec.parameter.substr(0, spec.parameter.rfind('.')));
      }
    } catch (const Error&) {
      sharded_.clear();
    }
  }

  std::vector<std::unique_ptr<Recorder>> run_dense() {
    std::vector<std::unique_ptr<Recorder>> recorders;
    for (const Arguments& arguments : input_.arguments) {
      recorders.push_back(std::make_unique<Recorder>(input_.most_bytes));
      const std::unique_ptr<Module> tree = input_.dense_tree();
      recorders.back()->watch_dense(*tree);
      tree->call(arguments);
    }
    return recorders;
  }

  void run_ranks_recorded() {
    const int world = mesh_.size();
    for (int rank = 0; rank < world; ++rank) {
      recorders_.push_back(std::make_unique<Recorder>(input_.most_bytes / world));
    }
    outcomes_ = run_watched(
                    input_.rank_tree,
                    [&](int rank, Module& tree) { recorders_[static_cast<std::size_t>(rank)]->watch_rank(tree); },
                    input_.arguments, input_.plans, input_.options)
                    .ranks;
  }

  // Lengths that the plan divides: those of arguments of which a rank has less.
  void find_streams(const Trace& expected) {
    for (const auto& recorder : recorders_) {
      const Tensor* const part = recorder->find(expected, Point::division);
      if (part == nullptr || part->rank() != expected.tensor.rank()) continue;
      for (int axis = 0; axis < part->rank(); ++axis) {
        if (part->size(axis) != expected.tensor.size(axis)) totals_.insert(expected.tensor.size(axis));
      }
    }
  }

  // Such sequences in pairs, and the blocks of packed layers; of the channels of such a layer only its own.
  Divisions divisions_of(const Trace& trace, const RankOutcome& outcome) const {
    const auto& own = trace.point == Point::argument ? columns_ : rows_;
    const auto found = own.find(trace.module);
    Divisions divisions{.streams = blocks_};
    if (found != own.end()) divisions.packed = found->second;
    std::set<std::int64_t> totals = totals_;
    for (const AppliedEntry& entry : outcome.applied) totals.insert(entry.total);
    for (const std::int64_t first : totals) {
      for (const std::int64_t second : totals) divisions.streams.insert({first, second});
    }
    return divisions;
  }

  void find_ends() {
    for (std::size_t rank = 0; rank < recorders_.size(); ++rank) {
      std::optional<EndedRank> end = recorders_[rank]->where_it_ended();
      if (!end) continue;
      end->rank = static_cast<int>(rank);
      end->origin.is_sharded = sharded_.contains(end->origin.module);
      result_.ended.push_back(std::move(*end));
    }
  }

  // Arguments of the whole model that stay whole, though another one of such a length is divided; outputs of which
  // every rank keeps a part.
  void find_suspects(const Recorder& dense) {
    if (!input_.plans.cp || !input_.options.config.context_parallel_config) return;
    for (const Trace& trace : dense.traces()) {
      if (!trace.module.empty()) continue;
      const bool is_argument = trace.point == Point::argument;
      const Tensor* const local = recorders_.front()->find(trace, is_argument ? Point::division : Point::gather);
      if (local == nullptr) continue;
      const bool is_whole = local->shape() == trace.tensor.shape();
      if (is_argument && is_whole) suspect_argument(trace);
      if (!is_argument && !is_whole) {
        result_.suspects.push_back({"output " + trace.value, fmt::format("output {} of the whole model stays divided: "
                                                                         "the plan gathers none of it",
                                                                         trace.value)});
      }
    }
  }

  // What the plan divides itself, not what a module joins of it.
  bool is_divided_length(std::int64_t length) const {
    return std::any_of(outcomes_.begin(), outcomes_.end(), [&](const RankOutcome& outcome) {
      return std::any_of(outcome.applied.begin(), outcome.applied.end(), [&](const AppliedEntry& entry) {
        return entry.action == AppliedEntry::Action::split && entry.total == length;
      });
    });
  }

  void suspect_argument(const Trace& trace) {
    for (int axis = 0; axis < trace.tensor.rank(); ++axis) {
      if (trace.tensor.size(axis) < 2 || !is_divided_length(trace.tensor.size(axis))) continue;
      result_.suspects.push_back(
          {trace.value, fmt::format("argument '{}' of the whole model stays whole: the plan divides other arguments "
                                    "of {} entries, and not this one along axis {}",
                                    trace.value, trace.tensor.size(axis), axis)});
      return;
    }
  }

  // True if the ranks' tensors differ at that point on any rank; the result is then complete.
  bool compare(const Trace& expected, Point point, const std::vector<std::unique_ptr<Recorder>>& dense) {
    bool is_comparable = false;
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      const Tensor* const actual = recorders_[static_cast<std::size_t>(rank)]->find(expected, point);
      const auto replica = static_cast<std::size_t>(replica_of_rank(input_.options.config, rank));
      const bool is_argument = expected.point == Point::argument;
      const Tensor* const whole = dense[replica]->find(expected, is_argument ? Point::argument : Point::gather);
      if (actual == nullptr || whole == nullptr || actual->dtype() != whole->dtype()) continue;
      if (is_unchanged(rank, expected, point, *actual)) {
        is_comparable = is_explained_.contains(&expected) || is_comparable;
        continue;
      }
      const bool is_explained = compare_on_rank(rank, expected, *whole, *actual);
      if (is_explained) is_explained_.insert(&expected);
      is_comparable = is_explained || is_comparable;
    }
    if (result_.ranks.empty()) {
      if (point == Point::gather) ++(is_comparable ? result_.compared : result_.not_comparable);
      return false;
    }
    result_.found = true;
    result_.module = expected.module;
    result_.class_name = expected.class_name;
    result_.call = expected.call;
    // The outputs of a layer that tensor parallelism computes in its own way are known behind it only.
    const Recorder& wrong = *recorders_[static_cast<std::size_t>(result_.ranks.front().rank)];
    const bool is_known_before = point != Point::gather || wrong.find(expected, Point::output) != nullptr;
    result_.point = is_known_before ? point : Point::output;
    result_.value = expected.value;
    result_.origin = expected.origin;
    // An argument that its caller gave rightly.
    if (point == Point::division) result_.origin = {expected.module, expected.class_name};
    result_.origin.is_sharded = sharded_.contains(result_.origin.module);
    return true;
  }

  // Whether nothing came between the argument's or output's two points on this rank.
  bool is_unchanged(int rank, const Trace& trace, Point point, const Tensor& actual) const {
    if (point == Point::argument || point == Point::output) return false;
    const Point before = point == Point::division ? Point::argument : Point::output;
    const Tensor* const earlier = recorders_[static_cast<std::size_t>(rank)]->find(trace, before);
    return earlier != nullptr && earlier->storage() == actual.storage() && earlier->shape() == actual.shape() &&
           earlier->offset() == actual.offset() && earlier->strides() == actual.strides();
  }

  // False if no layout explains the shape.
  bool compare_on_rank(int rank, const Trace& trace, const Tensor& whole, const Tensor& actual) {
    const Divisions divisions = divisions_of(trace, outcomes_[static_cast<std::size_t>(rank)]);
    const RankPlaces places = places_of_rank(mesh_, input_.options.config, rank);
    const std::vector<Layout> layouts = possible_layouts(whole.shape(), actual.shape(), places, divisions);
    if (layouts.empty()) return false;
    const Elements dense(whole), local(actual);
    const double allowed = input_.tolerance * dense.largest();
    std::optional<Mismatch> best;
    std::vector<const Layout*> equally_good;
    for (const Layout& layout : layouts) {
      Mismatch mismatch = mismatch_under(layout, dense, local, allowed);
      if (mismatch.wrong == 0) return true;
      if (best && mismatch.wrong > best->wrong) continue;
      if (best && mismatch.wrong == best->wrong) {
        equally_good.push_back(&layout);
        continue;
      }
      best = std::move(mismatch);
      equally_good = {&layout};
    }
    // Among layouts that explain as much, one under which the wrong elements have a pattern.
    std::string pattern;
    const Layout* chosen = equally_good.front();
    for (const Layout* layout : equally_good) {
      if (!pattern.empty()) break;
      pattern = looks_like(*layout, dense, local, allowed, mesh_.size());
      if (!pattern.empty()) chosen = layout;
    }
    if (chosen != equally_good.front()) best = mismatch_under(*chosen, dense, local, allowed);
    result_.ranks.push_back({.rank = rank,
                             .layout = chosen->text,
                             .extent = extent_of(*best, actual.numel()),
                             .index = index_of(best->worst, actual.shape()),
                             .actual = local.text(best->worst),
                             .expected = dense.text(best->worst_dense),
                             .looks_like = std::move(pattern)});
    return true;
  }

  const DiagnosisInput& input_;
  Mesh mesh_;
  Streams blocks_;
  std::set<std::string> sharded_;                                    // paths of layers
  std::map<std::string, std::vector<std::int64_t>> rows_, columns_;  // blocks of layers by path
  std::set<const Trace*> is_explained_;                              // traces of which a rank's part had a known layout
  std::set<std::int64_t> totals_;                                    // lengths that the plan divides
  std::vector<std::unique_ptr<Recorder>> recorders_;
  std::vector<RankOutcome> outcomes_;
  Diagnosis result_;
};

}  // namespace

Diagnosis diagnose(const DiagnosisInput& input) { return Diagnoser(input).run(); }

}  // namespace shardproof
