#include "core/communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "core/device.h"
#include "core/error.h"
#include "core/operation_recorder.h"
#include "core/random.h"

namespace shardproof {
namespace {

std::string list_text(std::span<const std::int64_t> values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

std::int64_t total(std::span<const std::int64_t> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::int64_t rows_of(const Tensor& tensor) { return tensor.defined() ? tensor.size(0) : 0; }

void check_rows(const Communicator& group, const Request& request, const Tensor& tensor, std::string_view side) {
  if (!tensor.defined()) return;
  SHARDPROOF_CHECK(tensor.rank() >= 1 && tensor.is_contiguous(), collective_error,
                   "rank {} in {}: the {} tensor {} of {} must be contiguous rows", group.rank(), group.name(), side,
                   tensor.text(), operation_name(request.operation));
  SHARDPROOF_CHECK(tensor.dtype() == request.dtype && tensor.shape().erased(0) == request.row_shape, collective_error,
                   "rank {} in {}: the {} tensor {} does not hold {} rows of {}", group.rank(), group.name(), side,
                   tensor.text(), request.dtype.name(), request.row_shape.text());
}

void check_counts(const Communicator& group, const Request& request, std::span<const std::int64_t> counts,
                  const Tensor& tensor, std::string_view side) {
  SHARDPROOF_CHECK(static_cast<int>(counts.size()) == group.size(), collective_error,
                   "rank {} in {}: {} lists {} {} counts for {} members", group.rank(), group.name(),
                   operation_name(request.operation), counts.size(), side, group.size());
  for (const std::int64_t count : counts) {
    SHARDPROOF_CHECK(count >= 0, collective_error, "rank {} in {}: negative {} count in {}", group.rank(), group.name(),
                     side, list_text(counts));
  }
  SHARDPROOF_CHECK(total(counts) == rows_of(tensor), collective_error,
                   "rank {} in {}: {} counts {} do not add up to {} rows", group.rank(), group.name(), side,
                   list_text(counts), rows_of(tensor));
}

void check_peer(const Communicator& group, const Request& request, int peer, bool may_be_nobody,
                std::string_view role) {
  SHARDPROOF_CHECK((peer >= 0 && peer < group.size()) || (may_be_nobody && peer == -1), collective_error,
                   "rank {} in {}: {} names {} {}; the group has members 0..{}", group.rank(), group.name(),
                   operation_name(request.operation), role, peer, group.size() - 1);
}

void check_request(const Communicator& group, const Request& request) {
  check_rows(group, request, request.send, "send");
  check_rows(group, request, request.receive, "receive");
  switch (request.operation) {
    case Operation::all_gather:
      check_counts(group, request, request.receive_rows, request.receive, "receive");
      SHARDPROOF_CHECK(request.receive_rows[static_cast<std::size_t>(group.rank())] == rows_of(request.send),
                       collective_error, "rank {} in {}: all_gather of {} rows, but the counts {} say otherwise",
                       group.rank(), group.name(), rows_of(request.send), list_text(request.receive_rows));
      break;
    case Operation::all_to_all:
      check_counts(group, request, request.send_rows, request.send, "send");
      check_counts(group, request, request.receive_rows, request.receive, "receive");
      break;
    case Operation::scatter:
      check_peer(group, request, request.root, false, "root");
      if (group.rank() == request.root) check_counts(group, request, request.send_rows, request.send, "send");
      break;
    case Operation::broadcast: check_peer(group, request, request.root, false, "root"); break;
    case Operation::exchange:
      check_peer(group, request, request.to, true, "target");
      check_peer(group, request, request.from, true, "source");
      break;
    case Operation::barrier:
    case Operation::all_gather_numbers:
    case Operation::split: break;
  }
}

// Keeps the in-flight counters of the memory that an operation reads and writes.
class CountedWork final : public Work {
 public:
  CountedWork(std::unique_ptr<Work> inner, const Tensor& send, const Tensor& receive, CommunicationMark mark)
      : inner_(std::move(inner)), send_(send.storage()), receive_(receive.storage()), mark_(mark) {}

  void wait() override {
    mark_.begin_wait();
    inner_->wait();
    mark_.end_wait();
    if (send_) send_->send_in_flight.fetch_sub(1, std::memory_order_relaxed);
    if (receive_) receive_->receive_pending.fetch_sub(1, std::memory_order_relaxed);
  }
  std::span<const std::int64_t> numbers() const override { return inner_->numbers(); }

 private:
  std::unique_ptr<Work> inner_;
  StoragePointer send_;
  StoragePointer receive_;
  CommunicationMark mark_;
};

}  // namespace

std::string_view operation_name(Operation operation) {
  switch (operation) {
    case Operation::all_gather: return "all_gather";
    case Operation::all_to_all: return "all_to_all";
    case Operation::broadcast: return "broadcast";
    case Operation::scatter: return "scatter";
    case Operation::exchange: return "exchange";
    case Operation::barrier: return "barrier";
    case Operation::all_gather_numbers: return "all_gather_numbers";
    case Operation::split: return "split";
  }
  return "?";
}

std::string Request::text() const {
  std::string text(operation_name(operation));
  if (!purpose.empty()) text += fmt::format(" '{}'", purpose);
  if (reduction == Reduction::sum) text += " (sum)";
  if (send.defined() || receive.defined()) text += fmt::format(" {} rows of {}", dtype.name(), row_shape.text());
  if (send.defined() && send_rows.empty()) text += fmt::format(", send {}", send.size(0));
  if (!send_rows.empty()) text += fmt::format(", send {}", list_text(send_rows));
  if (!receive_rows.empty()) {
    text += fmt::format(", receive {}", list_text(receive_rows));
  } else if (receive.defined()) {
    text += fmt::format(", receive {}", receive.size(0));
  }
  if (root >= 0) text += fmt::format(", root {}", root);
  if (operation == Operation::exchange) text += fmt::format(", to {}, from {}", to, from);
  if (!numbers.empty()) text += fmt::format(", numbers {}", list_text(numbers));
  return text;
}

Communicator::Communicator(std::string name, Members members, int rank)
    : name_(std::move(name)), key_(name_), members_(std::move(members)), rank_(rank) {}

Communicator::Communicator(std::string name, std::vector<int> members, int rank)
    : Communicator(std::move(name), std::make_shared<const std::vector<int>>(std::move(members)), rank) {}

std::unique_ptr<Work> Communicator::post(Request request) {
  check_request(*this, request);
  const Tensor send = request.send;
  const Tensor receive = request.receive;
  if (send.defined()) check_readable(send, operation_name(request.operation));
  if (receive.defined()) make_writable(receive, operation_name(request.operation));
  request.call = ++calls_;
  const CommunicationMark mark(*this, request);
  request.event = mark.event();
  std::unique_ptr<Work> work = do_post(std::move(request));
  mark.end_post(*work);
  if (send.defined()) send.storage()->send_in_flight.fetch_add(1, std::memory_order_relaxed);
  if (receive.defined()) receive.storage()->receive_pending.fetch_add(1, std::memory_order_relaxed);
  return std::make_unique<CountedWork>(std::move(work), send, receive, mark);
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, std::string_view name) {
  ++calls_;
  ++splits_;
  std::unique_ptr<Communicator> group = do_split(color, key, name_ + "/" + std::string(name));
  if (group) {
    group->key_ = fmt::format("{}/{}#{}", key_, name, splits_);
    group->set_gather_form(gather_form_);
    group->set_reduction_order(reduction_order_, reduction_seed_);
  }
  return group;
}

std::vector<int> Communicator::next_reduction_order() {
  std::vector<int> order(static_cast<std::size_t>(size()));
  std::iota(order.begin(), order.end(), 0);
  const std::uint64_t number = reductions_++;
  if (reduction_order_ == ReductionOrder::ring) {
    std::rotate(order.begin(), order.begin() + (rank_ + 1) % size(), order.end());
  } else if (reduction_order_ == ReductionOrder::random) {
    const RandomStream stream(reduction_seed_, fmt::format("reduction {} of {} on rank {}", number, name_, rank_));
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<std::size_t>(stream.below(i, static_cast<std::int64_t>(i)))]);
    }
  }
  return order;
}

std::string_view reduction_order_name(ReductionOrder order) {
  switch (order) {
    case ReductionOrder::ranks: return "ranks";
    case ReductionOrder::tree: return "tree";
    case ReductionOrder::ring: return "ring";
    case ReductionOrder::random: return "random";
  }
  fail(ErrorKind::internal_error, "reduction order {} does not exist", static_cast<int>(order));
}

}  // namespace shardproof
