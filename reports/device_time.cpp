#include "reports/device_time.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "reports/text_list.h"

namespace shardproof {
namespace {

TimeSpan span_of(const TraceDeviceWork& work) { return {.begin_ns = work.begin_ns, .end_ns = work.end_ns}; }

// The communications of a rank that the transport has timed on the device.
class TimedCommunications {
 public:
  explicit TimedCommunications(const RankTrace& trace) {
    for (std::size_t i = 0; i < trace.events.size(); ++i) {
      const TraceEvent& event = trace.events[i];
      if (!event.is(EventKind::communication) || event.device_begin_ns < 0 || event.device_end_ns < 0) continue;
      timed_.push_back({.span = {event.device_begin_ns, event.device_end_ns}, .event = static_cast<std::int64_t>(i)});
      longest_ns_ = std::max(longest_ns_, event.device_end_ns - event.device_begin_ns);
    }
    std::ranges::sort(timed_, {}, [](const Timed& timed) { return timed.span.begin_ns; });
  }

  // -1 if none ran then.
  std::int64_t event_at(std::int64_t time) const {
    const auto begin_of = [](const Timed& timed) { return timed.span.begin_ns; };
    const Timed* best = nullptr;
    const auto first = std::ranges::lower_bound(timed_, time - longest_ns_, {}, begin_of);
    for (auto timed = first; timed != timed_.end() && timed->span.begin_ns <= time; ++timed) {
      if (timed->span.end_ns < time) continue;
      const bool is_shorter =
          best == nullptr || timed->span.end_ns - timed->span.begin_ns < best->span.end_ns - best->span.begin_ns;
      if (is_shorter) best = &*timed;
    }
    return best == nullptr ? -1 : best->event;
  }

