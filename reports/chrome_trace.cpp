#include "reports/chrome_trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"

namespace shardproof {
namespace {

constexpr std::string_view kTraceFormat = "shardproof trace";
constexpr int kTraceVersion = 1;
// What a file may say: far more than there is, and little enough to be added up.
constexpr double kLongestNs = 365.0 * 86400.0 * 1e9;
constexpr std::int64_t kMostEvents = 1'000'000'000;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 41U;
constexpr int kOrderTrack = 1;          // steps, modules, computations, posts and waits, which nest
constexpr int kCommunicationTrack = 2;  // and those above it, since spans that overlap do not nest

std::string json_text(std::string_view text) { return Json(text).dump(); }

// Microseconds with three digits: the unit of the format, without loss.
std::string us_text(std::int64_t nanoseconds) {
  const std::int64_t size = nanoseconds < 0 ? -nanoseconds : nanoseconds;
  return fmt::format("{}{}.{:03}", nanoseconds < 0 ? "-" : "", size / 1000, size % 1000);
}

std::string_view kind_name(const TraceEvent& event) {
  switch (static_cast<EventKind>(event.kind)) {
    case EventKind::step: return "step";
    case EventKind::module: return "module";
    case EventKind::computation: return "computation";
    case EventKind::communication: return "communication";
  }
  return "?";
}

std::int64_t first_time(const RunTrace& trace) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const RankTrace& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) first = std::min(first, event.begin_ns);
  }
  return first;
}

// Where the spans of a rank's communications stand: the lowest track that is free.
class Lanes {
 public:
  int lane_of(std::int64_t begin, std::int64_t end) {
    for (std::size_t lane = 0; lane < free_from_.size(); ++lane) {
      if (free_from_[lane] > begin) continue;
      free_from_[lane] = end;
      return static_cast<int>(lane);
    }
    free_from_.push_back(end);
    return static_cast<int>(free_from_.size()) - 1;
  }
  std::size_t count() const { return free_from_.size(); }

 private:
  std::vector<std::int64_t> free_from_;
};

// One end of an arrow.
struct Anchor {
  int rank = 0;
  int track = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  const TraceEvent* event = nullptr;
};

class TraceWriter {
 public:
  explicit TraceWriter(const RunTrace& trace) : trace_(trace), start_ns_(first_time(trace)) {}

  std::string text() {
    text_ = "{\"displayTimeUnit\":\"ns\",\n\"otherData\":" + about() + ",\n\"traceEvents\":[\n";
    for (const RankTrace& rank : trace_.ranks) add_rank(rank);
    for (const auto& [call, anchors] : calls_) add_arrows(anchors);
    if (text_.ends_with(",\n")) text_.erase(text_.size() - 2, 1);
    text_ += "]}\n";
    return std::move(text_);
  }

 private:
  std::string about() const {
    Json json = Json::object();
    json.set("format", kTraceFormat).set("format_version", kTraceVersion);
    for (const auto& [name, value] : trace_.about) json.set(name, value);
    Json ranks = Json::array();
    for (const RankTrace& rank : trace_.ranks) {
      Json groups = Json::array();
      for (const TraceGroup& group : rank.groups) {
        Json members = Json::array();
        for (const int member : group.members) members.append(member);
        groups.append(Json::object().set("group", group.key).set("members", std::move(members)));
      }
      Json entry = Json::object();
      entry.set("rank", rank.rank).set("clock_offset_ns", rank.clock.offset_ns);
      entry.set("clock_residual_ns", rank.clock.residual_ns).set("groups", std::move(groups));
      ranks.append(std::move(entry));
    }
    json.set("ranks", std::move(ranks));
    return json.dump();
  }

