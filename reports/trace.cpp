#include "reports/trace.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <type_traits>
#include <unordered_map>

#include <fmt/format.h>

#include "core/error.h"
#include "reports/text_list.h"

namespace shardproof {
namespace {

template <class Record>
constexpr std::size_t kNumbersOf = sizeof(Record) / sizeof(std::int64_t);

void add_movement(const RecordedMovement& movement, TextList& texts, TraceEvent& event) {
  event.group_call = movement.group_call;
  event.is_sum = movement.is_sum ? 1 : 0;
  event.purpose = texts.number_of(movement.purpose);
  event.send_rows = movement.send_rows;
  event.receive_rows = movement.receive_rows;
  event.send_bytes = movement.send_bytes;
  event.receive_bytes = movement.receive_bytes;
  event.to = movement.to;
  event.from = movement.from;
  event.root = movement.root;
  event.post_end_ns = movement.post_end_ns;
  event.wait_begin_ns = movement.wait_begin_ns;
  if (!movement.device_span) return;
  event.device_begin_ns = movement.device_span->begin_ns;
  event.device_end_ns = movement.device_span->end_ns;
}

TraceEvent plain_event(const OperationRecorder& recorder, const RecordedEvent& recorded, TextList& texts) {
  TraceEvent event;
  event.kind = static_cast<std::int64_t>(recorded.kind);
  event.step = recorded.step;
  event.operation = texts.number_of(recorded.operation);
  event.begin_ns = recorded.begin_ns;
  event.end_ns = recorded.end_ns;
  if (recorded.kind == EventKind::step || recorded.kind == EventKind::module) return event;
  event.dtype = texts.number_of(recorded.dtype.name());
  event.shape = texts.number_of(recorded.shape.text());
  event.bytes = recorded.bytes;
  if (recorded.kind == EventKind::computation) return event;
  event.group = recorded.place;
  event.call = recorded.call;
  add_movement(recorder.movement_of(recorded), texts, event);
  return event;
}

// A list of what consists of integers.
template <class Record>
void pack_list(const std::vector<Record>& list, std::vector<std::int64_t>& numbers) {
  static_assert(std::is_trivially_copyable_v<Record> && sizeof(Record) == kNumbersOf<Record> * sizeof(std::int64_t));
  numbers.push_back(static_cast<std::int64_t>(list.size()));
  const std::size_t at = numbers.size();
  numbers.resize(at + list.size() * kNumbersOf<Record>);
  if (!list.empty()) std::memcpy(&numbers[at], list.data(), list.size() * sizeof(Record));
}

void pack_text(std::string_view text, std::vector<std::int64_t>& numbers) {
  const std::size_t count = (text.size() + sizeof(std::int64_t) - 1) / sizeof(std::int64_t);
  numbers.push_back(static_cast<std::int64_t>(text.size()));
  const std::size_t at = numbers.size();
  numbers.resize(at + count);
  if (!text.empty()) std::memcpy(&numbers[at], text.data(), text.size());
}

// Reads what was packed, piece by piece.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::int64_t> numbers) : rest_(numbers) {}
  std::int64_t number() { return take(1).front(); }
  std::size_t count() {
    const std::int64_t value = number();
    SHARDPROOF_CHECK(value >= 0, internal_error, "a packed trace has a list of {} entries", value);
    return static_cast<std::size_t>(value);
  }
  std::string text() {
    const std::size_t size = count();
    const auto numbers = take(size / sizeof(std::int64_t) + (size % sizeof(std::int64_t) == 0 ? 0 : 1));
    std::string text(size, '\0');
    if (size > 0) std::memcpy(text.data(), numbers.data(), size);
    return text;
  }
  template <class Record>
  std::vector<Record> list() {
    const std::size_t size = count();
    SHARDPROOF_CHECK(size <= rest_.size(), internal_error, "a packed trace has a list of {} entries", size);
    std::vector<Record> list(size);
    const auto numbers = take(size * kNumbersOf<Record>);
    if (!list.empty()) std::memcpy(static_cast<void*>(list.data()), numbers.data(), numbers.size_bytes());
    return list;
  }
  std::span<const std::int64_t> take(std::size_t size) {
    SHARDPROOF_CHECK(size <= rest_.size(), internal_error, "a packed trace ends {} numbers too early",
                     size - rest_.size());
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

 private:
  std::span<const std::int64_t> rest_;
};

std::string side_text(std::string_view verb, std::int64_t rows, std::int64_t bytes) {
  return fmt::format(", {} {} row{} ({} B)", verb, rows, rows == 1 ? "" : "s", bytes);
}

}  // namespace

std::string_view device_work_name(const TraceDeviceWork& work) {
  switch (static_cast<DeviceWorkKind>(work.kind)) {
    case DeviceWorkKind::kernel: return "kernel";
    case DeviceWorkKind::copy: return "copy";
    case DeviceWorkKind::fill: return "fill";
  }
  return "?";
}

std::string members_text(std::span<const int> members) {
  std::string text;
  for (std::size_t i = 0; i < members.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < members.size() && members[last + 1] == members[last] + 1) ++last;
    if (last < i + 2) last = i;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", members[i]);
    if (last > i) text += fmt::format("-{}", members[last]);
    i = last;
  }
  return text;
}