 private:
  struct Timed {
    TimeSpan span;
    std::int64_t event = -1;
  };
  std::vector<Timed> timed_;
  std::int64_t longest_ns_ = 0;
};

// From the beginning of the first step to the end of the last, or of the last work that is known to belong to one.
TimeSpan time_of_steps(const RankTrace& trace, const DeviceWorkList& list) {
  TimeSpan steps{.begin_ns = std::numeric_limits<std::int64_t>::max(), .end_ns = -1};
  for (const TraceEvent& event : trace.events) {
    if (!event.is(EventKind::step)) continue;
    steps.begin_ns = std::min(steps.begin_ns, event.begin_ns);
    steps.end_ns = std::max(steps.end_ns, event.end_ns);
  }
  for (const DeviceWork& work : list.work) {
    if (work.rank == trace.rank && work.event >= 0) steps.end_ns = std::max(steps.end_ns, work.end_ns);
  }
  return steps;
}

}  // namespace

void add_device_work(RankTrace& trace, const DeviceWorkList& list, bool has_process_to_itself) {
  const TimedCommunications communications(trace);
  const TimeSpan steps = time_of_steps(trace, list);
  TextList texts(trace.texts);
  std::vector<std::int64_t> names;
  names.reserve(list.names.size());
  for (const std::string& name : list.names) names.push_back(texts.number_of(name));
  for (const DeviceWork& work : list.work) {
    const bool is_own = work.rank == trace.rank;
    if (!is_own && !(work.rank < 0 && has_process_to_itself)) continue;
    const bool is_known = is_own && work.event >= 0 && work.event < static_cast<std::int64_t>(trace.events.size());
    const std::int64_t middle = work.begin_ns + (work.end_ns - work.begin_ns) / 2;
    if (!is_known && (middle < steps.begin_ns || middle > steps.end_ns)) continue;
    trace.device_work.push_back({.kind = static_cast<std::int64_t>(work.kind),
                                 .name = names[static_cast<std::size_t>(work.name)],
                                 .event = is_known ? work.event : communications.event_at(middle),
                                 .device = work.device,
                                 .stream = work.stream,
                                 .begin_ns = work.begin_ns,
                                 .end_ns = work.end_ns,
                                 .bytes = work.bytes});
  }
  trace.device_work_lost = list.lost;
}

bool is_communication(const RankTrace& trace, const TraceDeviceWork& work) {
  if (work.event >= 0) return trace.events[static_cast<std::size_t>(work.event)].is(EventKind::communication);
  return work.is(DeviceWorkKind::kernel) && std::string_view(trace.text(work.name)).starts_with("nccl");
}

bool is_timed_on_device(const RunTrace& trace) {
  const auto computes_on_device = [](const RankTrace& rank) {
    return std::ranges::any_of(rank.device_work, [&](const TraceDeviceWork& work) {
      return work.event >= 0 && rank.events[static_cast<std::size_t>(work.event)].is(EventKind::computation);
    });
  };
  return !trace.ranks.empty() && std::ranges::all_of(trace.ranks, computes_on_device);
}

TimeSpans::TimeSpans(std::vector<TimeSpan> spans) {
  std::ranges::sort(spans, {}, &TimeSpan::begin_ns);
  for (const TimeSpan& span : spans) {
    if (!spans_.empty() && span.begin_ns <= spans_.back().end_ns) {
      spans_.back().end_ns = std::max(spans_.back().end_ns, span.end_ns);
    } else {
      spans_.push_back(span);
    }
  }
  std::int64_t length = 0;
  for (const TimeSpan& span : spans_) {
    length_before_ns_.push_back(length);
    length += span.end_ns - span.begin_ns;
  }
}

std::int64_t TimeSpans::length_ns() const {
  return spans_.empty() ? 0 : length_before_ns_.back() + spans_.back().end_ns - spans_.back().begin_ns;
}

std::int64_t TimeSpans::covered_ns(TimeSpan span) const {
  const auto length_until = [&](std::int64_t time) -> std::int64_t {
    const auto after = std::ranges::upper_bound(spans_, time, {}, &TimeSpan::begin_ns);
    if (after == spans_.begin()) return 0;
    const auto last = after - 1;
    return length_before_ns_[static_cast<std::size_t>(last - spans_.begin())] + std::min(time, last->end_ns) -
           last->begin_ns;
  };
  return length_until(span.end_ns) - length_until(span.begin_ns);
}

DeviceTime::DeviceTime(const RankTrace& trace) : events_(trace.events.size()) {
  std::map<std::int64_t, TimeSpan> steps;
  std::vector<TimeSpan> all, others;
  for (const TraceDeviceWork& work : trace.device_work) {
    all.push_back(span_of(work));
    if (!is_communication(trace, work)) others.push_back(span_of(work));
    if (work.event < 0) continue;
    const std::int64_t step = trace.events[static_cast<std::size_t>(work.event)].step;
    TimeSpan& span = steps.try_emplace(step, span_of(work)).first->second;
    span = {.begin_ns = std::min(span.begin_ns, work.begin_ns), .end_ns = std::max(span.end_ns, work.end_ns)};
  }
  const TimeSpans busy(std::move(all)), computing(std::move(others));
  std::vector<TimeSpan> windows;
  for (const auto& [step, span] : steps) windows.push_back(span);
  const TimeSpans apart(std::move(windows));  // where a step's work runs into that of the next, they are one
  for (const TimeSpan& window : apart.spans()) {
    steps_ns_ += window.end_ns - window.begin_ns;
    idle_ns_ += window.end_ns - window.begin_ns - busy.covered_ns(window);
    exposed_ns_ += busy.covered_ns(window) - computing.covered_ns(window);
  }
  for (const TraceDeviceWork& work : trace.device_work) {
    if (work.event < 0) continue;
    EventTime& event = events_[static_cast<std::size_t>(work.event)];
    const std::int64_t time = work.end_ns - work.begin_ns;
    event.time_ns += static_cast<double>(time);
    if (!is_communication(trace, work)) continue;
    event.exposed_ns += static_cast<double>(time - computing.covered_ns(span_of(work)));
  }
}

}  // namespace shardproof
