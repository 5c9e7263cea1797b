// Reads trace files: the other half of reports/chrome_trace.h. Files come from anywhere, so every number is checked
// against what it may be before it is used.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "core/error.h"
#include "reports/chrome_trace.h"

namespace shardproof {
namespace {

// What a file may say: far more than there is, and little enough to be added up.
constexpr double kLongestNs = 365.0 * 86400.0 * 1e9;
constexpr std::int64_t kMostEvents = 1'000'000'000;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 41U;

// Reads what the writer wrote.
class TraceReader {
 public:
  explicit TraceReader(const Json& json) : json_(json) {}

  RunTrace trace() {
    const Json& about = json_.at("otherData");
    if (about.at("format_version").as_int() != kTraceVersion)
      about.at("format_version").reject(fmt::format("{}", kTraceVersion));
    for (const JsonMember& member : about.members()) {
      if (member.value.is_string() && member.key != "format") {
        trace_.about.emplace_back(member.key, member.value.as_string());
      }
    }
    for (const Json& rank : about.at("ranks").items()) read_rank(rank);
    if (trace_.ranks.empty()) about.at("ranks").reject("a list of at least one rank");
    for (const Json& rank : about.at("ranks").items()) check_members(rank);
    for (const Json& event : json_.at("traceEvents").items()) read_event(event);
    for (RankTrace& rank : trace_.ranks) finish(rank);
    trace_.source = json_.where();
    return std::move(trace_);
  }

 private:
  struct Ordered {
    std::int64_t number = 0;
    TraceEvent event;
  };
  struct Launched {
    const Json* by = nullptr;  // the number of the event that launched it; null = not known
    TraceDeviceWork work;
  };
  struct RankParts {
    std::unordered_map<std::string, std::int64_t> texts;
    std::unordered_map<std::string, std::int64_t> groups;
    std::vector<Ordered> events;
    std::vector<Launched> device_work;
  };

  void read_rank(const Json& json) {
    RankTrace rank;
    RankParts parts;
    rank.rank = static_cast<int>(json.at("rank").as_int(0, 1 << 20));
    if (!trace_.ranks.empty() && rank.rank <= trace_.ranks.back().rank) json.at("rank").reject("ascending ranks");
    rank.clock = {.offset_ns = json.at("clock_offset_ns").as_int(),
                  .residual_ns = json.at("clock_residual_ns").as_int()};
    if (const Json* const lost = json.find("device_work_lost")) rank.device_work_lost = lost->as_int(0, kMostEvents);
    for (const Json& entry : json.at("groups").items()) {
      rank.groups.push_back(read_trace_group(entry));
      parts.groups.try_emplace(rank.groups.back().key, static_cast<std::int64_t>(rank.groups.size()) - 1);
    }
    places_.emplace(rank.rank, trace_.ranks.size());
    trace_.ranks.push_back(std::move(rank));
    parts_.push_back(std::move(parts));
  }

  void check_members(const Json& rank) const {
    for (const Json& group : rank.at("groups").items()) {
      for (const Json& member : group.at("members").items()) {
        if (!places_.contains(member.as_int())) member.reject("a rank that the file lists");
      }
    }
  }

  std::int64_t text_in(RankTrace& rank, RankParts& parts, const std::string& text) {
    const auto [known, is_new] = parts.texts.try_emplace(text, static_cast<std::int64_t>(rank.texts.size()));
    if (is_new) rank.texts.push_back(text);
    return known->second;
  }

  static std::int64_t time_of(const Json& microseconds) {
    const double nanoseconds = microseconds.as_double() * 1000.0;
    if (!(std::abs(nanoseconds) <= kLongestNs)) microseconds.reject("a time of at most a year, in microseconds");
    return std::llround(nanoseconds);
  }
  static std::int64_t length_of(const Json& microseconds) {
    if (!(microseconds.as_double() >= 0.0)) microseconds.reject("a length of time, in microseconds");
    return time_of(microseconds);
  }

  // Of a slice; of anything else nothing.
  static std::string_view category_of(const Json& event) {
    const Json* const category = event.find("cat");
    if (category == nullptr || event.at("ph").as_string() != "X") return {};
    return category->as_string();
  }

