// OperationRecorder: what one rank did, operation by operation, and when. The two seams and module calls look at one
// pointer of their thread, the recorder of the rank that runs on it; without one they cost a load and a branch and
// allocate nothing. Events keep numbers and names that exist anyway; reports/trace makes text of them.
//
// What an operation is called depends only on what the rank does, never on time, threads or transport, so that the
// records of a simulated and of a real rank can be joined: communication by group, number of the call in it and
// operation; computation by module path, number of the module's call, operation and its ordinal in that call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"

namespace shardproof {

class Communicator;
class Module;
class Work;
struct Request;

// Nanoseconds of the clock of this machine, which never goes backwards.
std::int64_t steady_nanoseconds();

// What has to be added to the clock of a rank to make it that of rank 0; it is right within the residual.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  std::int64_t residual_ns = 0;
};

enum class EventKind : std::uint8_t { step, module, computation, communication };

// When an operation ran on the device itself, in steady_nanoseconds(); -1 = not known. Written by whoever sees it end,
// on any thread.
struct DeviceSpan {
  std::atomic<std::int64_t> begin_ns{-1};
  std::atomic<std::int64_t> end_ns{-1};
};

// Times are steady_nanoseconds(); -1 = did not come about. Small, since a large model makes many of them.
struct RecordedEvent {
  EventKind kind = EventKind::step;
  DType dtype;                 // of the result; of a communication: of the rows
  std::int32_t step = 0;       // 0 = the first that was recorded
  std::int32_t scope = -1;     // number of the event of the module call in which it happened; -1 = none
  std::int32_t place = -1;     // of a module call: number of the path; of a communication: number of the group
  std::int32_t call = 0;       // of this module, or in this group, within the step; 1 = the first
  std::int32_t movement = -1;  // of a communication: number of its RecordedMovement
  std::string_view operation;  // a literal
  Shape shape;                 // of the result; of a communication: of one row
  std::int64_t bytes = 0;      // of a computation: of its result and of the tensors that it reads
  // A communication begins when it is posted and ends when it is known to be complete, which is in wait().
  std::int64_t begin_ns = -1, end_ns = -1;
};

// What a communication has besides.
struct RecordedMovement {
  bool is_sum = false;          // it serves a reduction
  std::string_view purpose;     // a literal
  std::int64_t group_call = 0;  // in the group since the group was made; 1 = the first
  std::int64_t send_rows = 0, receive_rows = 0;
  std::int64_t send_bytes = 0, receive_bytes = 0;
  std::int32_t to = -1, from = -1, root = -1;
  std::int64_t post_end_ns = -1, wait_begin_ns = -1;
  std::shared_ptr<const DeviceSpan> device_span;  // where the transport measures it
};

// A list that grows by blocks, whose elements stay where they are; memory is touched when an element is added.
template <class T>
class BlockList {
 public:
  BlockList() = default;
  ~BlockList() {
    for (std::size_t i = 0; i < count_; ++i) std::destroy_at(&(*this)[i]);
    for (T* const block : blocks_) std::allocator<T>().deallocate(block, kBlock);
  }
  BlockList(const BlockList&) = delete;
  BlockList& operator=(const BlockList&) = delete;

  std::size_t size() const { return count_; }
  const T& operator[](std::size_t number) const { return blocks_[number / kBlock][number % kBlock]; }
  T& operator[](std::size_t number) { return blocks_[number / kBlock][number % kBlock]; }
  T& add() {
    if (count_ == blocks_.size() * kBlock) blocks_.push_back(std::allocator<T>().allocate(kBlock));
    T* const place = &blocks_[count_ / kBlock][count_ % kBlock];
    std::construct_at(place);
    ++count_;
    return *place;
  }

 private:
  static constexpr std::size_t kBlock = 1024;
  std::vector<T*> blocks_;
  std::size_t count_ = 0;
};

// Is told of every operation, for tools that show ranges of names.
class RangeSink {
 public:
  virtual ~RangeSink() = default;
  // `event` is the number of the computation, or of the communication that is being posted; -1 of anything else, and
  // where no events are kept.
  virtual void push(std::string_view name, std::int64_t event) = 0;
  virtual void pop() = 0;
};

class OperationRecorder {
 public:
  enum class Keep : std::uint8_t { events, nothing };  // nothing: only the ranges are told
  explicit OperationRecorder(Keep keep = Keep::events, RangeSink* ranges = nullptr);
  ~OperationRecorder();
  OperationRecorder(const OperationRecorder&) = delete;
  OperationRecorder& operator=(const OperationRecorder&) = delete;

  // The recorder of the rank that runs on this thread; null = nothing is recorded.
  static OperationRecorder* current() { return current_; }
  // Sets it and returns the one before. A scheduler that runs several ranks on a thread does so at each switch.
  static OperationRecorder* exchange_current(OperationRecorder* recorder);

