#include "reports/flight_record_diff.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reports/flight_record.h"
#include "reports/trace.h"

namespace shardproof {
namespace {

constexpr std::string_view kWorld = "world";

// A call of a rank, or none.
struct FlightCall {
  const FlightRecord* record = nullptr;
  std::size_t index = 0;

  explicit operator bool() const { return record != nullptr; }
  const TraceEvent& event() const { return record->calls.events[index]; }
  const FlightDetail& detail() const { return record->details[index]; }
  std::string text() const { return signature(record->calls, event()); }
  std::string operation() const { return record->calls.text(event().operation); }
  DivergentCall divergent() const { return {.id = identifier(record->calls, event()), .signature = text()}; }
  // What members must agree on; rows, bytes and peers differ between them.
  std::string agreed() const {
    const RankTrace& calls = record->calls;
    return fmt::format("{} '{}' {} rows of {}, sum {}, root {}", operation(), calls.text(event().purpose),
                       calls.text(event().dtype), calls.text(event().shape), event().is_sum, event().root);
  }
};

// A rank's calls in one group.
struct GroupCalls {
  const TraceGroup* group = nullptr;
  std::map<std::int64_t, std::size_t> kept;  // event by number
  std::int64_t dropped_last = 0;             // calls behind the last that is kept
  std::int64_t first_complete = std::numeric_limits<std::int64_t>::max();

  std::int64_t last() const { return kept.empty() ? 0 : kept.rbegin()->first; }
};

struct RankCalls {
  const FlightRecord* record = nullptr;
  std::map<std::string, GroupCalls> groups;

  int rank() const { return record->rank; }
  const GroupCalls* find(const std::string& key) const {
    const auto found = groups.find(key);
    return found == groups.end() ? nullptr : &found->second;
  }
  FlightCall call(const GroupCalls& group, std::int64_t number) const {
    const auto found = group.kept.find(number);
    return found == group.kept.end() ? FlightCall() : FlightCall{.record = record, .index = found->second};
  }
  // Whether a call that is not kept may have been made all the same. A recorder drops the oldest complete one first, so
  // that one which is older than the call and still there shows that it was not made.
  bool may_have_dropped(const GroupCalls& group, std::int64_t number) const {
    if (record->is_whole) return false;
    if (number > group.last()) return group.dropped_last > 0;
    return group.first_complete > number;
  }
};

RankCalls calls_of(const FlightRecord& record) {
  RankCalls calls{.record = &record, .groups = {}};
  const std::vector<TraceGroup>& groups = record.calls.groups;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto [known, is_new] = calls.groups.try_emplace(groups[i].key);
    if (is_new) known->second = {.group = &groups[i], .kept = {}, .dropped_last = record.dropped_last[i]};
  }
  for (std::size_t i = 0; i < record.calls.events.size(); ++i) {
    const TraceEvent& event = record.calls.events[i];
    GroupCalls& group = calls.groups[record.calls.group_of(event).key];
    group.kept[event.group_call] = i;
    if (record.details[i].state == "complete") group.first_complete = std::min(group.first_complete, event.group_call);
  }
  return calls;
}

// One call on the members of its group, by their positions; of some there is no record.
class CallOnMembers {
 public:
  CallOnMembers(const std::vector<int>& members, const std::vector<FlightCall>& calls)
      : members_(members), calls_(calls) {}

  // What does not fit between member `i` and others; empty if all does.
  std::string problem_of(std::size_t i) const {
    const std::string operation = calls_[i].operation();
    if (operation == "exchange") return exchange_problem(i);
    if (operation == "all_to_all") return all_to_all_problem(i);
    if (operation == "all_gather") return all_gather_problem(i);
    if (operation == "scatter" || operation == "broadcast") return root_problem(i, operation == "scatter");
    return {};
  }

 private:
  std::string name(std::int64_t position) const {
    if (position < 0) return "nobody";
    const auto at = static_cast<std::size_t>(position);
    return at < members_.size() ? fmt::format("rank {}", members_[at])
                                : fmt::format("member {} of {}", position, members_.size());
  }
  std::string name(std::size_t position) const { return name(static_cast<std::int64_t>(position)); }
  FlightCall call(std::int64_t position) const {
    const auto at = static_cast<std::size_t>(position);
    return position >= 0 && at < calls_.size() ? calls_[at] : FlightCall();
  }

