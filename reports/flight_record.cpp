#include "reports/flight_record.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

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
      TraceGroup read{.key = group.at("group").as_string(), .members = {}};
      for (const Json& member : group.at("members").items()) {
        read.members.push_back(static_cast<int>(member.as_int(0, kMostRanks)));
      }
      record_.calls.groups.push_back(std::move(read));
    }
    for (const Json& operation : json_.at("operations").items()) read_operation(operation);
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
    TraceEvent event;
    event.kind = static_cast<std::int64_t>(EventKind::communication);
    event.group_call = json.at("number").as_int(0, kMostCalls);
    if (event.group_call == 0) return;  // a part of another call
    event.call = event.group_call;
    std::vector<TraceGroup>& groups = record_.calls.groups;
    const auto group = std::ranges::find(groups, json.at("group").as_string(), &TraceGroup::key);
    if (group == groups.end()) json.at("group").reject("a group that the file lists");
    event.group = group - groups.begin();
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
    record_.states.push_back(json.at("state").as_string());
  }

  const Json& json_;
  FlightRecord record_;
  std::unordered_map<std::string, std::int64_t> texts_;
};

}  // namespace

bool is_flight_record(const Json& json) {
  const Json* const format = json.is_object() ? json.find("format") : nullptr;
  return format != nullptr && format->is_string() && format->as_string() == kRecordFormat;
}

FlightRecord flight_record_from_json(const Json& json) { return RecordReader(json).record(); }

}  // namespace shardproof