const std::string& RankTrace::text(std::int64_t number) const {
  static const std::string kNothing;
  return number < 0 ? kNothing : texts[static_cast<std::size_t>(number)];
}

std::int64_t RunTrace::steps() const {
  std::int64_t count = 0;
  for (const RankTrace& rank : ranks) {
    for (const TraceEvent& event : rank.events) count = std::max(count, event.step + 1);
  }
  return count;
}

bool RunTrace::has_operations() const {
  const auto is_operation = [](const TraceEvent& event) {
    return event.is(EventKind::computation) || event.is(EventKind::communication);
  };
  return std::ranges::any_of(ranks,
                             [&](const RankTrace& rank) { return std::ranges::any_of(rank.events, is_operation); });
}

std::string_view RunTrace::about_of(std::string_view name) const {
  const auto found = std::ranges::find(about, name, [](const auto& entry) -> std::string_view { return entry.first; });
  return found == about.end() ? std::string_view() : std::string_view(found->second);
}

RankTrace trace_of(const OperationRecorder& recorder, int rank) {
  RankTrace trace;
  trace.rank = rank;
  for (const OperationRecorder::Group& group : recorder.groups()) trace.groups.push_back({group.key, group.members});
  TextList texts(trace.texts);
  // Of the module calls, by event: their place, and how often each operation occurred in them.
  struct Scope {
    std::int64_t module = -1;
    std::int64_t call = 0;
    std::map<std::int64_t, std::int64_t> operations;
  };
  std::unordered_map<std::int64_t, Scope> scopes;
  for (std::size_t i = 0; i < recorder.event_count(); ++i) {
    const RecordedEvent& recorded = recorder.event(i);
    TraceEvent event = plain_event(recorder, recorded, texts);
    const auto number = static_cast<std::int64_t>(i);
    if (recorded.kind == EventKind::step) scopes.clear();
    if (recorded.kind == EventKind::module) {
      scopes[number] = {
          .module = texts.number_of(recorder.path(recorded.place)), .call = recorded.call, .operations = {}};
    }
    Scope& scope = scopes[recorded.kind == EventKind::module ? number : recorded.scope];
    event.module = scope.module;
    event.module_call = scope.call;
    if (recorded.kind == EventKind::computation) event.ordinal = ++scope.operations[event.operation];
    trace.events.push_back(event);
  }
  return trace;
}

void correct_clock(RankTrace& trace, const ClockOffset& offset) {
  trace.clock = offset;
  for (TraceEvent& event : trace.events) {
    for (std::int64_t* const time : {&event.begin_ns, &event.end_ns, &event.post_end_ns, &event.wait_begin_ns,
                                     &event.device_begin_ns, &event.device_end_ns}) {
      if (*time >= 0) *time += offset.offset_ns;
    }
  }
  for (TraceDeviceWork& work : trace.device_work) {
    work.begin_ns += offset.offset_ns;
    work.end_ns += offset.offset_ns;
  }
}

std::vector<std::int64_t> packed(const RankTrace& trace) {
  std::vector<std::int64_t> numbers{trace.rank, trace.clock.offset_ns, trace.clock.residual_ns};
  numbers.push_back(static_cast<std::int64_t>(trace.texts.size()));
  for (const std::string& text : trace.texts) pack_text(text, numbers);
  numbers.push_back(static_cast<std::int64_t>(trace.groups.size()));
  for (const TraceGroup& group : trace.groups) {
    pack_text(group.key, numbers);
    numbers.push_back(static_cast<std::int64_t>(group.members.size()));
    numbers.insert(numbers.end(), group.members.begin(), group.members.end());
  }
  pack_list(trace.events, numbers);
  pack_list(trace.device_work, numbers);
  numbers.push_back(trace.device_work_lost);
  return numbers;
}

