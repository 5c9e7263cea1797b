#include "reports/profile.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "reports/device_time.h"
#include "reports/result_tables.h"
#include "reports/trace.h"

namespace shardproof {
namespace {

// The smallest value that at least so many percent of them do not exceed.
double percentile(std::vector<double>& values, int percent) {
  if (values.empty()) return 0.0;
  std::ranges::sort(values);
  const std::size_t rank = (values.size() * static_cast<std::size_t>(percent) + 99) / 100;
  return values[std::max<std::size_t>(rank, 1) - 1];
}

double us_of(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000.0; }

struct Class {
  ProfileRow row;
  std::vector<double> times;
  double time_ns = 0.0;  // of files of strangers, whose sums no integer may hold
  double share_ns = 0.0;
  double exposed_ns = 0.0;
  double bus_time = 0.0;  // bytes over the bus, before the division by time
};

// What an event took, by the clock of its host or by the work of its device.
struct EventTimes {
  double time_ns = 0.0;
  double share_ns = 0.0;
  double exposed_ns = 0.0;
};

EventTimes host_times(const TraceEvent& event) {
  EventTimes times{.time_ns = static_cast<double>(duration_ns(event))};
  if (!event.is(EventKind::communication)) {
    times.share_ns = times.time_ns;
    return times;
  }
  times.exposed_ns = static_cast<double>(event.exposed_ns());
  times.share_ns = times.exposed_ns;
  if (event.post_end_ns >= 0) times.share_ns += static_cast<double>(event.post_end_ns - event.begin_ns);
  return times;
}

class Summing {
 public:
  explicit Summing(bool is_on_device) : is_on_device_(is_on_device) {}

  void add(const RankTrace& rank) {
    std::optional<DeviceTime> device;
    if (is_on_device_) {
      device.emplace(rank);
      all_ns_ += static_cast<double>(device->steps_ns());
      exposed_ns_ += static_cast<double>(device->exposed_ns());
      idle_ns_ += static_cast<double>(device->idle_ns());
    }
    for (std::size_t i = 0; i < rank.events.size(); ++i) {
      const TraceEvent& event = rank.events[i];
      if (event.is(EventKind::module)) continue;
      if (event.is(EventKind::step)) {
        steps_.push_back(us_of(duration_ns(event)));
        if (!device) all_ns_ += static_cast<double>(duration_ns(event));
        continue;
      }
      if (!device) {
        add(rank, event, host_times(event));
        continue;
      }
      const double time = device->of_event_ns(i);
      add(rank, event, {.time_ns = time, .share_ns = time, .exposed_ns = device->exposed_of_event_ns(i)});
    }
    for (const TraceDeviceWork& work : rank.device_work) {
      Kernel& kernel = kernels_[{rank.text(work.name), device_work_name(work)}];
      kernel.times.push_back(us_of(work.end_ns - work.begin_ns));
      kernel.time_us += kernel.times.back();
    }
    lost_ += rank.device_work_lost;
  }

  bool has_steps() const { return !steps_.empty(); }

  void finish(Profile& profile) {
    const double all = std::max(all_ns_, 1.0);
    double accounted = 0.0, exposed = 0.0;
    for (auto& [name, of] : classes_) {
      ProfileRow& row = of.row;
      row.operation = name.first;
      row.group = name.second;
      row.p50_us = percentile(of.times, 50);
      row.p95_us = percentile(of.times, 95);
      if (of.time_ns > 0.0) {
        row.algorithm_gb_s = static_cast<double>(row.bytes) / of.time_ns;
        if (!row.group.empty()) row.bus_gb_s = of.bus_time / of.time_ns;
      }
      row.exposed_us = of.exposed_ns / 1000.0;
      row.share = of.share_ns / all;
      accounted += of.share_ns;
      exposed += of.exposed_ns;
      profile.rows.push_back(std::move(row));
    }
    std::ranges::stable_sort(profile.rows, std::greater<>(), &ProfileRow::share);
    profile.step_p50_us = percentile(steps_, 50);
    profile.step_p95_us = percentile(steps_, 95);
    profile.is_on_device = is_on_device_;
    profile.exposed_share = (is_on_device_ ? exposed_ns_ : exposed) / all;
    profile.unaccounted_share = is_on_device_ ? idle_ns_ / all : std::max(0.0, 1.0 - accounted / all);
    finish_kernels(profile, all);
  }