  void add_line(std::string line) { text_ += std::move(line) + ",\n"; }
  void name_track(int rank, int track, std::string_view name) {
    add_line(fmt::format(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})", rank, track,
                         json_text(name)));
    add_line(fmt::format(R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_sort_index","args":{{"sort_index":{1}}}}})",
                         rank, track));
  }

  void add_rank(const RankTrace& rank) {
    add_line(fmt::format(R"({{"ph":"M","pid":{0},"name":"process_name","args":{{"name":"rank {0}"}}}})", rank.rank));
    add_line(
        fmt::format(R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}})", rank.rank));
    name_track(rank.rank, kOrderTrack, "computation");
    Lanes lanes;
    for (std::size_t i = 0; i < rank.events.size(); ++i) {
      const TraceEvent& event = rank.events[i];
      if (event.is(EventKind::communication)) {
        add_communication(rank, event, i, lanes);
      } else {
        add_slice(rank, event, kOrderTrack, event.begin_ns, event.end_ns, arguments(rank, event, i));
      }
    }
    for (std::size_t lane = 0; lane < lanes.count(); ++lane) {
      name_track(rank.rank, kCommunicationTrack + static_cast<int>(lane),
                 lane == 0 ? std::string("communication") : fmt::format("communication {}", lane + 1));
    }
  }

  std::string name_of(const RankTrace& rank, const TraceEvent& event) const {
    if (event.is(EventKind::step)) return fmt::format("step {}", event.step);
    if (!event.is(EventKind::module)) return rank.text(event.operation);
    const std::string& path = rank.text(event.module);
    return path.empty() ? rank.text(event.operation) : path;
  }

  void add_slice(const RankTrace& rank, const TraceEvent& event, int track, std::int64_t begin, std::int64_t end,
                 const std::string& arguments) {
    add_line(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"cat":"{}","name":{},"args":{{{}}}}})",
                         rank.rank, track, us_text(begin - start_ns_), us_text(std::max<std::int64_t>(end - begin, 0)),
                         kind_name(event), json_text(name_of(rank, event)), arguments));
  }

  void add_communication(const RankTrace& rank, const TraceEvent& event, std::size_t number, Lanes& lanes) {
    const std::string id = json_text(identifier(rank, event));
    const std::string& operation = rank.text(event.operation);
    const auto add_mark = [&](std::string_view what, std::int64_t begin, std::int64_t end) {
      if (begin < 0 || end < 0) return;
      add_line(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"cat":"{}","name":{},"args":{{"id":{}}}}})",
                           rank.rank, kOrderTrack, us_text(begin - start_ns_), us_text(end - begin), what,
                           json_text(fmt::format("{} {}", what, operation)), id));
    };
    add_mark("post", event.begin_ns, event.post_end_ns);
    add_mark("wait", event.wait_begin_ns, event.end_ns);
    const std::int64_t end = std::max(event.complete_ns(), event.begin_ns);
    const int track = kCommunicationTrack + lanes.lane_of(event.begin_ns, end);
    add_slice(rank, event, track, event.begin_ns, end, arguments(rank, event, number));
    const TraceGroup& group = rank.group_of(event);
    calls_[{group.key, group.members, event.step, event.call}].push_back(
        {.rank = rank.rank, .track = track, .begin_ns = event.begin_ns, .end_ns = end, .event = &event});
  }

  std::string arguments(const RankTrace& rank, const TraceEvent& event, std::size_t number) const {
    std::string text =
        fmt::format(R"("id":{},"n":{},"step":{})", json_text(identifier(rank, event)), number, event.step);
    const auto add_text = [&](std::string_view name, std::int64_t of) {
      text += fmt::format(R"(,"{}":{})", name, json_text(rank.text(of)));
    };
    const auto add = [&](std::string_view name, std::int64_t value) {
      text += fmt::format(R"(,"{}":{})", name, value);
    };
    if (event.is(EventKind::step)) return text;
    if (event.module >= 0) {
      add_text("module", event.module);
      add("module_call", event.module_call);
    }
    add_text(event.is(EventKind::module) ? "class" : "operation", event.operation);
    if (event.end_ns < 0) text += R"(,"unfinished":true)";
    if (event.is(EventKind::module)) return text;
    add_text("dtype", event.dtype);
    add_text("shape", event.shape);
    if (event.is(EventKind::computation)) {
      add("ordinal", event.ordinal);
      add("bytes", event.bytes);
      return text;
    }
    text += fmt::format(R"(,"group":{},"call":{},"group_call":{})", json_text(rank.group_of(event).key), event.call,
                        event.group_call);
    add_text("purpose", event.purpose);
    if (event.is_sum != 0) add("is_sum", 1);
    add("send_rows", event.send_rows);
    add("receive_rows", event.receive_rows);
    add("send_bytes", event.send_bytes);
    add("receive_bytes", event.receive_bytes);
    for (const auto& [name, peer] :
         {std::pair("to", event.to), std::pair("from", event.from), std::pair("root", event.root)}) {
      if (peer >= 0) add(name, peer);
    }
    add_times(rank, event, text);
    return text;
  }

  void add_times(const RankTrace& rank, const TraceEvent& event, std::string& text) const {
    const auto add_time = [&](std::string_view name, std::int64_t time) {
      if (time >= 0) text += fmt::format(R"(,"{}":{})", name, us_text(time - start_ns_));
    };
    add_time("post_end_us", event.post_end_ns);
    add_time("wait_begin_us", event.wait_begin_ns);
    add_time("wait_end_us", event.end_ns);
    add_time("device_begin_us", event.device_begin_ns);
    add_time("device_end_us", event.device_end_ns);
    text += fmt::format(R"(,"exposed_us":{})", us_text(event.exposed_ns()));
    const Bandwidth speed = bandwidth(rank.text(event.operation), moved_bytes(rank, event), duration_ns(event),
                                      rank.group_of(event).members.size());
    text +=
        fmt::format(R"(,"algorithm_bandwidth_gb_s":{:.6f},"bus_bandwidth_gb_s":{:.6f})", speed.algorithm, speed.bus);
  }

  void add_arrow_end(char phase, std::int64_t id, const Anchor& anchor, std::int64_t time) {
    add_line(fmt::format(R"({{"ph":"{}"{},"pid":{},"tid":{},"ts":{},"cat":"call","name":"call","id":{}}})", phase,
                         phase == 'f' ? R"(,"bp":"e")" : "", anchor.rank, anchor.track, us_text(time - start_ns_), id));
  }

  // An arrow begins in the span of one rank and ends in that of another, never earlier than it began: viewers bind an
  // end that is found elsewhere to whatever is there. Clocks can be so far apart that no such arrow exists. The margin
  // is for viewers that cut times and lengths to whole units: the end of a span then comes earlier than it was written.
  void add_arrow(const Anchor& from, const Anchor& to) {
    constexpr std::int64_t kMarginNs = 4;
    const std::int64_t earliest = std::max(to.begin_ns, from.begin_ns), latest = to.end_ns - kMarginNs;
    if (latest < earliest || from.end_ns - from.begin_ns < kMarginNs) return;
    const std::int64_t id = ++arrows_;
    add_arrow_end('s', id, from, from.begin_ns);
    add_arrow_end('f', id, to, latest);
  }

  // From who sends to who receives; of an operation of the whole group, from the member that posted last, for which the
  // others had to wait, to each of them.
  void add_arrows(const std::vector<Anchor>& anchors) {
    if (anchors.size() < 2) return;
    const auto last = std::ranges::max_element(anchors, {}, &Anchor::begin_ns);
    const bool is_pairwise = std::ranges::any_of(
        anchors, [](const Anchor& anchor) { return anchor.event->to >= 0 || anchor.event->from >= 0; });
    for (const Anchor& anchor : anchors) {
      if (!is_pairwise && &anchor != &*last) add_arrow(*last, anchor);
      if (!is_pairwise || anchor.event->from < 0) continue;
      const int sender = member_at(anchor);
      const auto from = std::ranges::find(anchors, sender, &Anchor::rank);
      if (from != anchors.end() && from->rank != anchor.rank) add_arrow(*from, anchor);
    }
  }

  // The world rank from which an exchange receives.
  int member_at(const Anchor& anchor) const {
    const auto rank = std::ranges::find(trace_.ranks, anchor.rank, &RankTrace::rank);
    return rank->group_of(*anchor.event).members[static_cast<std::size_t>(anchor.event->from)];
  }

  using Call = std::tuple<std::string, std::vector<int>, std::int64_t, std::int64_t>;  // group, members, step, number

  const RunTrace& trace_;
  std::int64_t start_ns_;
  std::string text_;
  std::map<Call, std::vector<Anchor>> calls_;
  std::int64_t arrows_ = 0;
};

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
    for (RankTrace& rank : trace_.ranks) sort_events(rank);
    trace_.source = json_.where();
    return std::move(trace_);
  }

 private:
  struct Ordered {
    std::int64_t number = 0;
    TraceEvent event;
  };
  struct RankParts {
    std::unordered_map<std::string, std::int64_t> texts;
    std::unordered_map<std::string, std::int64_t> groups;
    std::vector<Ordered> events;
  };

  void read_rank(const Json& json) {
    RankTrace rank;
    RankParts parts;
    rank.rank = static_cast<int>(json.at("rank").as_int(0, 1 << 20));
    if (!trace_.ranks.empty() && rank.rank <= trace_.ranks.back().rank) json.at("rank").reject("ascending ranks");
    rank.clock = {.offset_ns = json.at("clock_offset_ns").as_int(),
                  .residual_ns = json.at("clock_residual_ns").as_int()};
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

  static std::optional<EventKind> kind_of(const Json& event) {
    const Json* const category = event.find("cat");
    if (category == nullptr || event.at("ph").as_string() != "X") return std::nullopt;
    const std::string& name = category->as_string();
    if (name == "step") return EventKind::step;
    if (name == "module") return EventKind::module;
    if (name == "computation") return EventKind::computation;
    return name == "communication" ? std::optional(EventKind::communication) : std::nullopt;
  }

  void read_event(const Json& json) {
    const std::optional<EventKind> kind = kind_of(json);
    if (!kind) return;  // tracks, arrows, posts and waits: what the other events say, for the eye
    const auto place = places_.find(json.at("pid").as_int());
    if (place == places_.end()) json.at("pid").reject("a rank that the file lists");
    RankTrace& rank = trace_.ranks[place->second];
    RankParts& parts = parts_[place->second];
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

  void sort_events(RankTrace& rank) {
    std::vector<Ordered>& events = parts_[static_cast<std::size_t>(&rank - trace_.ranks.data())].events;
    std::ranges::stable_sort(events, {}, &Ordered::number);
    for (const Ordered& ordered : events) rank.events.push_back(ordered.event);
  }

  const Json& json_;
  RunTrace trace_;
  std::vector<RankParts> parts_;
  std::unordered_map<std::int64_t, std::size_t> places_;  // of the ranks, by their numbers
};

}  // namespace

