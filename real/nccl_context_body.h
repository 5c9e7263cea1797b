// What the source files of the NCCL communicator share: the handles of CUDA and NCCL, the operations in flight, and the
// context of one session, which starts NCCL up, watches over it and aborts it. No interface: NCCL's headers are here.
//
// Threads: the user's thread posts and waits; the watchdog's looks and aborts. Every call into NCCL that names a
// communicator is made under `Context::mutex`, after a look at `failure`, so that none is made with an aborted one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include <nccl.h>

#include "core/operation_recorder.h"
#include "real/flight_recorder.h"
#include "real/nccl_communicator.h"

namespace shardproof::nccl {

using Clock = std::chrono::steady_clock;

// collective_error with the call and CUDA's text unless all is well.
void check_cuda(cudaError_t status, std::string_view call);
// The same for NCCL; an operation in progress is well.
void check_nccl(ncclResult_t result, ncclComm_t comm, std::string_view call);

enum class MemoryKind : std::uint8_t { device, pinned };

// Memory that NCCL can reach; it goes back to its pool.
class Scratch;
class ScratchPool {
 public:
  ~ScratchPool();
  std::unique_ptr<Scratch> take(MemoryKind kind, std::size_t bytes);

 private:
  friend class Scratch;
  std::multimap<std::pair<MemoryKind, std::size_t>, void*> free_;
};
class Scratch {
 public:
  Scratch(ScratchPool& pool, MemoryKind kind, std::size_t bytes, void* data)
      : pool_(pool), key_(kind, bytes), data_(data) {}
  ~Scratch() { pool_.free_.emplace(key_, data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  ScratchPool& pool_;
  std::pair<MemoryKind, std::size_t> key_;
  void* data_;
};

enum class EventUse : std::uint8_t { order, time };

// Events of the session; an event serves one operation after the other. Those that tell the time cost more.
class EventPool {
 public:
  explicit EventPool(EventUse use) : use_(use) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  cudaEvent_t take();
  void give(cudaEvent_t event) { free_.push_back(event); }

 private:
  EventUse use_;
  std::vector<cudaEvent_t> free_;
};

class Context;

// A moment that both clocks know: the device's, as an event, and the host's, in steady_nanoseconds().
struct ClockAnchor {
  explicit ClockAnchor(EventPool& events);
  ~ClockAnchor() { pool.give(event); }
  ClockAnchor(const ClockAnchor&) = delete;
  ClockAnchor& operator=(const ClockAnchor&) = delete;

  EventPool& pool;
  cudaEvent_t event;
  std::int64_t host_ns = 0;
};

// A communicator of NCCL with its stream.
struct Group {
  Group(Context& owner, std::string group_key, std::vector<int> ranks, int own);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Context& context;
  std::string key;
  std::vector<int> members;  // world ranks
  int rank;
  int splits = 0;
  ncclComm_t comm = nullptr;  // guarded by Context::mutex; null once it is destroyed or aborted
  cudaStream_t stream = nullptr;
};

// A posted operation. It owns everything that NCCL reads and writes until its last event has come.
struct Flight {
  Flight(std::shared_ptr<Group> of, Request what);
  ~Flight();
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  std::shared_ptr<Group> group;
  Request request;
  std::int64_t sequence = 0;
  Clock::time_point deadline;
  cudaEvent_t begin = nullptr;  // on the group's stream, before the first and after the last thing done; null where
  cudaEvent_t end = nullptr;    // the host waits for NCCL itself
  // Where it is recorded: when it ran, once that is known, and what its events are told apart by.
  std::shared_ptr<DeviceSpan> span = nullptr;
  std::shared_ptr<const ClockAnchor> anchor = nullptr;
  std::vector<std::unique_ptr<Scratch>> scratch;
  std::atomic<bool> is_launched = false;  // both events are recorded
  std::atomic<bool> is_done = false;
};

class Context {
 public:
  Context(const NcclOptions& options, std::shared_ptr<NcclStore> store);
  ~Context();

  // Makes the group of all ranks.
  void connect();
  // The new group of this rank, which is member `rank` of `members`; null for a negative colour, with no members.
  // `call` is the number of the split in the parent.
  std::shared_ptr<Group> split(const std::shared_ptr<Group>& parent, int color, std::vector<int> members, int rank,
                               const std::string& name, std::int64_t call);

  // Records the request and gives it to the watchdog.
  std::shared_ptr<Flight> open(const std::shared_ptr<Group>& group, Request request);
  // Runs `enqueue`, which calls NCCL for the group, and returns once NCCL has launched it all.
  void launch(Group& group, const std::function<void()>& enqueue);
  // Notes that the flight has ended, and when it ran if that is recorded.
  void finish(Flight& flight);
  // Returns when the flight's last event has come; throws if the watchdog gave up first.
  void wait_for(Flight& flight);
  // The same for all flights of a group; silent about failures.
  void drain(const Group& group) noexcept;
  // Lets go of what has ended; called by the user's thread, because tensors die here. Of what is recorded it also sees
  // that it has.
  void release_ended();
  void throw_if_failed() const;
  // Ends a group: in peace if nothing failed, by an abort otherwise.
  void close(Group& group) noexcept;
  // The first to give up decides the message; aborts NCCL and writes the flight record.
  void give_up(std::string reason, std::span<const LateRank> late);

  NcclOptions options;  // not changed after the constructor
  FlightRecorder recorder;
  ScratchPool scratch;
  EventPool events{EventUse::order};
  EventPool timed_events{EventUse::time};
  std::shared_ptr<Group> world;
  std::shared_ptr<Flight> last_flight;  // the latest operation of any group: the next one of another group follows it
  mutable std::mutex mutex;

 private:
  // A recent one: the device tells the time since then in a number of few digits.
  std::shared_ptr<const ClockAnchor> recent_anchor();
  void or_tell_others(const std::function<void()>& step);
  void exchange_unique_id();
  void choose_device();
  // Returns when the communicator, read under the mutex, is no longer in progress. After the deadline `too_late`
  // throws.
  void await_ready(const ncclComm_t& comm, std::string_view call, const std::function<void()>& too_late = {});
  [[noreturn]] void report_missing_ranks();
  void watch_over();
  void look_at_flights();
  void look_at_errors();
  void beat();
  std::vector<LateRank> late_ranks(const FlightEntry& entry, std::span<const int> members);
  void report_overdue(std::int64_t sequence, std::span<const int> members);
  std::optional<std::string> failure_elsewhere();

  const std::shared_ptr<NcclStore> store_;
  ncclUniqueId id_{};
  std::vector<Group*> groups_;                    // guarded by mutex
  std::vector<std::shared_ptr<Flight>> flights_;  // open ones; guarded by mutex
  std::optional<std::string> failure_;            // guarded by mutex
  std::int64_t beats_ = 0;                        // the watchdog's
  std::condition_variable stop_signal_;
  bool is_stopping_ = false;  // guarded by mutex
  std::shared_ptr<const ClockAnchor> anchor_;
  std::thread watchdog_;
};

}  // namespace shardproof::nccl
