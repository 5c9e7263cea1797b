#include "reports/profile.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "reports/terminal.h"
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

class Summing {
 public:
  void add(const RankTrace& rank, const TraceEvent& event) {
    if (event.is(EventKind::step)) {
      steps_.push_back(us_of(duration_ns(event)));
      all_ns_ += static_cast<double>(duration_ns(event));
    }
    if (event.is(EventKind::module) || event.is(EventKind::step)) return;
    const bool moves = event.is(EventKind::communication);
    const std::string group = moves ? rank.group_of(event).key : std::string();
    Class& of = classes_[{rank.text(event.operation), group}];
    const std::int64_t duration = duration_ns(event);
    of.times.push_back(us_of(duration));
    of.time_ns += static_cast<double>(duration);
    ++of.row.calls;
    const std::int64_t bytes = moves ? moved_bytes(rank, event) : event.bytes;
    of.row.bytes += bytes;
    if (!moves) {
      of.share_ns += static_cast<double>(duration);
      return;
    }
    const std::size_t members = rank.group_of(event).members.size();
    of.bus_time += bandwidth(rank.text(event.operation), bytes, 1, members).bus;
    of.exposed_ns += static_cast<double>(event.exposed_ns());
    of.share_ns += static_cast<double>(event.exposed_ns());
    if (event.post_end_ns >= 0) of.share_ns += static_cast<double>(event.post_end_ns - event.begin_ns);
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
      const double time = std::max(of.time_ns, 1.0);
      row.algorithm_gb_s = static_cast<double>(row.bytes) / time;
      row.bus_gb_s = of.bus_time / time;
      row.exposed_us = of.exposed_ns / 1000.0;
      row.share = of.share_ns / all;
      accounted += of.share_ns;
      exposed += of.exposed_ns;
      profile.rows.push_back(std::move(row));
    }
    std::ranges::stable_sort(profile.rows, std::greater<>(), &ProfileRow::share);
    profile.step_p50_us = percentile(steps_, 50);
    profile.step_p95_us = percentile(steps_, 95);
    profile.exposed_share = exposed / all;
    profile.unaccounted_share = std::max(0.0, 1.0 - accounted / all);
  }

 private:
  std::map<std::pair<std::string, std::string>, Class> classes_;
  std::vector<double> steps_;
  double all_ns_ = 0.0;
};

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100.0 * share); }

}  // namespace

Profile profile_of(const RunTrace& trace) {
  Profile profile;
  profile.about = trace.about;
  profile.ranks = static_cast<int>(trace.ranks.size());
  profile.steps = trace.steps();
  Summing summing;
  for (const RankTrace& rank : trace.ranks) {
    for (const TraceEvent& event : rank.events) summing.add(rank, event);
  }
  SHARDPROOF_CHECK(summing.has_steps(), file_error,
                   "{}: key 'traceEvents' holds no steps to summarise; expected an event of category step of each step",
                   trace.source.empty() ? "the trace" : trace.source);
  summing.finish(profile);
  return profile;
}

std::string profile_text(const Profile& profile, TextTable::Colour colour) {
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
               {bytes_text(row.bytes)},
               {fmt::format("{:.1f}", row.p50_us)},
               {fmt::format("{:.1f}", row.p95_us)},
               {fmt::format("{:.3g}", row.algorithm_gb_s)},
               {moves ? fmt::format("{:.3g}", row.bus_gb_s) : "-"},
               {moves ? fmt::format("{:.1f}", row.exposed_us) : "-"},
               {percent_text(row.share)}});
  }
  std::string text =
      fmt::format("profile {} step{} on {} rank{}: p50 {:.3f} ms, p95 {:.3f} ms a step\n\n", profile.steps,
                  profile.steps == 1 ? "" : "s", profile.ranks, profile.ranks == 1 ? "" : "s",
                  profile.step_p50_us / 1000.0, profile.step_p95_us / 1000.0);
  text += table.text(colour);
  text += fmt::format("\nexposed communication {}, between operations {} of the time of all steps\n",
                      percent_text(profile.exposed_share), percent_text(profile.unaccounted_share));
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
    json.set("algorithm_bandwidth_gb_s", row.algorithm_gb_s);
    json.set("bus_bandwidth_gb_s", moves ? Json(row.bus_gb_s) : Json());
    json.set("exposed_us", moves ? Json(row.exposed_us) : Json()).set("share", row.share);
    rows.append(std::move(json));
  }
  Json json = Json::object();
  json.set("about", std::move(about)).set("ranks", profile.ranks).set("steps", profile.steps);
  json.set("step_p50_us", profile.step_p50_us).set("step_p95_us", profile.step_p95_us);
  json.set("exposed_share", profile.exposed_share).set("unaccounted_share", profile.unaccounted_share);
  json.set("operations", std::move(rows));
  return json;
}

}  // namespace shardproof