  std::string exchange_problem(std::size_t i) const {
    const TraceEvent& own = calls_[i].event();
    const auto position = static_cast<std::int64_t>(i);
    const auto size = static_cast<std::int64_t>(members_.size());
    if (own.to >= size) return fmt::format("{} sends to {}", name(i), name(own.to));
    if (own.from >= size) return fmt::format("{} receives from {}", name(i), name(own.from));
    if (const FlightCall target = call(own.to)) {
      if (target.event().from != position) {
        return fmt::format("{} sends to {}, which receives from {}", name(i), name(own.to), name(target.event().from));
      }
      if (target.event().receive_rows != own.send_rows)
        return rows_text(i, own.send_rows, own.to, target.event().receive_rows);
    }
    const FlightCall source = call(own.from);
    if (!source || source.event().to == position) return {};
    return fmt::format("{} receives from {}, which sends to {}", name(i), name(own.from), name(source.event().to));
  }

  std::string rows_text(std::size_t from, std::int64_t sent, std::int64_t to, std::int64_t received) const {
    return fmt::format("{} sends {} rows to {}, which receives {}", name(from), sent, name(to), received);
  }

  std::string length_problem(std::size_t i, const std::vector<std::int64_t>& rows, std::string_view what) const {
    if (rows.size() == members_.size()) return {};
    return fmt::format("{} has {} entries of {} for {} members", name(i), rows.size(), what, members_.size());
  }

  std::string all_to_all_problem(std::size_t i) const {
    const FlightDetail& own = calls_[i].detail();
    if (std::string text = length_problem(i, own.send_rows, "send_rows"); !text.empty()) return text;
    if (std::string text = length_problem(i, own.receive_rows, "receive_rows"); !text.empty()) return text;
    for (std::size_t j = 0; j < calls_.size(); ++j) {
      if (!calls_[j] || calls_[j].detail().receive_rows.size() != members_.size()) continue;
      const std::int64_t received = calls_[j].detail().receive_rows[i];
      if (received != own.send_rows[j]) return rows_text(i, own.send_rows[j], static_cast<std::int64_t>(j), received);
    }
    return {};
  }

  std::string all_gather_problem(std::size_t i) const {
    const std::vector<std::int64_t>& own = calls_[i].detail().receive_rows;
    if (std::string text = length_problem(i, own, "receive_rows"); !text.empty()) return text;
    const auto first = std::ranges::find_if(calls_, [](const FlightCall& call) { return static_cast<bool>(call); });
    const std::vector<std::int64_t>& expected = first->detail().receive_rows;
    if (own != expected) {
      return fmt::format("rank {} gathers rows [{}], {} rows [{}]", first->record->rank, fmt::join(expected, ", "),
                         name(i), fmt::join(own, ", "));
    }
    const std::int64_t sent = calls_[i].event().send_rows;
    return own[i] == sent ? std::string()
                          : fmt::format("{} sends {} rows and gathers {} of itself", name(i), sent, own[i]);
  }

  std::string root_problem(std::size_t i, bool is_scatter) const {
    const std::int64_t root = calls_[i].event().root;
    if (root < 0 || root >= static_cast<std::int64_t>(members_.size())) {
      return fmt::format("the root is {}", root < 0 ? "nobody" : name(root));
    }
    const FlightCall source = call(root);
    if (!source) return {};
    const auto from = static_cast<std::size_t>(root);
    const std::vector<std::int64_t>& rows = source.detail().send_rows;
    if (is_scatter) {
      if (std::string text = length_problem(from, rows, "send_rows"); !text.empty()) return text;
    }
    const std::int64_t sent = is_scatter ? rows[i] : source.event().send_rows;
    const std::int64_t received = calls_[i].event().receive_rows;
    return sent == received ? std::string() : rows_text(from, sent, static_cast<std::int64_t>(i), received);
  }

  const std::vector<int>& members_;
  const std::vector<FlightCall>& calls_;
};

class FlightRecords {
 public:
  explicit FlightRecords(std::span<const FlightRecord> records) {
    for (const FlightRecord& record : records) ranks_.emplace(record.rank, calls_of(record));
  }

  TraceComparison among_themselves() {
    result_.ranks = static_cast<std::int64_t>(ranks_.size());
    compare_worlds();
    compare_groups();
    return finished();
  }

  TraceComparison with_trace(const RunTrace& trace) {
    for (const auto& [number, rank] : ranks_) {
      const auto expected = std::ranges::lower_bound(trace.ranks, number, {}, &RankTrace::rank);
      if (expected == trace.ranks.end() || expected->rank != number) {
        add(number, "absent", fmt::format("rank {} is not in the trace", number));
        continue;
      }
      ++result_.ranks;
      if (static_cast<std::size_t>(rank.record->world_size) != trace.ranks.size()) {
        add(number, "different",
            fmt::format("rank {} is of a run of {} ranks, and the trace of one of {}", number, rank.record->world_size,
                        trace.ranks.size()));
      }
      compare_with(rank, *expected);
    }
    if (result_.divergences.empty()) compare_groups();
    result_.notes.emplace_back(
        "the group of all ranks is not compared with a trace: a run also uses it for what is no part of the model");
    return finished();
  }