 private:
  struct Kernel {
    std::vector<double> times;
    double time_us = 0.0;
  };

  void add(const RankTrace& rank, const TraceEvent& event, const EventTimes& times) {
    const bool moves = event.is(EventKind::communication);
    Class& of = classes_[{rank.text(event.operation), moves ? rank.group_of(event).key : std::string()}];
    const std::int64_t bytes = moves ? moved_bytes(rank, event) : event.bytes;
    ++of.row.calls;
    of.row.bytes += bytes;
    of.times.push_back(times.time_ns / 1000.0);
    of.time_ns += times.time_ns;
    of.share_ns += times.share_ns;
    of.exposed_ns += times.exposed_ns;
    if (moves) of.bus_time += bandwidth(rank.text(event.operation), bytes, 1, rank.group_of(event).members.size()).bus;
  }

  void finish_kernels(Profile& profile, double all_ns) {
    for (auto& [name, of] : kernels_) {
      profile.kernels.push_back({.name = name.first,
                                 .kind = std::string(name.second),
                                 .count = static_cast<std::int64_t>(of.times.size()),
                                 .time_us = of.time_us,
                                 .p50_us = percentile(of.times, 50),
                                 .share = is_on_device_ ? of.time_us * 1000.0 / all_ns : 0.0});
    }
    std::ranges::stable_sort(profile.kernels, std::greater<>(), &ProfileKernel::time_us);
    profile.device_work_lost = lost_;
  }

