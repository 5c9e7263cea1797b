#include "reports/flight_record.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "reports/chrome_trace.h"

namespace shardproof {
namespace {

constexpr std::string_view kRecordFormat = "shardproof flight record";
constexpr int kRecordVersion = 1;
constexpr int kMostRanks = 1 << 20;
constexpr std::int64_t kMostCalls = std::int64_t{1} << 53U;
constexpr std::int64_t kMostSent = std::int64_t{1} << 41U;  // rows or bytes
constexpr std::int64_t kLatestUs = std::int64_t{1} << 52U;

class RecordReader {
 public:
  explicit RecordReader(const Json& json) : json_(json) {}

  FlightRecord record() {
    if (json_.at("version").as_int() != kRecordVersion) json_.at("version").reject(fmt::format("{}", kRecordVersion));
    record_.rank = static_cast<int>(json_.at("rank").as_int(0, kMostRanks));
    record_.world_size = static_cast<int>(json_.at("world_size").as_int(record_.rank + 1, kMostRanks));
    record_.reason = json_.at("reason").as_string();
    record_.calls.rank = record_.rank;
    for (const Json& late : json_.at("late").items()) {
      record_.late.push_back(fmt::format("rank {} {}", late.at("rank").as_int(), late.at("reason").as_string()));
    }
    for (const Json& group : json_.at("groups").items()) {
      record_.calls.groups.push_back(read_trace_group(group));
      groups_.try_emplace(record_.calls.groups.back().key, record_.dropped_last.size());
      record_.dropped_last.push_back(group.at("calls").as_int(0, kMostCalls));
    }
    calls_ = record_.dropped_last;
    std::int64_t sequence = 0;
    for (const Json& operation : json_.at("operations").items()) {
      record_.is_whole = record_.is_whole && operation.at("sequence").as_int(0, kMostCalls) == ++sequence;
      read_operation(operation);
    }
    return std::move(record_);
  }

 private:
  std::int64_t text_in(const std::string& text) {
    std::vector<std::string>& texts = record_.calls.texts;
    const auto [known, is_new] = texts_.try_emplace(text, static_cast<std::int64_t>(texts.size()));
    if (is_new) texts.push_back(text);
    return known->second;
  }

  void read_operation(const Json& json) {
    const auto group = groups_.find(json.at("group").as_string());
    if (group == groups_.end()) json.at("group").reject("a group that the file lists");
    std::int64_t& dropped = record_.dropped_last[group->second];
    const std::int64_t later = calls_[group->second] - json.at("call").as_int(0, kMostCalls);
    dropped = std::min(dropped, std::max<std::int64_t>(later, 0));
    TraceEvent event;
    event.kind = static_cast<std::int64_t>(EventKind::communication);
    event.group_call = json.at("number").as_int(0, kMostCalls);
    if (event.group_call == 0) return;  // a part of another call
    event.call = event.group_call;
    event.group = static_cast<std::int64_t>(group->second);
    event.operation = text_in(json.at("operation").as_string());
    event.purpose = text_in(json.at("purpose").as_string());
    event.dtype = text_in(json.at("dtype").as_string());
    event.shape = text_in(json.at("row_shape").as_string());
    event.is_sum = json.at("is_sum").as_bool() ? 1 : 0;
    event.send_rows = json.at("rows_sent").as_int(0, kMostSent);
    event.receive_rows = json.at("rows_received").as_int(0, kMostSent);
    event.send_bytes = json.at("send_bytes").as_int(0, kMostSent);
    event.receive_bytes = json.at("receive_bytes").as_int(0, kMostSent);
    event.to = json.at("to").as_int(-1, kMostRanks);
    event.from = json.at("from").as_int(-1, kMostRanks);
    event.root = json.at("root").as_int(-1, kMostRanks);
    event.begin_ns = json.at("posted_us").as_int(0, kLatestUs) * 1000;
    record_.calls.events.push_back(event);
    record_.details.push_back({.state = json.at("state").as_string(),
                               .send_rows = rows_in(json.at("send_rows")),
                               .receive_rows = rows_in(json.at("receive_rows"))});
  }

  static std::vector<std::int64_t> rows_in(const Json& json) {
    std::vector<std::int64_t> rows;
    for (const Json& entry : json.items()) rows.push_back(entry.as_int(0));
    return rows;
  }

  const Json& json_;
  FlightRecord record_;
  std::unordered_map<std::string, std::int64_t> texts_;
  std::unordered_map<std::string, std::size_t> groups_;  // places in the list, of the first of a key
  std::vector<std::int64_t> calls_;                      // of the groups, in all
};

}  // namespace

bool is_flight_record(const Json& json) {
  const Json* const format = json.is_object() ? json.find("format") : nullptr;
  return format != nullptr && format->is_string() && format->as_string() == kRecordFormat;
}

FlightRecord flight_record_from_json(const Json& json) { return RecordReader(json).record(); }

}  // namespace shardproof