RankTrace unpacked(std::span<const std::int64_t> numbers) {
  Unpacker unpacker(numbers);
  RankTrace trace;
  trace.rank = static_cast<int>(unpacker.number());
  trace.clock.offset_ns = unpacker.number();
  trace.clock.residual_ns = unpacker.number();
  for (std::size_t left = unpacker.count(); left > 0; --left) trace.texts.push_back(unpacker.text());
  for (std::size_t left = unpacker.count(); left > 0; --left) {
    TraceGroup group{.key = unpacker.text(), .members = {}};
    const auto members = unpacker.take(unpacker.count());
    for (const std::int64_t member : members) group.members.push_back(static_cast<int>(member));
    trace.groups.push_back(std::move(group));
  }
  trace.events = unpacker.list<TraceEvent>();
  trace.device_work = unpacker.list<TraceDeviceWork>();
  trace.device_work_lost = unpacker.number();
  return trace;
}

std::string identifier(const RankTrace& trace, const TraceEvent& event) {
  const std::string& operation = trace.text(event.operation);
  if (event.is(EventKind::step)) return fmt::format("step {}", event.step);
  if (event.is(EventKind::communication)) {
    return fmt::format("{} call {} {}", trace.group_of(event).key, event.call, operation);
  }
  const std::string& path = trace.text(event.module);
  const std::string place = event.module < 0
                                ? std::string("(no module)")
                                : fmt::format("{} call {}", path.empty() ? "(root)" : path, event.module_call);
  return event.is(EventKind::module) ? place : fmt::format("{} {} {}", place, operation, event.ordinal);
}

std::string signature(const RankTrace& trace, const TraceEvent& event) {
  const std::string& operation = trace.text(event.operation);
  if (!event.is(EventKind::communication)) {
    if (!event.is(EventKind::computation)) return operation;
    return fmt::format("{} {} {}, {} B", operation, trace.text(event.dtype), trace.text(event.shape), event.bytes);
  }
  std::string text = fmt::format("{} '{}'{}", operation, trace.text(event.purpose), event.is_sum != 0 ? " (sum)" : "");
  if (event.send_rows + event.receive_rows + event.send_bytes + event.receive_bytes > 0) {
    text += fmt::format(" {} rows of {}", trace.text(event.dtype), trace.text(event.shape));
    text += side_text("sends", event.send_rows, event.send_bytes);
    text += side_text("receives", event.receive_rows, event.receive_bytes);
  }
  if (event.root >= 0) text += fmt::format(", root {}", event.root);
  if (operation == "exchange") text += fmt::format(", to {}, from {}", event.to, event.from);
  return text + " among ranks " + members_text(trace.group_of(event).members);
}

std::int64_t moved_bytes(const RankTrace& trace, const TraceEvent& event) {
  const std::string& operation = trace.text(event.operation);
  if (operation == "all_gather" || operation == "broadcast") return event.receive_bytes;
  if (operation == "all_to_all") return event.send_bytes;
  return std::max(event.send_bytes, event.receive_bytes);
}

Bandwidth bandwidth(std::string_view operation, std::int64_t bytes, std::int64_t nanoseconds, std::size_t members) {
  if (nanoseconds <= 0 || members == 0) return {};
  const double algorithm = static_cast<double>(bytes) / static_cast<double>(nanoseconds);
  const bool keeps_own = operation == "all_gather" || operation == "all_to_all" || operation == "scatter";
  const double factor = keeps_own ? static_cast<double>(members - 1) / static_cast<double>(members) : 1.0;
  return {.algorithm = algorithm, .bus = algorithm * factor};
}

std::int64_t duration_ns(const TraceEvent& event) {
  const bool is_measured = event.device_begin_ns >= 0 && event.device_end_ns >= 0;
  if (is_measured) return event.device_end_ns - event.device_begin_ns;
  return event.begin_ns >= 0 && event.end_ns >= 0 ? event.end_ns - event.begin_ns : 0;
}

}  // namespace shardproof