  struct Group {
    std::string key;           // Communicator::key()
    std::vector<int> members;  // world ranks
  };
  bool keeps_events() const { return keeps_; }
  std::size_t event_count() const { return events_.size(); }
  const RecordedEvent& event(std::size_t number) const { return events_[number]; }
  const RecordedMovement& movement_of(const RecordedEvent& communication) const {
    return movements_[static_cast<std::size_t>(communication.movement)];
  }
  const std::vector<Group>& groups() const { return groups_; }
  const std::string& path(std::int32_t number) const { return paths_[static_cast<std::size_t>(number)]; }

  // The functions below are for the seams.
  void begin_step();
  void end_step();
  void enter(const Module& module);
  void leave();
  void begin_computation(std::string_view operation);
  void describe_computation(const Tensor& result, std::int64_t bytes_read);
  void end_computation();
  // Returns the number of the event, which the functions below take.
  std::int64_t post(const Communicator& group, const Request& request);
  void end_post(std::int64_t event, const Work& work);
  void begin_wait(std::int64_t event);
  void end_wait(std::int64_t event);

 private:
  RecordedEvent& at(std::int64_t number) { return events_[static_cast<std::size_t>(number)]; }
  RecordedMovement& movement_at(std::int64_t event) { return movements_[static_cast<std::size_t>(at(event).movement)]; }
  std::int64_t add(EventKind kind);
  std::int32_t group_number(const Communicator& group);

  static constinit thread_local OperationRecorder* current_;

  bool keeps_;
  RangeSink* ranges_;
  BlockList<RecordedEvent> events_;
  BlockList<RecordedMovement> movements_;
  std::int32_t step_ = -1;
  std::int64_t step_event_ = -1;
  std::vector<std::int32_t> scopes_;  // the module calls that are open, by their events
  std::int64_t computation_ = -1;     // the event of the one that is open
  int depth_ = 0;                     // of computations in each other, of which the outermost counts
  std::unordered_map<const Module*, std::int32_t> path_numbers_;
  std::vector<std::string> paths_;
  std::vector<std::int32_t> path_calls_;  // in this step
  std::vector<Group> groups_;
  std::vector<std::int32_t> group_calls_;  // in this step
};

// Records what is done between begin and end of its life as one step of this rank. Nothing if there is no recorder.
class RecordedStep {
 public:
  explicit RecordedStep(OperationRecorder* recorder);
  ~RecordedStep();
  RecordedStep(const RecordedStep&) = delete;
  RecordedStep& operator=(const RecordedStep&) = delete;

 private:
  OperationRecorder* recorder_;
};

// One call of a module.
class ModuleMark {
 public:
  explicit ModuleMark(const Module& module) : recorder_(OperationRecorder::current()) {
    if (recorder_ != nullptr) [[unlikely]]
      recorder_->enter(module);
  }
  ~ModuleMark() {
    if (recorder_ != nullptr) [[unlikely]]
      recorder_->leave();
  }
  ModuleMark(const ModuleMark&) = delete;
  ModuleMark& operator=(const ModuleMark&) = delete;

 private:
  OperationRecorder* recorder_;
};

// A literal is its own name.
inline std::string_view op_name(std::string_view literal) { return literal; }

// One computation of a device. `Operation` is a literal, or a value with an op_name().
class ComputationMark {
 public:
  template <class Operation>
  explicit ComputationMark(Operation operation) : recorder_(OperationRecorder::current()) {
    if (recorder_ != nullptr) [[unlikely]]
      recorder_->begin_computation(op_name(operation));
  }
  ~ComputationMark() {
    if (recorder_ != nullptr) [[unlikely]]
      recorder_->end_computation();
  }
  ComputationMark(const ComputationMark&) = delete;
  ComputationMark& operator=(const ComputationMark&) = delete;

  template <class... Operands>
  void describe(const Tensor& result, const Operands&... operands) const {
    if (recorder_ == nullptr) [[likely]]
      return;
    recorder_->describe_computation(
        result, (std::int64_t{0} + ... + static_cast<std::int64_t>(operands.defined() ? operands.bytes() : 0)));
  }

 private:
  OperationRecorder* recorder_;
};

// One communication, from its post to its wait.
class CommunicationMark {
 public:
  CommunicationMark(const Communicator& group, const Request& request) : recorder_(OperationRecorder::current()) {
    if (recorder_ != nullptr) [[unlikely]]
      event_ = recorder_->post(group, request);
  }
  // The number of the event; -1 without one.
  std::int64_t event() const { return event_; }
  void end_post(const Work& work) const {
    if (recorder_ != nullptr) [[unlikely]]
      recorder_->end_post(event_, work);
  }
  void begin_wait() const {
    if (recorder_ != nullptr) [[unlikely]]
      recorder_->begin_wait(event_);
  }
  void end_wait() const {
    if (recorder_ != nullptr) [[unlikely]]
      recorder_->end_wait(event_);
  }

 private:
  OperationRecorder* recorder_;  // outlives the operation
  std::int64_t event_ = -1;
};

}  // namespace shardproof
