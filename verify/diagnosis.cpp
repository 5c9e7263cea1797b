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
#include "core/hook.h"
#include "core/ops.h"
#include "core/sharding.h"
#include "parallel/attention.h"
#include "parallel/config.h"
#include "parallel/tensor_parallel_specs.h"
#include "verify/signature.h"

namespace shardproof {
namespace {

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
  bool are_numbers() const { return !numbers_.empty(); }
  // The number, or one that stands for the value: 0 for zero, for others the order in which they were first seen.
  double number(std::int64_t at, std::map<std::string, double>& names) const {
    if (are_numbers()) return numbers_[static_cast<std::size_t>(at)];
    const std::size_t size = dtype_.size();
    const std::string value(reinterpret_cast<const char*>(&bytes_[static_cast<std::size_t>(at) * size]), size);
    if (value.find_first_not_of('\0') == std::string::npos) return 0.0;
    return names.emplace(value, static_cast<double>(names.size() + 1)).first->second;
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

// How an axis may be divided: as a whole or in streams; one of the total of a packed layer's blocks in these only.
struct Divisions {
  Streams streams;
  std::vector<std::int64_t> packed = {};
};

std::int64_t total_of(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

struct AxisPart {
  std::string text;
  std::vector<std::int64_t> entries;
};

// What a rank can hold `local` of `total` entries of: one piece of a group's division, or one piece of each of several
// streams.
std::vector<AxisPart> parts_of_axis(std::int64_t total, std::int64_t local, int axis, std::span<const Place> places,
                                    const Divisions& divisions) {
  std::vector<AxisPart> parts;
  std::vector<std::vector<std::int64_t>> streams(divisions.streams.begin(), divisions.streams.end());
  // A length that the plan divides is more likely one sequence than two.
  const bool is_sequence = divisions.streams.contains({total, total});
  streams.insert(is_sequence ? streams.begin() : streams.end(), {total});
  if (!divisions.packed.empty() && total_of(divisions.packed) == total) streams = {divisions.packed};
  for (const Place& place : places) {
    for (const std::vector<std::int64_t>& lengths : streams) {
      if (place.members < 2 || total_of(lengths) != total) continue;
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
                                     const Divisions& divisions) {
  if (dense.rank() != local.rank()) return {};
  std::vector<Layout> layouts{{}};
  for (int axis = 0; axis < dense.rank(); ++axis) {
    std::vector<AxisPart> parts;
    if (dense[axis] == local[axis]) {
      parts.push_back({"", range(0, dense[axis])});
    } else {
      parts = parts_of_axis(dense[axis], local[axis], axis, places, divisions);
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

// Where the elements of a rank's part stand in the dense tensor, in order.
std::vector<std::int64_t> places_in_dense(const Layout& layout, const Shape& dense, const Shape& local) {
  const Shape strides = dense.contiguous_strides();
  std::vector<std::int64_t> places(static_cast<std::size_t>(local.numel()));
  for (std::int64_t at = 0; at < local.numel(); ++at) {
    std::int64_t rest = at;
    for (int axis = local.rank() - 1; axis >= 0; --axis) {
      const auto index = static_cast<std::size_t>(rest % local[axis]);
      places[static_cast<std::size_t>(at)] += layout.entries[static_cast<std::size_t>(axis)][index] * strides[axis];
      rest /= local[axis];
    }
  }
  return places;
}

std::string looks_like(const Layout& layout, const Elements& dense, const Elements& local, double allowed, int ranks) {
  const Shape& shape = local.shape();
  constexpr std::int64_t kMostElements = std::int64_t{1} << 22;
  if (shape.rank() == 0 || shape.numel() == 0 || dense.shape().numel() > kMostElements) return {};
  std::map<std::string, double> names;
  SignatureInput input{.channels = static_cast<std::size_t>(shape[shape.rank() - 1]),
                       .are_numbers = local.are_numbers(),
                       .allowed = allowed,
                       .ranks = ranks};
  for (std::int64_t at = 0; at < shape.numel(); ++at) input.actual.push_back(local.number(at, names));
  for (const std::int64_t at : places_in_dense(layout, dense.shape(), shape))
    input.expected.push_back(dense.number(at, names));
  if (dense.shape()[dense.shape().rank() - 1] == shape[shape.rank() - 1]) {
    for (std::int64_t at = 0; at < dense.shape().numel(); ++at) input.whole.push_back(dense.number(at, names));
  }
  return signature_of(input);
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
    outcomes_.resize(static_cast<std::size_t>(world));
    for (int rank = 0; rank < world; ++rank) {
      recorders_.push_back(std::make_unique<Recorder>(input_.most_bytes / world));
    }
    const ParallelRunOptions& options = input_.options;
    try {
      run_ranks({.world_size = world, .schedule_seed = options.schedule_seed, .workers = options.workers},
                [&](Communicator& communicator) {
                  const auto rank = static_cast<std::size_t>(communicator.rank());
                  communicator.set_reduction_order(options.reduction_order, options.schedule_seed);
                  const TreeFactory observed = [&] {
                    std::unique_ptr<Module> tree = input_.rank_tree();
                    recorders_[rank]->watch_rank(*tree);
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

  void suspect_argument(const Trace& trace) {
    for (int axis = 0; axis < trace.tensor.rank(); ++axis) {
      if (trace.tensor.size(axis) < 2 || !totals_.contains(trace.tensor.size(axis))) continue;
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
    const std::vector<Place> places = places_of(rank);
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
                             .extent = extent_of(*best, actual.numel()),
                             .layout = chosen->text,
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

namespace {

std::string module_text(const std::string& path, const std::string& class_name) {
  if (path.empty() && class_name.empty()) return "the whole model";
  return fmt::format("{} ({})", path.empty() ? "the whole model" : fmt::format("module '{}'", path), class_name);
}

template <class Rank>
std::string ranks_text(const std::vector<Rank>& ranks) {
  std::vector<int> numbers;
  for (const Rank& each : ranks) numbers.push_back(each.rank);
  return fmt::format("{} {}", numbers.size() == 1 ? "rank" : "ranks", fmt::join(numbers, ", "));
}

std::string place_text(const Diagnosis& found) {
  const bool is_argument = found.point == Point::argument || found.point == Point::division;
  const std::string what = is_argument          ? fmt::format("argument '{}'", found.value)
                           : found.value == "0" ? std::string("output")
                                                : fmt::format("output {}", found.value);
  const std::string caller = module_text(found.origin.module, found.origin.class_name);
  const std::string how = found.point == Point::argument   ? fmt::format(", as {} gives it", caller)
                          : found.point == Point::division ? ", as the plan divides it"
                          : found.point == Point::gather   ? ", as the plan gathers it"
                                                           : "";
  return fmt::format("first wrong: {} of {}, call {}{}, on {}; {} outputs before it are right", what,
                     module_text(found.module, found.class_name), found.call + 1, how, ranks_text(found.ranks),
                     found.compared);
}

// One sentence for all ranks that ended at the same place.
void append_ends(const std::vector<EndedRank>& ended, std::vector<std::string>& lines) {
  std::map<std::string, std::vector<EndedRank>> by_place;
  for (const EndedRank& each : ended) {
    const char* what = each.point == Point::division ? "before the forward of"
                       : each.point == Point::gather ? "behind the forward of"
                                                     : "inside";
    by_place[fmt::format("{} {}", what, module_text(each.origin.module, each.origin.class_name))].push_back(each);
  }
  for (const auto& [place, ranks] : by_place) lines.push_back(fmt::format("{} ended {}", ranks_text(ranks), place));
}

}  // namespace

std::vector<std::string> Diagnosis::lines() const {
  if (!not_diagnosed.empty()) return {"not diagnosed: " + not_diagnosed};
  std::vector<std::string> result;
  if (found) {
    result.push_back(place_text(*this));
  } else {
    result.push_back(fmt::format(
        "no module output differs where it can be compared ({} compared, {} of a shape that no layout explains)",
        compared, not_comparable));
  }
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0; i < std::min(kShown, ranks.size()); ++i) {
    const DivergingRank& each = ranks[i];
    result.push_back(fmt::format("rank {}, which should have {}: {}; at [{}] it has {}, the dense run {}", each.rank,
                                 each.layout, each.extent, fmt::join(each.index, ", "), each.actual, each.expected));
  }
  for (const DivergingRank& each : ranks) {
    if (each.looks_like.empty()) continue;
    result.push_back(fmt::format("rank {} looks like {}", each.rank, each.looks_like));
    break;
  }
  append_ends(ended, result);
  for (const Suspect& suspect : suspects) result.push_back(suspect.text);
  return result;
}

Diagnosis diagnose(const DiagnosisInput& input) { return Diagnoser(input).run(); }

}  // namespace shardproof
