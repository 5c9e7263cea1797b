#include "real/flight_recorder.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include <fmt/format.h>

#include "core/error.h"

namespace shardproof {
namespace {

std::int64_t now_us() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count();
}

std::int64_t rows_in(const Tensor& tensor) { return tensor.defined() ? tensor.size(0) : 0; }
std::int64_t bytes_of(const Tensor& tensor) { return tensor.defined() ? static_cast<std::int64_t>(tensor.bytes()) : 0; }

bool is_open(const FlightEntry& entry) {
  return entry.state == FlightState::posted || entry.state == FlightState::running;
}

template <class Integer>
Json list_of(std::span<const Integer> values) {
  Json list = Json::array();
  for (const Integer value : values) list.append(value);
  return list;
}

Json json_of(const FlightEntry& entry) {
  Json json = Json::object();
  json.set("sequence", entry.sequence).set("group", entry.group).set("call", entry.call);
  json.set("number", entry.number);
  json.set("operation", operation_name(entry.operation)).set("purpose", entry.purpose).set("dtype", entry.dtype);
  json.set("row_shape", entry.row_shape).set("is_sum", entry.is_sum);
  json.set("rows_sent", entry.rows_sent).set("rows_received", entry.rows_received);
  json.set("send_rows", list_of(std::span(entry.send_rows)));
  json.set("receive_rows", list_of(std::span(entry.receive_rows)));
  json.set("send_bytes", entry.send_bytes).set("receive_bytes", entry.receive_bytes);
  json.set("to", entry.to).set("from", entry.from).set("root", entry.root);
  json.set("state", flight_state_name(entry.state));
  json.set("posted_us", entry.posted_us).set("started_us", entry.started_us).set("ended_us", entry.ended_us);
  return json;
}

}  // namespace

std::string_view flight_state_name(FlightState state) {
  switch (state) {
    case FlightState::posted: return "posted";
    case FlightState::running: return "running";
    case FlightState::complete: return "complete";
    case FlightState::failed: return "failed";
  }
  return "?";
}

FlightRecorder::FlightRecorder(int rank, int world_size, std::size_t capacity)
    : rank_(rank), world_size_(world_size), capacity_(capacity) {}

void FlightRecorder::add_group(const std::string& key, std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({.key = key, .members = {members.begin(), members.end()}, .calls = 0, .last = {}});
}

std::int64_t FlightRecorder::post(const std::string& group, const Request& request) {
  FlightEntry entry{.group = group,
                    .number = request.call,
                    .operation = request.operation,
                    .purpose = std::string(request.purpose),
                    .text = request.text(),
                    .dtype = std::string(request.dtype.name()),
                    .row_shape = request.row_shape.text(),
                    .is_sum = request.reduction == Reduction::sum,
                    .rows_sent = rows_in(request.send),
                    .rows_received = rows_in(request.receive),
                    .send_rows = request.send_rows,
                    .receive_rows = request.receive_rows,
                    .send_bytes = bytes_of(request.send),
                    .receive_bytes = bytes_of(request.receive),
                    .to = request.to,
                    .from = request.from,
                    .root = request.root,
                    .posted_us = now_us()};
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find(groups_, group, &Group::key);
  SHARDPROOF_CHECK(known != groups_.end(), internal_error, "flight recorder: group '{}' was never added", group);
  entry.sequence = ++sequence_;
  entry.call = ++known->calls;
  known->last = entry.text;
  entries_.push_back(std::move(entry));
  if (entries_.size() > capacity_) {
    const auto oldest = std::ranges::find_if_not(entries_, is_open);
    if (oldest != entries_.end()) entries_.erase(oldest);
  }
  return sequence_;
}

FlightEntry* FlightRecorder::find(std::int64_t sequence) {
  const auto found = std::ranges::lower_bound(entries_, sequence, {}, &FlightEntry::sequence);
  return found == entries_.end() || found->sequence != sequence ? nullptr : &*found;
}

void FlightRecorder::set_state(std::int64_t sequence, FlightState state) {
  const std::lock_guard lock(mutex_);
  FlightEntry* const entry = find(sequence);
  if (entry == nullptr || !is_open(*entry)) return;
  const std::int64_t now = now_us();
  entry->state = state;
  if (entry->started_us == 0 && state != FlightState::failed) entry->started_us = now;
  if (!is_open(*entry)) entry->ended_us = now;
}

void FlightRecorder::fail_open() {
  const std::lock_guard lock(mutex_);
  const std::int64_t now = now_us();
  for (FlightEntry& entry : entries_) {
    if (!is_open(entry)) continue;
    entry.state = FlightState::failed;
    entry.ended_us = now;
  }
}

FlightEntry FlightRecorder::entry(std::int64_t sequence) const {
  const std::lock_guard lock(mutex_);
  const FlightEntry* const found = const_cast<FlightRecorder*>(this)->find(sequence);
  SHARDPROOF_CHECK(found != nullptr, internal_error, "flight recorder: operation {} is not kept", sequence);
  return *found;
}

std::vector<FlightEntry> FlightRecorder::entries() const {
  const std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

std::string FlightRecorder::progress() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Group& group : groups_) text += fmt::format("{}\t{}\t{}\n", group.key, group.calls, group.last);
  return text;
}

Json FlightRecorder::record(std::string_view reason, std::span<const LateRank> late) const {
  Json json = Json::object();
  json.set("format", "shardproof flight record").set("version", 1);
  json.set("rank", rank_).set("world_size", world_size_).set("reason", reason);
  Json late_ranks = Json::array();
  for (const LateRank& rank : late) {
    late_ranks.append(Json::object().set("rank", rank.rank).set("reason", rank.reason));
  }
  json.set("late", std::move(late_ranks));
  Json groups = Json::array();
  Json operations = Json::array();
  const std::lock_guard lock(mutex_);
  for (const Group& group : groups_) {
    Json entry = Json::object();
    entry.set("group", group.key).set("members", list_of(std::span(group.members))).set("calls", group.calls);
    groups.append(std::move(entry));
  }
  for (const FlightEntry& entry : entries_) operations.append(json_of(entry));
  json.set("groups", std::move(groups)).set("operations", std::move(operations));
  return json;
}

GroupProgress progress_in(std::string_view progress, std::string_view group) {
  while (!progress.empty()) {
    const std::string_view line = progress.substr(0, progress.find('\n'));
    progress.remove_prefix(std::min(line.size() + 1, progress.size()));
    const std::size_t first = line.find('\t');
    const std::size_t second = line.find('\t', first + 1);
    if (second == std::string_view::npos || line.substr(0, first) != group) continue;
    GroupProgress result;
    std::from_chars(line.data() + first + 1, line.data() + second, result.call);
    result.text = line.substr(second + 1);
    return result;
  }
  return {};
}

}  // namespace shardproof