  static std::optional<EventKind> kind_of(const Json& event) {
    const std::string_view name = category_of(event);
    if (name == "step") return EventKind::step;
    if (name == "module") return EventKind::module;
    if (name == "computation") return EventKind::computation;
    return name == "communication" ? std::optional(EventKind::communication) : std::nullopt;
  }

  static std::optional<DeviceWorkKind> device_kind_of(const Json& event) {
    const std::string_view name = category_of(event);
    if (name == "kernel") return DeviceWorkKind::kernel;
    if (name == "copy") return DeviceWorkKind::copy;
    return name == "fill" ? std::optional(DeviceWorkKind::fill) : std::nullopt;
  }

  std::size_t place_of_rank(const Json& event) const {
    const auto place = places_.find(event.at("pid").as_int());
    if (place == places_.end()) event.at("pid").reject("a rank that the file lists");
    return place->second;
  }

  void read_device_work(const Json& json, DeviceWorkKind kind) {
    const std::size_t place = place_of_rank(json);
    RankTrace& rank = trace_.ranks[place];
    const Json& arguments = json.at("args");
    TraceDeviceWork work{.kind = static_cast<std::int64_t>(kind)};
    work.name = text_in(rank, parts_[place], json.at("name").as_string());
    work.device = arguments.at("device").as_int(0, kMostEvents);
    work.stream = arguments.at("stream").as_int(0, std::numeric_limits<std::uint32_t>::max());
    if (kind != DeviceWorkKind::kernel) work.bytes = arguments.at("bytes").as_int(0, kMostBytes);
    work.begin_ns = time_of(json.at("ts"));
    work.end_ns = work.begin_ns + length_of(json.at("dur"));
    parts_[place].device_work.push_back({.by = arguments.find("of_n"), .work = work});
  }

  void read_event(const Json& json) {
    if (const std::optional<DeviceWorkKind> kind = device_kind_of(json)) return read_device_work(json, *kind);
    const std::optional<EventKind> kind = kind_of(json);
    if (!kind) return;  // tracks, arrows, posts and waits: what the other events say, for the eye
    const std::size_t place = place_of_rank(json);
    RankTrace& rank = trace_.ranks[place];
    RankParts& parts = parts_[place];
    const Json& arguments = json.at("args");
    const auto text_of = [&](std::string_view key) { return text_in(rank, parts, arguments.at(key).as_string()); };
    TraceEvent event;
    event.kind = static_cast<std::int64_t>(*kind);
    event.step = arguments.at("step").as_int(0, kMostEvents);
    event.begin_ns = time_of(json.at("ts"));
    const Json* const unfinished = arguments.find("unfinished");
    if (unfinished == nullptr) event.end_ns = event.begin_ns + length_of(json.at("dur"));
    if (*kind == EventKind::step) {
      event.operation = text_in(rank, parts, "step");
    } else {
      event.operation = text_of(*kind == EventKind::module ? "class" : "operation");
      if (arguments.find("module") != nullptr) {
        event.module = text_of("module");
        event.module_call = arguments.at("module_call").as_int(0, kMostEvents);
      }
    }
    if (*kind == EventKind::computation || *kind == EventKind::communication) {
      event.dtype = text_of("dtype");
      event.shape = text_of("shape");
    }
    if (*kind == EventKind::computation) {
      event.ordinal = arguments.at("ordinal").as_int(0, kMostEvents);
      event.bytes = arguments.at("bytes").as_int(0, kMostBytes);
    }
    if (*kind == EventKind::communication) {
      event.purpose = text_of("purpose");
      read_communication(arguments, rank, parts, event);
    }
    parts.events.push_back({.number = arguments.at("n").as_int(0, kMostEvents), .event = event});
  }

  static void read_communication(const Json& arguments, const RankTrace& rank, const RankParts& parts,
                                 TraceEvent& event) {
    const auto group = parts.groups.find(arguments.at("group").as_string());
    if (group == parts.groups.end()) arguments.at("group").reject("a group that the file lists for the rank");
    event.group = group->second;
    const auto size = static_cast<std::int64_t>(rank.group_of(event).members.size());
    event.call = arguments.at("call").as_int(0, kMostEvents);
    event.group_call = arguments.at("group_call").as_int(0, kMostEvents);
    event.send_rows = arguments.at("send_rows").as_int(0, kMostBytes);
    event.receive_rows = arguments.at("receive_rows").as_int(0, kMostBytes);
    event.send_bytes = arguments.at("send_bytes").as_int(0, kMostBytes);
    event.receive_bytes = arguments.at("receive_bytes").as_int(0, kMostBytes);
    const auto member = [&](std::string_view key, std::int64_t& into) {
      const Json* const found = arguments.find(key);
      if (found != nullptr) into = found->as_int(0, size - 1);
    };
    member("to", event.to);
    member("from", event.from);
    member("root", event.root);
    if (const Json* const found = arguments.find("is_sum")) event.is_sum = found->as_int(0, 1);
    read_times(arguments, event);
  }

