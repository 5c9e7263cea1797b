#include "verify/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/ops.h"
#include "core/sharding.h"
#include "parallel/config.h"
#include "parallel/tensor_parallel_specs.h"

namespace shardproof {
namespace {

struct ModuleOutput {
  std::string module, class_name;
  int call = 0, output = 0;
  Tensor tensor;
};

// Keeps all outputs in the order in which calls ended, up to a limit of bytes.
class OutputRecorder final : public ModuleObserver {
 public:
  explicit OutputRecorder(std::int64_t most_bytes) : left_(most_bytes) {}
  void on_outputs(const Module& module, const Outputs& outputs) override {
    const std::string path = module.path();
    const int call = calls_[path]++;
    for (std::size_t i = 0; i < outputs.tensors.size(); ++i) {
      const Tensor& tensor = outputs.tensors[i];
      if (!tensor.defined() || !tensor.has_storage()) continue;
      left_ -= static_cast<std::int64_t>(tensor.bytes());
      if (left_ < 0) continue;
      index_[{path, call, static_cast<int>(i)}] = outputs_.size();
      outputs_.push_back({path, module.class_name(), call, static_cast<int>(i), tensor});
    }
  }
  bool is_complete() const { return left_ >= 0; }
  const std::vector<ModuleOutput>& outputs() const { return outputs_; }
  const Tensor* find(const ModuleOutput& wanted) const {
    const auto found = index_.find({wanted.module, wanted.call, wanted.output});
    return found == index_.end() ? nullptr : &outputs_[found->second].tensor;
  }

 private:
  std::int64_t left_;
  std::map<std::string, int> calls_;
  std::map<std::tuple<std::string, int, int>, std::size_t> index_;
  std::vector<ModuleOutput> outputs_;
};

// The elements of a tensor in row-major order, to be compared and shown.
class Elements {
 public:
  explicit Elements(const Tensor& tensor) : dtype_(tensor.dtype()), shape_(tensor.shape()) {
    if (dtype_.category() == DTypeCategory::floating) {
      numbers_ = ops::to_doubles(tensor);
      return;
    }
    bytes_.resize(tensor.bytes());
    tensor.device().download(bytes_, tensor);
  }
  const Shape& shape() const { return shape_; }
  double largest() const {
    double largest = 0.0;
    for (const double number : numbers_) {
      if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
    }
    return largest;
  }
  // How far apart two elements are; 0 within `allowed`.
  double distance(std::int64_t at, const Elements& other, std::int64_t at_other, double allowed) const {
    if (!numbers_.empty()) {
      const double a = numbers_[static_cast<std::size_t>(at)], b = other.numbers_[static_cast<std::size_t>(at_other)];
      if (a == b) return 0.0;
      const double difference = std::abs(a - b);
      return difference <= allowed ? 0.0 : std::isnan(difference) ? HUGE_VAL : difference;
    }
    const std::size_t size = dtype_.size();
    const bool equal = std::memcmp(&bytes_[static_cast<std::size_t>(at) * size],
                                   &other.bytes_[static_cast<std::size_t>(at_other) * size], size) == 0;
    return equal ? 0.0 : 1.0;
  }
  std::string text(std::int64_t at) const {
    if (!numbers_.empty()) return fmt::format("{}", numbers_[static_cast<std::size_t>(at)]);
    const std::size_t size = dtype_.size();
    return fmt::format("0x{:02x}",
                       fmt::join(std::span(reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size())
                                     .subspan(static_cast<std::size_t>(at) * size, size),
                                 ""));
  }