 private:
  // A member of the group at hand that has a record.
  struct Present {
    const RankCalls* rank = nullptr;
    const GroupCalls* group = nullptr;
    std::size_t position = 0;
    bool has_diverged = false;
  };

  void add(int rank, const char* kind, std::string text, std::int64_t number = 1, const FlightCall& first = {},
           const FlightCall& second = {}) {
    Divergence divergence{.rank = rank, .kind = kind, .position = number - 1, .text = std::move(text)};
    if (first) divergence.first = first.divergent();
    if (second) divergence.second = second.divergent();
    result_.divergences.push_back(std::move(divergence));
  }

  void compare_worlds() {
    const FlightRecord& first = *ranks_.begin()->second.record;
    for (const auto& [number, rank] : ranks_) {
      if (rank.record->world_size == first.world_size) continue;
      add(number, "different",
          fmt::format("rank {} is of a run of {} ranks, and rank {} of one of {}", number, rank.record->world_size,
                      first.rank, first.world_size));
    }
  }

  void compare_groups() {
    // By key and members: siblings, which have no member in common, share a key.
    std::map<std::pair<std::string, std::vector<int>>, std::vector<const RankCalls*>> groups;
    for (const auto& [number, rank] : ranks_) {
      for (const TraceGroup& group : rank.record->calls.groups) groups[{group.key, group.members}].push_back(&rank);
    }
    for (const auto& [name, ranks] : groups) {
      const auto& [key, members] = name;
      std::vector<Present> present;
      for (std::size_t i = 0; i < members.size(); ++i) {
        const auto found = ranks_.find(members[i]);
        if (found == ranks_.end()) {
          without_record_.insert(members[i]);
          continue;
        }
        const GroupCalls* const group = found->second.find(key);
        if (group != nullptr && group->group->members == members) {
          present.push_back({.rank = &found->second, .group = group, .position = i});
        } else {
          add_other_group(key, members, *ranks.front(), found->second, group);
        }
      }
      for (const RankCalls* const rank : ranks) {
        if (std::ranges::find(members, rank->rank()) != members.end()) continue;
        add(rank->rank(), "different",
            fmt::format("rank {} has group {} of ranks {}, to which it does not belong", rank->rank(), key,
                        members_text(members)));
      }
      compare_calls(key, members, present);
    }
  }

  void add_other_group(const std::string& key, const std::vector<int>& members, const RankCalls& owner,
                       const RankCalls& rank, const GroupCalls* group) {
    if (group == nullptr) {
      return add(rank.rank(), "missing",
                 fmt::format("rank {} does not have group {} of ranks {}, which rank {} has", rank.rank(), key,
                             members_text(members), owner.rank()));
    }
    add(rank.rank(), "different",
        fmt::format("group {} has ranks {} on rank {}, but ranks {} on rank {}", key, members_text(members),
                    owner.rank(), members_text(group->group->members), rank.rank()));
  }

  void compare_calls(const std::string& key, const std::vector<int>& members, std::vector<Present>& present) {
    if (present.size() < 2) return;
    // Who came farthest says what the others should have done.
    const auto farthest = std::ranges::max_element(present, {}, [](const Present& of) { return of.group->last(); });
    std::rotate(present.begin(), farthest, farthest + 1);
    std::set<std::int64_t> numbers;
    for (const Present& of : present) {
      for (const auto& [number, index] : of.group->kept) numbers.insert(number);
    }
    std::vector<FlightCall> calls(members.size());  // made once: there may be many members and many calls
    for (const std::int64_t number : numbers) {
      for (const Present& of : present) calls[of.position] = {};
      compare_call(key, number, present, calls);
      if (!check_fit(key, members, number, present, calls)) return;
    }
  }

  // Fills in the calls of the members that agree, by their positions.
  void compare_call(const std::string& key, std::int64_t number, std::vector<Present>& present,
                    std::vector<FlightCall>& calls) {
    FlightCall expected;
    for (const Present& of : present) {
      if (!expected && !of.has_diverged) expected = of.rank->call(*of.group, number);
    }
    if (!expected) return;
    const std::string agreed = expected.agreed();
    for (Present& of : present) {
      if (of.has_diverged) continue;
      const FlightCall own = of.rank->call(*of.group, number);
      const int rank = of.rank->rank();
      if (!own) {
        if (of.rank->may_have_dropped(*of.group, number)) continue;
        of.has_diverged = true;
        add(rank, "missing",
            fmt::format("rank {} did not make call {} of group {}, which rank {} made: {}", rank, number, key,
                        expected.record->rank, expected.text()),
            number, expected);
        continue;
      }
      if (own.record != expected.record) ++result_.compared;
      if (own.agreed() == agreed) {
        calls[of.position] = own;
        continue;
      }
      of.has_diverged = true;
      add(rank, "different",
          fmt::format("call {} of group {} is {} on rank {}, but {} on rank {}", number, key, expected.text(),
                      expected.record->rank, own.text(), rank),
          number, expected, own);
    }
  }