  bool is_on_device_;
  std::map<std::pair<std::string, std::string>, Class> classes_;
  std::map<std::pair<std::string, std::string_view>, Kernel> kernels_;
  std::vector<double> steps_;
  double all_ns_ = 0.0;
  double exposed_ns_ = 0.0;
  double idle_ns_ = 0.0;
  std::int64_t lost_ = 0;
};

// The longest ones.
constexpr std::size_t kKernelsShown = 10;

std::string speed_text(std::optional<double> speed) { return speed ? fmt::format("{:.3g}", *speed) : "-"; }
std::string percent_text(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

}  // namespace

Profile profile_of(const RunTrace& trace) {
  Profile profile;
  profile.about = trace.about;
  profile.ranks = static_cast<int>(trace.ranks.size());
  profile.steps = trace.steps();
  Summing summing(is_timed_on_device(trace));
  for (const RankTrace& rank : trace.ranks) summing.add(rank);
  SHARDPROOF_CHECK(summing.has_steps(), file_error,
                   "{}: key 'traceEvents' holds no steps to summarise; expected an event of category step of each step",
                   trace.source.empty() ? "the trace" : trace.source);
  summing.finish(profile);
  return profile;
}

TextTable operation_table(const Profile& profile) {
  using Align = TextTable::Align;
  TextTable table({{"operation"},
                   {"group"},
                   {"calls", Align::right},
                   {"bytes", Align::right},
                   {"p50 us", Align::right},
                   {"p95 us", Align::right},
                   {"GB/s", Align::right},
                   {"bus GB/s", Align::right},
                   {"exposed us", Align::right},
                   {"share", Align::right}});
  for (const ProfileRow& row : profile.rows) {
    const bool moves = !row.group.empty();
    table.add({{row.operation},
               {moves ? row.group : "-"},
               {std::to_string(row.calls)},
               {.text = bytes_text(row.bytes), .number = static_cast<double>(row.bytes)},
               {fmt::format("{:.1f}", row.p50_us)},
               {fmt::format("{:.1f}", row.p95_us)},
               {speed_text(row.algorithm_gb_s)},
               {speed_text(row.bus_gb_s)},
               {moves ? fmt::format("{:.1f}", row.exposed_us) : "-"},
               {percent_text(row.share)}});
  }
  return table;
}

TextTable kernel_table(const Profile& profile) {
  constexpr std::size_t kWidth = 60;
  using Align = TextTable::Align;
  TextTable table({{"on the device"},
                   {"count", Align::right},
                   {"time us", Align::right},
                   {"p50 us", Align::right},
                   {"share", Align::right}});
  for (std::size_t i = 0; i < std::min(kKernelsShown, profile.kernels.size()); ++i) {
    const ProfileKernel& kernel = profile.kernels[i];
    table.add({{printable(kernel.name, kWidth)},
               {std::to_string(kernel.count)},
               {fmt::format("{:.1f}", kernel.time_us)},
               {fmt::format("{:.1f}", kernel.p50_us)},
               {profile.is_on_device ? percent_text(kernel.share) : "-"}});
  }
  return table;
}

ProfileWords profile_words(const Profile& profile) {
  ProfileWords words;
  words.steps = fmt::format("{} step{} on {} rank{}: p50 {:.3f} ms, p95 {:.3f} ms a step", profile.steps,
                            profile.steps == 1 ? "" : "s", profile.ranks, profile.ranks == 1 ? "" : "s",
                            profile.step_p50_us / 1000.0, profile.step_p95_us / 1000.0);
  words.shares =
      fmt::format("exposed communication {}, {} {} of the time of {}", percent_text(profile.exposed_share),
                  profile.is_on_device ? "idle" : "between operations", percent_text(profile.unaccounted_share),
                  profile.is_on_device ? "the devices, of which all columns are" : "all steps");
  if (profile.kernels.size() > kKernelsShown)
    words.left_out.push_back(fmt::format("[{} more rows]", profile.kernels.size() - kKernelsShown));
  if (profile.device_work_lost > 0) {
    words.left_out.push_back(fmt::format("{} pieces of the devices' work are missing: CUPTI had no room for them",
                                         profile.device_work_lost));
  }
  return words;
}

std::string profile_text(const Profile& profile, TextTable::Colour colour) {
  const ProfileWords words = profile_words(profile);
  std::string text =
      fmt::format("profile {}\n\n{}\n{}\n", words.steps, operation_table(profile).text(colour), words.shares);
  if (!profile.kernels.empty()) text += "\n" + kernel_table(profile).text(colour);
  for (const std::string& line : words.left_out) text += line + "\n";
  return text;
}

Json profile_json(const Profile& profile) {
  Json about = Json::object();
  for (const auto& [name, value] : profile.about) about.set(name, value);
  Json rows = Json::array();
  for (const ProfileRow& row : profile.rows) {
    const bool moves = !row.group.empty();
    Json json = Json::object();
    json.set("operation", row.operation).set("group", moves ? Json(row.group) : Json());
    json.set("calls", row.calls).set("bytes", row.bytes).set("p50_us", row.p50_us).set("p95_us", row.p95_us);
    json.set("algorithm_bandwidth_gb_s", row.algorithm_gb_s ? Json(*row.algorithm_gb_s) : Json());
    json.set("bus_bandwidth_gb_s", row.bus_gb_s ? Json(*row.bus_gb_s) : Json());
    json.set("exposed_us", moves ? Json(row.exposed_us) : Json()).set("share", row.share);
    rows.append(std::move(json));
  }
  Json json = Json::object();
  json.set("about", std::move(about)).set("ranks", profile.ranks).set("steps", profile.steps);
  json.set("step_p50_us", profile.step_p50_us).set("step_p95_us", profile.step_p95_us);
  json.set("exposed_share", profile.exposed_share).set("unaccounted_share", profile.unaccounted_share);
  json.set("times_of", profile.is_on_device ? "device" : "host");
  json.set("operations", std::move(rows));
  Json kernels = Json::array();
  for (const ProfileKernel& kernel : profile.kernels) {
    Json entry = Json::object();
    entry.set("name", kernel.name).set("kind", kernel.kind).set("count", kernel.count).set("time_us", kernel.time_us);
    entry.set("p50_us", kernel.p50_us).set("share", profile.is_on_device ? Json(kernel.share) : Json());
    kernels.append(std::move(entry));
  }
  json.set("device_work", std::move(kernels)).set("device_work_lost", profile.device_work_lost);
  return json;
}

}  // namespace shardproof
