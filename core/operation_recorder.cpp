#include "core/operation_recorder.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/communicator.h"
#include "core/module.h"

namespace shardproof {

constinit thread_local OperationRecorder* OperationRecorder::current_ = nullptr;

std::int64_t steady_nanoseconds() {
  const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since_start).count();
}

namespace {

std::int64_t recorded_rows(const Tensor& tensor) { return tensor.defined() ? tensor.size(0) : 0; }
std::int64_t recorded_bytes(const Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.bytes()) : 0;
}

}  // namespace

OperationRecorder::OperationRecorder(Keep keep, RangeSink* ranges) : keeps_(keep == Keep::events), ranges_(ranges) {}

OperationRecorder::~OperationRecorder() = default;

OperationRecorder* OperationRecorder::exchange_current(OperationRecorder* recorder) {
  return std::exchange(current_, recorder);
}

std::int64_t OperationRecorder::add(EventKind kind) {
  const auto number = static_cast<std::int64_t>(events_.size());
  RecordedEvent& event = events_.add();
  event.kind = kind;
  event.step = step_;
  event.scope = scopes_.empty() ? -1 : scopes_.back();
  return number;
}

void OperationRecorder::begin_step() {
  ++step_;
  std::fill(path_calls_.begin(), path_calls_.end(), 0);
  std::fill(group_calls_.begin(), group_calls_.end(), 0);
  scopes_.clear();
  depth_ = 0;
  if (ranges_ != nullptr) ranges_->push("step", -1);
  if (!keeps_) return;
  step_event_ = add(EventKind::step);
  at(step_event_).operation = "step";
  at(step_event_).begin_ns = steady_nanoseconds();
}

void OperationRecorder::end_step() {
  if (ranges_ != nullptr) ranges_->pop();
  if (keeps_) at(step_event_).end_ns = steady_nanoseconds();
}

void OperationRecorder::enter(const Module& module) {
  if (ranges_ != nullptr) ranges_->push(module.class_name(), -1);
  if (!keeps_) return;
  const auto [known, is_new] = path_numbers_.try_emplace(&module, static_cast<std::int32_t>(paths_.size()));
  if (is_new) {
    paths_.push_back(module.path());
    path_calls_.push_back(0);
  }
  const std::int64_t number = add(EventKind::module);
  RecordedEvent& event = at(number);
  event.place = known->second;
  event.call = ++path_calls_[static_cast<std::size_t>(known->second)];
  event.operation = module.class_name();  // interned: it outlives the tree
  scopes_.push_back(static_cast<std::int32_t>(number));
  event.begin_ns = steady_nanoseconds();
}

void OperationRecorder::leave() {
  if (ranges_ != nullptr) ranges_->pop();
  if (!keeps_ || scopes_.empty()) return;
  at(scopes_.back()).end_ns = steady_nanoseconds();
  scopes_.pop_back();
}

void OperationRecorder::begin_computation(std::string_view operation) {
  if (++depth_ > 1) return;
  if (keeps_) computation_ = add(EventKind::computation);
  if (ranges_ != nullptr) ranges_->push(operation, computation_);
  if (!keeps_) return;
  at(computation_).operation = operation;
  at(computation_).begin_ns = steady_nanoseconds();
}

void OperationRecorder::describe_computation(const Tensor& result, std::int64_t bytes_read) {
  if (depth_ > 1 || !keeps_) return;
  RecordedEvent& event = at(computation_);
  event.dtype = result.dtype();
  event.shape = result.shape();
  event.bytes = bytes_read + recorded_bytes(result);
}

void OperationRecorder::end_computation() {
  if (--depth_ > 0) return;
  if (ranges_ != nullptr) ranges_->pop();
  if (keeps_) at(computation_).end_ns = steady_nanoseconds();
}

std::int32_t OperationRecorder::group_number(const Communicator& group) {
  const auto known = std::ranges::find(groups_, group.key(), &Group::key);
  if (known != groups_.end()) return static_cast<std::int32_t>(known - groups_.begin());
  groups_.push_back({.key = group.key(), .members = {group.members().begin(), group.members().end()}});
  group_calls_.push_back(0);
  return static_cast<std::int32_t>(groups_.size()) - 1;
}

std::int64_t OperationRecorder::post(const Communicator& group, const Request& request) {
  const std::int64_t number = keeps_ ? add(EventKind::communication) : -1;
  if (ranges_ != nullptr) ranges_->push(operation_name(request.operation), number);
  if (!keeps_) return -1;
  const std::int32_t place = group_number(group);
  RecordedEvent& event = at(number);
  event.place = place;
  event.call = ++group_calls_[static_cast<std::size_t>(place)];
  event.operation = operation_name(request.operation);
  event.dtype = request.dtype;
  event.shape = request.row_shape;
  event.movement = static_cast<std::int32_t>(movements_.size());
  RecordedMovement& movement = movements_.add();
  movement.is_sum = request.reduction == Reduction::sum;
  movement.purpose = request.purpose;
  movement.group_call = request.call;
  movement.send_rows = recorded_rows(request.send);
  movement.receive_rows = recorded_rows(request.receive);
  movement.send_bytes = recorded_bytes(request.send);
  movement.receive_bytes = recorded_bytes(request.receive);
  movement.to = request.to;
  movement.from = request.from;
  movement.root = request.root;
  event.begin_ns = steady_nanoseconds();
  return number;
}

void OperationRecorder::end_post(std::int64_t event, const Work& work) {
  if (ranges_ != nullptr) ranges_->pop();
  if (event < 0) return;
  movement_at(event).post_end_ns = steady_nanoseconds();
  movement_at(event).device_span = work.device_span();
}

void OperationRecorder::begin_wait(std::int64_t event) {
  if (ranges_ != nullptr) ranges_->push("wait", -1);
  if (event >= 0) movement_at(event).wait_begin_ns = steady_nanoseconds();
}

void OperationRecorder::end_wait(std::int64_t event) {
  if (ranges_ != nullptr) ranges_->pop();
  if (event >= 0) at(event).end_ns = steady_nanoseconds();
}

RecordedStep::RecordedStep(OperationRecorder* recorder) : recorder_(recorder) {
  if (recorder_ == nullptr) return;
  recorder_->begin_step();
  OperationRecorder::exchange_current(recorder_);
}

RecordedStep::~RecordedStep() {
  if (recorder_ == nullptr) return;
  OperationRecorder::exchange_current(nullptr);
  recorder_->end_step();
}

}  // namespace shardproof
