// The flight recorder: what a rank has posted lately, in which group, and how far each operation came. When a run hangs
// the recorder's JSON file says which calls this rank made, and its progress line, which other ranks read, says which
// it did not make. It knows no backend; every function may be called by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/communicator.h"
#include "core/json.h"

namespace shardproof {

enum class FlightState : std::uint8_t { posted, running, complete, failed };
std::string_view flight_state_name(FlightState state);

// One operation. Times are microseconds since 1970, 0 = not yet.
struct FlightEntry {
  std::int64_t sequence = 0;  // over all groups of this rank; 1 = the first
  std::string group;          // its key: the same on all members, different for every group
  std::int64_t call = 0;      // within the group, parts of other calls included; 1 = the first
  std::int64_t number = 0;    // Request::call: the number that traces have
  Operation operation = Operation::barrier;
  std::string purpose;
  std::string text;  // Request::text()
  std::string dtype;
  std::string row_shape;
  bool is_sum = false;
  std::int64_t rows_sent = 0;
  std::int64_t rows_received = 0;
  std::vector<std::int64_t> send_rows;
  std::vector<std::int64_t> receive_rows;
  std::int64_t send_bytes = 0;
  std::int64_t receive_bytes = 0;
  int to = -1;
  int from = -1;
  int root = -1;
  FlightState state = FlightState::posted;
  std::int64_t posted_us = 0;
  std::int64_t started_us = 0;
  std::int64_t ended_us = 0;
};

// A rank that others wait for, and what is known of it.
struct LateRank {
  int rank = 0;  // in the world
  std::string reason;
};

// How far a rank has come in one group.
struct GroupProgress {
  std::int64_t call = 0;  // 0 = none was made
  std::string text;
};

class FlightRecorder {
 public:
  // Keeps every open operation and, of the completed ones, the latest up to `capacity` entries in all.
  FlightRecorder(int rank, int world_size, std::size_t capacity = 1024);

  void add_group(const std::string& key, std::span<const int> members);
  // Returns the sequence number. The group must have been added.
  std::int64_t post(const std::string& group, const Request& request);
  // Notes a new state and the time; an entry that is complete or failed stays so.
  void set_state(std::int64_t sequence, FlightState state);
  // Every open operation becomes failed.
  void fail_open();
  // internal_error for an entry that is not kept.
  FlightEntry entry(std::int64_t sequence) const;
  std::vector<FlightEntry> entries() const;

  // A line for every group: the number and text of the last call in it. What progress_in() reads.
  std::string progress() const;
  // {"format": "shardproof flight record", "version": 1, rank, world_size, reason, late, groups, operations}.
  Json record(std::string_view reason, std::span<const LateRank> late) const;

 private:
  struct Group {
    std::string key;
    std::vector<int> members;
    std::int64_t calls = 0;
    std::string last;
  };
  FlightEntry* find(std::int64_t sequence);

  int rank_;
  int world_size_;
  std::size_t capacity_;
  mutable std::mutex mutex_;
  std::int64_t sequence_ = 0;
  std::vector<Group> groups_;
  std::deque<FlightEntry> entries_;  // ascending sequence
};

// The progress in a group as another rank's progress() says it.
GroupProgress progress_in(std::string_view progress, std::string_view group);

}  // namespace shardproof
