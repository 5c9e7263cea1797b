#include "reports/chrome_trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace shardproof {
namespace {

constexpr int kOrderTrack = 1;          // steps, modules, computations, posts and waits, which nest
constexpr int kCommunicationTrack = 2;  // and those above it, since spans that overlap do not nest
constexpr int kDeviceTrack = 1000;      // and those above it: a track for each stream

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
      if (rank.device_work_lost > 0) entry.set("device_work_lost", rank.device_work_lost);
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
    add_device_work(rank);
  }

  // A track for each stream, and arrows from the operations to what they launched.
  void add_device_work(const RankTrace& rank) {
    std::map<std::pair<std::int64_t, std::int64_t>, int> tracks;
    for (const TraceDeviceWork& work : rank.device_work) tracks.try_emplace({work.device, work.stream}, 0);
    int track = kDeviceTrack;
    for (auto& [stream, number] : tracks) {
      number = track++;
      name_track(rank.rank, number, fmt::format("GPU {} stream {}", stream.first, stream.second));
    }
    for (const TraceDeviceWork& work : rank.device_work) {
      const int on = tracks.at({work.device, work.stream});
      std::string arguments = fmt::format(R"("stream":{},"device":{})", work.stream, work.device);
      if (!work.is(DeviceWorkKind::kernel)) arguments += fmt::format(R"(,"bytes":{})", work.bytes);
      if (work.event >= 0) {
        const TraceEvent& event = rank.events[static_cast<std::size_t>(work.event)];
        arguments += fmt::format(R"(,"of":{},"of_n":{})", json_text(identifier(rank, event)), work.event);
      }
      add_line(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"cat":"{}","name":{},"args":{{{}}}}})",
                           rank.rank, on, us_text(work.begin_ns - start_ns_), us_text(work.end_ns - work.begin_ns),
                           device_work_name(work), json_text(rank.text(work.name)), arguments));
      if (work.event >= 0) add_launch(rank, work, on);
    }
  }

  void add_launch(const RankTrace& rank, const TraceDeviceWork& work, int track) {
    const TraceEvent& event = rank.events[static_cast<std::size_t>(work.event)];
    // Clocks of devices are known roughly; arrows do not go back in time.
    if (work.begin_ns < event.begin_ns) return;
    const std::int64_t id = ++arrows_;
    add_arrow_end('s', "launch", id, {.rank = rank.rank, .track = kOrderTrack}, event.begin_ns);
    add_arrow_end('f', "launch", id, {.rank = rank.rank, .track = track}, work.begin_ns);
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

  void add_arrow_end(char phase, std::string_view name, std::int64_t id, const Anchor& anchor, std::int64_t time) {
    add_line(fmt::format(R"({{"ph":"{0}"{1},"pid":{2},"tid":{3},"ts":{4},"cat":"{5}","name":"{5}","id":{6}}})", phase,
                         phase == 'f' ? R"(,"bp":"e")" : "", anchor.rank, anchor.track, us_text(time - start_ns_), name,
                         id));
  }

  // An arrow begins in the span of one rank and ends in that of another, never earlier than it began: viewers bind an
  // end that is found elsewhere to whatever is there. Clocks can be so far apart that no such arrow exists. The margin
  // is for viewers that cut times and lengths to whole units: the end of a span then comes earlier than it was written.
  void add_arrow(const Anchor& from, const Anchor& to) {
    constexpr std::int64_t kMarginNs = 4;
    const std::int64_t earliest = std::max(to.begin_ns, from.begin_ns), latest = to.end_ns - kMarginNs;
    if (latest < earliest || from.end_ns - from.begin_ns < kMarginNs) return;
    const std::int64_t id = ++arrows_;
    add_arrow_end('s', "call", id, from, from.begin_ns);
    add_arrow_end('f', "call", id, to, latest);
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

}  // namespace shardproof
