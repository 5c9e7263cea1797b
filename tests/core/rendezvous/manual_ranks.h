// A rendezvous whose ranks are played by the test: post as any rank, settle, wait. Nothing runs by itself; a wait that
// would block throws Blocked, which leaves the rank waiting.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/host_memory.h"
#include "core/rendezvous.h"

namespace shardproof::test {

struct Blocked {};

class ManualCarrier final : public Carrier {
 public:
  int caller = -1;
  std::vector<int> woken;

  void block(int) override { throw Blocked{}; }
  void wake(int rank) override { woken.push_back(rank); }
  int calling_rank() const override { return caller; }
};

class ManualRanks {
 public:
  explicit ManualRanks(int world_size, bool strict_order = true) : ManualRanks(options_for(world_size, strict_order)) {}
  explicit ManualRanks(const RendezvousOptions& options)
      : rendezvous_(std::make_unique<Rendezvous>(options, carrier_)) {}

  ManualCarrier& carrier() { return carrier_; }
  Rendezvous& rendezvous() { return *rendezvous_; }
  Device& device() { return device_; }
  void settle() { rendezvous_->settle(); }

  std::unique_ptr<RendezvousWork> post(int rank, Request request) {
    carrier_.caller = rank;
    return rendezvous_->post(rendezvous_->world(), rank, std::move(request));
  }
  std::unique_ptr<RendezvousWork> post(const RendezvousGroup& group, int member, Request request) {
    carrier_.caller = group.members[static_cast<std::size_t>(member)];
    return rendezvous_->post(group, member, std::move(request));
  }
  std::unique_ptr<RendezvousWork> post_split(int rank, int color, int key, std::string name) {
    carrier_.caller = rank;
    Request request;
    request.operation = Operation::split;
    request.numbers = {color, key};
    return rendezvous_->post(rendezvous_->world(), rank, std::move(request), std::move(name));
  }
  void wait(int rank, RendezvousWork& work) {
    carrier_.caller = rank;
    work.wait();
  }
  // Waits for something that has not happened: the rank counts as waiting from then on.
  void start_waiting(int rank, RendezvousWork& work) {
    try {
      wait(rank, work);
    } catch (const Blocked&) {
    }
  }
  void finish(int rank) { rendezvous_->finish(rank); }

  // int64 rows of two elements, all equal to `value`.
  Tensor rows(std::int64_t count, std::int64_t value = 7) {
    const std::vector<std::int64_t> values(static_cast<std::size_t>(count) * 2, value);
    return device_.upload(std::as_bytes(std::span(values)), {count, 2}, kInt64);
  }
  Request request(Operation operation, std::string_view purpose = "test") {
    Request result;
    result.operation = operation;
    result.purpose = purpose;
    if (operation <= Operation::exchange) {
      result.dtype = kInt64;
      result.row_shape = {2};
    }
    return result;
  }
  Request gather(std::vector<std::int64_t> counts, int member) {
    Request result = request(Operation::all_gather);
    result.send = rows(counts[static_cast<std::size_t>(member)], member);
    result.receive = rows(total(counts));
    result.receive_rows = std::move(counts);
    return result;
  }
  Request all_to_all(std::vector<std::int64_t> send, std::vector<std::int64_t> receive) {
    Request result = request(Operation::all_to_all);
    result.send = rows(total(send));
    result.receive = rows(total(receive));
    result.send_rows = std::move(send);
    result.receive_rows = std::move(receive);
    return result;
  }
  Request exchange(int to, int from, std::int64_t send, std::int64_t receive) {
    Request result = request(Operation::exchange);
    if (to >= 0) result.send = rows(send);
    result.receive = rows(receive);
    result.to = to;
    result.from = from;
    return result;
  }
  Request broadcast(int root, int member, std::int64_t count) {
    Request result = request(Operation::broadcast);
    if (root == member) result.send = rows(count);
    result.receive = rows(count);
    result.root = root;
    return result;
  }
  Request scatter(int root, std::vector<std::int64_t> counts, std::int64_t receive) {
    Request result = request(Operation::scatter);
    if (!counts.empty()) result.send = rows(total(counts));
    result.send_rows = std::move(counts);
    result.receive = rows(receive);
    result.root = root;
    return result;
  }
  Request numbers(std::vector<std::int64_t> values) {
    Request result = request(Operation::all_gather_numbers);
    result.numbers = std::move(values);
    return result;
  }

 private:
  static RendezvousOptions options_for(int world_size, bool strict_order) {
    RendezvousOptions options;
    options.world_size = world_size;
    options.strict_order = strict_order;
    return options;
  }
  static std::int64_t total(const std::vector<std::int64_t>& counts) {
    std::int64_t sum = 0;
    for (const std::int64_t count : counts) sum += count;
    return sum;
  }

  HostDevice device_;
  ManualCarrier carrier_;
  std::unique_ptr<Rendezvous> rendezvous_;
};

}  // namespace shardproof::test