 private:
  DType dtype_;
  Shape shape_;
  std::vector<double> numbers_;
  std::vector<std::byte> bytes_;
};

// For each axis, the entries of the dense tensor that the rank's tensor is to hold, in order.
struct Layout {
  std::string text;
  std::vector<std::vector<std::int64_t>> entries;
};

std::vector<std::int64_t> range(std::int64_t start, std::int64_t count) {
  std::vector<std::int64_t> entries(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) entries[static_cast<std::size_t>(i)] = start + i;
  return entries;
}

// The rank's place in a group that may divide an axis.
struct Place {
  int members = 1, member = 0;
};

// Lengths of pieces that stand one after the other along an axis and are each divided by themselves.
using Streams = std::set<std::vector<std::int64_t>>;

struct AxisPart {
  std::string text;
  std::vector<std::int64_t> entries;
};

// What a rank can hold `local` of `total` entries of: one piece of a group's division, or one piece of each of several
// streams.
std::vector<AxisPart> parts_of_axis(std::int64_t total, std::int64_t local, int axis, std::span<const Place> places,
                                    const Streams& known_streams) {
  std::vector<AxisPart> parts;
  Streams streams = known_streams;
  streams.insert({total});
  for (const Place& place : places) {
    for (const std::vector<std::int64_t>& lengths : streams) {
      if (place.members < 2 || std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) != total) continue;
      std::vector<std::int64_t> entries;
      std::int64_t start = 0;
      for (const std::int64_t length : lengths) {
        const std::vector<std::int64_t> piece = range(start + balanced_offset(length, place.members, place.member),
                                                      balanced_size(length, place.members, place.member));
        entries.insert(entries.end(), piece.begin(), piece.end());
        start += length;
      }
      if (static_cast<std::int64_t>(entries.size()) != local) continue;
      const std::string text =
          lengths.size() > 1 ? fmt::format("its parts of {} along axis {}", fmt::join(lengths, " + "), axis)
          : entries.empty()
              ? fmt::format("nothing along axis {}", axis)
              : fmt::format("entries {} to {} of {} along axis {}", entries.front(), entries.back(), total, axis);
      parts.push_back({text, std::move(entries)});
    }
  }
  return parts;
}

// All layouts by which a tensor of shape `local` can be a rank's part of one of shape `dense`; several where sizes do
// not tell them apart.
std::vector<Layout> possible_layouts(const Shape& dense, const Shape& local, std::span<const Place> places,
                                     const Streams& streams) {
  if (dense.rank() != local.rank()) return {};
  std::vector<Layout> layouts{{}};
  for (int axis = 0; axis < dense.rank(); ++axis) {
    std::vector<AxisPart> parts;
    if (dense[axis] == local[axis]) {
      parts.push_back({"", range(0, dense[axis])});
    } else {
      parts = parts_of_axis(dense[axis], local[axis], axis, places, streams);
    }
    std::vector<Layout> extended;
    for (const Layout& layout : layouts) {
      for (const AxisPart& part : parts) {
        Layout& next = extended.emplace_back(layout);
        if (!part.text.empty()) next.text += (next.text.empty() ? "" : ", ") + part.text;
        next.entries.push_back(part.entries);
      }
    }
    layouts = std::move(extended);
  }
  for (Layout& layout : layouts) {
    if (layout.text.empty()) layout.text = "the whole";
  }
  return layouts;
}

struct Mismatch {
  std::int64_t wrong = 0;
  std::int64_t worst = 0, worst_dense = 0;
  std::vector<std::vector<bool>> places;  // by axis: whether any element there is wrong
};

Mismatch mismatch_under(const Layout& layout, const Elements& dense, const Elements& local, double allowed) {
  Mismatch result;
  const Shape& shape = local.shape();
  const Shape strides = dense.shape().contiguous_strides();
  for (int axis = 0; axis < shape.rank(); ++axis) result.places.emplace_back(static_cast<std::size_t>(shape[axis]));
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()), 0);
  double largest = 0.0;
  for (std::int64_t at = 0; at < shape.numel(); ++at) {
    std::int64_t in_dense = 0, rest = at;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      index[a] = rest % shape[axis];
      rest /= shape[axis];
      in_dense += layout.entries[a][static_cast<std::size_t>(index[a])] * strides[axis];
    }
    const double distance = local.distance(at, dense, in_dense, allowed);
    if (distance == 0.0) continue;
    ++result.wrong;
    for (std::size_t a = 0; a < index.size(); ++a) result.places[a][static_cast<std::size_t>(index[a])] = true;
    if (distance <= largest) continue;
    largest = distance;
    result.worst = at;
    result.worst_dense = in_dense;
  }
  return result;
}

std::string extent_of(const Mismatch& mismatch, std::int64_t elements) {
  if (mismatch.wrong == elements) return "every element";
  std::string text;
  for (std::size_t axis = 0; axis < mismatch.places.size(); ++axis) {
    const std::vector<bool>& wrong = mismatch.places[axis];
    if (std::all_of(wrong.begin(), wrong.end(), [](bool is_wrong) { return is_wrong; })) continue;
    text += fmt::format("{}axis {}: {}", text.empty() ? "" : "; ", axis, places_text(wrong));
  }
  return fmt::format("{} of {} elements{}{}", mismatch.wrong, elements, text.empty() ? "" : ", ", text);
}

std::vector<std::int64_t> index_of(std::int64_t at, const Shape& shape) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[static_cast<std::size_t>(axis)] = at % shape[axis];
    at /= shape[axis];
  }
  return index;
}