  // In their order, but for those of the device: when it began is known only within what asking for its clock takes.
  static void read_times(const Json& arguments, TraceEvent& event) {
    const auto read = [&](std::string_view key, std::int64_t& into, std::int64_t earliest, std::string_view what) {
      const Json* const found = arguments.find(key);
      if (found == nullptr) return;
      into = time_of(*found);
      if (into < earliest) found->reject(fmt::format("a time that is not before {}", what));
    };
    const std::int64_t begin = event.begin_ns;
    event.end_ns = -1;
    read("post_end_us", event.post_end_ns, begin, "the beginning of the event, ts");
    read("wait_begin_us", event.wait_begin_ns, begin, "the beginning of the event, ts");
    read("wait_end_us", event.end_ns, std::max(begin, event.wait_begin_ns), "wait_begin_us and the beginning, ts");
    read("device_begin_us", event.device_begin_ns, std::numeric_limits<std::int64_t>::min(), "");
    const bool is_measured = arguments.find("device_begin_us") != nullptr;
    read("device_end_us", event.device_end_ns,
         is_measured ? event.device_begin_ns : std::numeric_limits<std::int64_t>::min(), "device_begin_us");
  }

  // Puts events into the order of their numbers, and device work into that of time.
  void finish(RankTrace& rank) {
    RankParts& parts = parts_[static_cast<std::size_t>(&rank - trace_.ranks.data())];
    std::ranges::stable_sort(parts.events, {}, &Ordered::number);
    for (const Ordered& ordered : parts.events) rank.events.push_back(ordered.event);
    for (Launched& launched : parts.device_work) {
      if (launched.by == nullptr) continue;
      const std::int64_t number = launched.by->as_int(0, kMostEvents);
      const auto event = std::ranges::lower_bound(parts.events, number, {}, &Ordered::number);
      if (event == parts.events.end() || event->number != number || !is_operation(event->event)) {
        launched.by->reject("the number n of a computation or communication of the rank");
      }
      launched.work.event = event - parts.events.begin();
    }
    std::ranges::stable_sort(parts.device_work, {}, [](const Launched& launched) { return launched.work.begin_ns; });
    for (const Launched& launched : parts.device_work) rank.device_work.push_back(launched.work);
  }

  static bool is_operation(const TraceEvent& event) {
    return event.is(EventKind::computation) || event.is(EventKind::communication);
  }

  const Json& json_;
  RunTrace trace_;
  std::vector<RankParts> parts_;
  std::unordered_map<std::int64_t, std::size_t> places_;  // of the ranks, by their numbers
};

}  // namespace

Json read_trace_json(const std::filesystem::path& path) {
  return read_json_file(path, {.max_bytes = kMostTraceBytes, .max_depth = 16, .max_values = kMostTraceValues});
}

bool is_trace_json(const Json& json) {
  const Json* const about = json.is_object() ? json.find("otherData") : nullptr;
  const Json* const format = about != nullptr && about->is_object() ? about->find("format") : nullptr;
  return format != nullptr && format->is_string() && format->as_string() == kTraceFormat;
}

TraceGroup read_trace_group(const Json& json) {
  TraceGroup group{.key = json.at("group").as_string(), .members = {}};
  const Json& members = json.at("members");
  std::unordered_set<std::int64_t> known;
  for (const Json& member : members.items()) {
    group.members.push_back(static_cast<int>(member.as_int(0, 1 << 20)));
    if (!known.insert(group.members.back()).second) member.reject("a rank that the list does not have yet");
  }
  if (group.members.empty()) members.reject("a list of at least one rank");
  return group;
}

RunTrace trace_from_json(const Json& json) { return TraceReader(json).trace(); }

}  // namespace shardproof