std::string chrome_text(const RunTrace& trace) { return TraceWriter(trace).text(); }

std::int64_t chrome_step_bytes(const RankTrace& first, std::int64_t steps) {
  constexpr std::int64_t kArrowBytes = 200;  // of its two ends
  const auto size_of = [](const RankTrace& rank) {
    return static_cast<std::int64_t>(chrome_text({.about = {}, .ranks = {rank}}).size());
  };
  const auto digits = [](std::int64_t number) { return static_cast<std::int64_t>(std::to_string(number).size()); };
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(), end = 0;
  for (const TraceEvent& event : first.events) {
    begin = std::min(begin, event.begin_ns);
    end = std::max({end, event.begin_ns, event.end_ns});
  }
  // The last step, whose numbers are the longest.
  RankTrace both = first;
  const std::int64_t later = steps * (end - begin + 1);
  std::int64_t arrows = 0;
  for (TraceEvent event : first.events) {
    for (std::int64_t* const time : {&event.begin_ns, &event.end_ns, &event.post_end_ns, &event.wait_begin_ns,
                                     &event.device_begin_ns, &event.device_end_ns}) {
      if (*time >= 0) *time += later;
    }
    event.step = steps;
    event.group_call *= steps;
    both.events.push_back(event);
    if (event.is(EventKind::communication) && first.group_of(event).members.size() > 1) ++arrows;
  }
  const auto count = static_cast<std::int64_t>(first.events.size());
  const std::int64_t growth_of_numbers = count * (digits(steps * count) - digits(count));
  return size_of(both) - size_of(first) + growth_of_numbers + arrows * kArrowBytes;
}

Json read_trace_json(const std::filesystem::path& path) {
  return read_json_file(path, {.max_bytes = kMostTraceBytes, .max_depth = 16, .max_values = 50'000'000});
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