class Diagnoser {
 public:
  explicit Diagnoser(const DiagnosisInput& input) : input_(input), mesh_(effective_mesh(input.options.config)) {}

  Diagnosis run() && {
    find_blocks();
    std::vector<std::unique_ptr<OutputRecorder>> dense = run_dense();
    run_ranks_recorded();
    const auto is_complete = [](const auto& recorder) { return recorder->is_complete(); };
    if (!std::all_of(dense.begin(), dense.end(), is_complete) ||
        !std::all_of(recorders_.begin(), recorders_.end(), is_complete)) {
      result_.not_diagnosed = fmt::format("the outputs of all modules take more than {} MB", input_.most_bytes >> 20);
      return std::move(result_);
    }
    for (const ModuleOutput& expected : dense.front()->outputs()) {
      if (compare_call(expected, dense)) break;
    }
    return std::move(result_);
  }

 private:
  // Of layers that tensor parallelism shards; those of a plan that it refuses are none.
  void find_blocks() {
    const int degree = effective_tp_degree(input_.options.config);
    if (!input_.plans.tp || degree < 2) return;
    try {
      const std::unique_ptr<Module> tree = input_.dense_tree();
      for (const ShardSpec& spec : resolve_tp_shard_specs(*tree, *input_.plans.tp, degree)) blocks_.insert(spec.blocks);
    } catch (const Error&) {
      blocks_.clear();
    }
  }

  std::vector<std::unique_ptr<OutputRecorder>> run_dense() {
    std::vector<std::unique_ptr<OutputRecorder>> recorders;
    for (const Arguments& arguments : input_.arguments) {
      recorders.push_back(std::make_unique<OutputRecorder>(input_.most_bytes));
      const std::unique_ptr<Module> tree = input_.dense_tree();
      tree->set_observer(recorders.back().get());
      tree->call(arguments);
    }
    return recorders;
  }

  void run_ranks_recorded() {
    const int world = mesh_.size();
    outcomes_.resize(static_cast<std::size_t>(world));
    for (int rank = 0; rank < world; ++rank) {
      recorders_.push_back(std::make_unique<OutputRecorder>(input_.most_bytes / world));
    }
    const ParallelRunOptions& options = input_.options;
    try {
      run_ranks({.world_size = world, .schedule_seed = options.schedule_seed, .workers = options.workers},
                [&](Communicator& communicator) {
                  const auto rank = static_cast<std::size_t>(communicator.rank());
                  communicator.set_reduction_order(options.reduction_order, options.schedule_seed);
                  const TreeFactory observed = [&] {
                    std::unique_ptr<Module> tree = input_.rank_tree();
                    tree->set_observer(recorders_[rank].get());
                    return tree;
                  };
                  const auto replica = static_cast<std::size_t>(replica_of_rank(options.config, communicator.rank()));
                  run_rank(communicator, observed, input_.arguments[replica], input_.plans, options.config,
                           options.gather_form, outcomes_[rank]);
                });
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal_error) throw;
    }
  }

  // The groups that may divide an axis, from the rank's place in them.
  std::vector<Place> places_of(int rank) const {
    const auto place = [&](std::initializer_list<std::string_view> dimensions) {
      Place result;
      for (const std::string_view dimension : dimensions) {
        if (!mesh_.has(dimension)) continue;
        result.member = result.member * mesh_.size_of(dimension) + mesh_.coordinate(rank, dimension);
        result.members *= mesh_.size_of(dimension);
      }
      return result;
    };
    return {place({"ring", "ulysses"}), place({"tp"})};
  }

  // Sequences that the plan divides, in pairs, and the blocks of sharded layers.
  Streams streams_of(const RankOutcome& outcome) const {
    Streams streams = blocks_;
    for (const AppliedEntry& first : outcome.applied) {
      for (const AppliedEntry& second : outcome.applied) streams.insert({first.total, second.total});
    }
    return streams;
  }

  // True if the call differs on any rank; the result is then complete.
  bool compare_call(const ModuleOutput& expected, const std::vector<std::unique_ptr<OutputRecorder>>& dense) {
    bool is_comparable = false;
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      const Tensor* const actual = recorders_[static_cast<std::size_t>(rank)]->find(expected);
      const auto replica = static_cast<std::size_t>(replica_of_rank(input_.options.config, rank));
      const Tensor* const whole = dense[replica]->find(expected);
      if (actual == nullptr || whole == nullptr || actual->dtype() != whole->dtype()) continue;
      is_comparable = compare_on_rank(rank, *whole, *actual) || is_comparable;
    }
    if (result_.ranks.empty()) {
      ++(is_comparable ? result_.compared : result_.not_comparable);
      return false;
    }
    result_.found = true;
    result_.module = expected.module;
    result_.class_name = expected.class_name;
    result_.call = expected.call;
    result_.output = expected.output;
    return true;
  }

  // False if no layout explains the shape.
  bool compare_on_rank(int rank, const Tensor& whole, const Tensor& actual) {
    const Streams streams = streams_of(outcomes_[static_cast<std::size_t>(rank)]);
    const std::vector<Place> places = places_of(rank);
    const std::vector<Layout> layouts = possible_layouts(whole.shape(), actual.shape(), places, streams);
    if (layouts.empty()) return false;
    const Elements dense(whole), local(actual);
    const double allowed = input_.tolerance * dense.largest();
    std::optional<Mismatch> best;
    const Layout* best_layout = nullptr;
    for (const Layout& layout : layouts) {
      Mismatch mismatch = mismatch_under(layout, dense, local, allowed);
      if (best && mismatch.wrong >= best->wrong) continue;
      best = std::move(mismatch);
      best_layout = &layout;
      if (best->wrong == 0) return true;
    }
    result_.ranks.push_back({.rank = rank,
                             .extent = extent_of(*best, actual.numel()),
                             .layout = best_layout->text,
                             .index = index_of(best->worst, actual.shape()),
                             .actual = local.text(best->worst),
                             .expected = dense.text(best->worst_dense)});
    return true;
  }

  const DiagnosisInput& input_;
  Mesh mesh_;
  Streams blocks_;
  std::vector<std::unique_ptr<OutputRecorder>> recorders_;
  std::vector<RankOutcome> outcomes_;
  Diagnosis result_;
};

}  // namespace