  // False if it does not, and further calls are not worth a look.
  bool check_fit(const std::string& key, const std::vector<int>& members, std::int64_t number,
                 const std::vector<Present>& present, const std::vector<FlightCall>& calls) {
    const CallOnMembers on_members(members, calls);
    for (const Present& of : present) {
      const std::size_t i = of.position;
      if (!calls[i]) continue;
      const std::string problem = on_members.problem_of(i);
      if (problem.empty()) continue;
      add(members[i], "different",
          fmt::format("call {} of group {} does not fit: {}; it is {} on rank {}", number, key, problem,
                      calls[i].text(), members[i]),
          number, calls[i]);
      return false;
    }
    return true;
  }

  void compare_with(const RankCalls& rank, const RankTrace& trace) {
    static const GroupCalls kNone;
    std::map<std::string, std::int64_t> last;  // of the trace, by group
    for (const TraceEvent& event : trace.events) {
      if (!event.is(EventKind::communication) || trace.group_of(event).key == kWorld) continue;
      const std::string& key = trace.group_of(event).key;
      last[key] = event.group_call;
      const GroupCalls* const known = rank.find(key);
      const GroupCalls& group = known == nullptr ? kNone : *known;
      const FlightCall own = rank.call(group, event.group_call);
      if (!own && rank.may_have_dropped(group, event.group_call)) continue;
      const std::string wanted = signature(trace, event);
      if (own) ++result_.compared;
      if (own && own.text() == wanted) continue;
      const DivergentCall expected{.id = identifier(trace, event), .signature = wanted};
      const std::string expected_text = fmt::format("'{}': {}", expected.id, wanted);
      const std::string text = own ? fmt::format("rank {} made call {} of group {} as {}; in the trace it is {}",
                                                 rank.rank(), event.group_call, key, own.text(), expected_text)
                                   : fmt::format("rank {} did not make call {} of group {}, which the trace has as {}",
                                                 rank.rank(), event.group_call, key, expected_text);
      add(rank.rank(), own ? "different" : "missing", text, event.group_call, {}, own);
      result_.divergences.back().first = expected;
      result_.divergences.back().step = event.step;
      return;
    }
    add_extra_call(rank, last);
  }

  // A call behind the last one of the trace in its group, or in a group that the trace does not have. Groups are split
  // before the first step.
  void add_extra_call(const RankCalls& rank, const std::map<std::string, std::int64_t>& last) {
    for (const auto& [key, group] : rank.groups) {
      if (key == kWorld) continue;
      const auto known = last.find(key);
      for (auto kept = group.kept.upper_bound(known == last.end() ? 0 : known->second); kept != group.kept.end();
           ++kept) {
        const FlightCall call{.record = rank.record, .index = kept->second};
        if (call.operation() == "split") continue;
        return add(rank.rank(), "extra",
                   fmt::format("rank {} made call {} of group {}, which the trace does not have: {}", rank.rank(),
                               kept->first, key, call.text()),
                   kept->first, {}, call);
      }
    }
  }

  TraceComparison finished() {
    std::ranges::stable_sort(result_.divergences, {}, &Divergence::rank);
    for (const auto& [number, rank] : ranks_) {
      const FlightRecord& record = *rank.record;
      for (std::size_t i = 0; i < record.calls.events.size(); ++i) {
        if (record.details[i].state == "complete") continue;
        const FlightCall call{.record = &record, .index = i};
        result_.notes.push_back(fmt::format("rank {} was in call {} of group {} ({}): {}", number,
                                            call.event().group_call, record.calls.group_of(call.event()).key,
                                            call.detail().state, call.text()));
      }
      for (const std::string& late : record.late)
        result_.notes.push_back(fmt::format("rank {} waited: {}", number, late));
    }
    if (!without_record_.empty()) {
      result_.notes.push_back(fmt::format("without a record: rank {}", fmt::join(without_record_, ", ")));
    }
    return std::move(result_);
  }

  std::map<int, RankCalls> ranks_;
  std::set<int> without_record_;
  TraceComparison result_;
};

}  // namespace

TraceComparison compare_flight_records(std::span<const FlightRecord> records) {
  return FlightRecords(records).among_themselves();
}

TraceComparison compare_flight_records_with(const RunTrace& trace, std::span<const FlightRecord> records) {
  return FlightRecords(records).with_trace(trace);
}

}  // namespace shardproof