std::string places_text(const std::vector<bool>& wrong) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < wrong.size(); ++i) {
    if (wrong[i]) places.push_back(i);
  }
  const std::size_t size = wrong.size();
  if (places.size() == size) return fmt::format("all {}", size);
  if (places.empty()) return fmt::format("none of {}", size);
  if (places.size() == 1) {
    return fmt::format("{} of {}{}", places[0], size,
                       places[0] + 1 == size ? " (the last)"
                       : places[0] == 0      ? " (the first)"
                                             : "");
  }
  const std::size_t step = places[1] - places[0];
  bool is_regular = true;
  for (std::size_t i = 1; i < places.size(); ++i) is_regular = is_regular && places[i] - places[i - 1] == step;
  if (is_regular && step == 1) {
    const char* what = places.back() + 1 == size ? " (the tail)" : places.front() == 0 ? " (the beginning)" : "";
    return fmt::format("{} to {} of {}{}", places.front(), places.back(), size, what);
  }
  constexpr std::size_t kShown = 8;
  std::vector<std::size_t> shown(places.begin(),
                                 places.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, places.size())));
  const std::string list = fmt::format("{}{}", fmt::join(shown, ", "), places.size() > kShown ? ", .." : "");
  if (is_regular && places.size() > 2) return fmt::format("{} of {} (one in {})", list, size, step);
  return fmt::format("{} of {}", list, size);
}

std::vector<std::string> Diagnosis::lines() const {
  if (!not_diagnosed.empty()) return {"not diagnosed: " + not_diagnosed};
  if (!found) {
    return {
        fmt::format("no module output differs where it can be compared ({} compared, {} of a shape that no layout "
                    "explains)",
                    compared, not_comparable)};
  }
  std::vector<int> numbers;
  for (const DivergingRank& each : ranks) numbers.push_back(each.rank);
  std::vector<std::string> result;
  result.push_back(fmt::format("first wrong: {} of {} ({}), call {}, on {} {}; {} outputs before it are right",
                               output == 0 ? std::string("output") : fmt::format("output {}", output),
                               module.empty() ? "the whole model" : fmt::format("module '{}'", module), class_name,
                               call + 1, numbers.size() == 1 ? "rank" : "ranks", fmt::join(numbers, ", "), compared));
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0; i < std::min(kShown, ranks.size()); ++i) {
    const DivergingRank& each = ranks[i];
    result.push_back(fmt::format("rank {}, which should have {}: {}; at [{}] it has {}, the dense run {}", each.rank,
                                 each.layout, each.extent, fmt::join(each.index, ", "), each.actual, each.expected));
  }
  return result;
}

Diagnosis diagnose(const DiagnosisInput& input) { return Diagnoser(input).run(); }

}  // namespace shardproof
