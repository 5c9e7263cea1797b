// Communicator: movement between the ranks of one group; the second of the two seams. A call builds a Request (the
// signature that is checked, recorded and printed), posts it and gets Work to wait for. There are no tags: operations
// of one group match in call order. Model and algorithm code does not build requests but goes through
// `core/collectives.h`.
//
// Rows: tensors move as whole rows along axis 0, contiguous. Counts are in rows; zero rows are allowed everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace shardproof {

struct DeviceSpan;

enum class Operation : std::uint8_t {
  all_gather,  // receive = rows of member 0, member 1, ..
  all_to_all,  // send_rows[j] rows go to member j, receive_rows[i] rows come from member i, both in member order
  broadcast,   // every member receives the root's rows (the root too)
  scatter,     // member i receives send_rows[i] rows of the root
  exchange,    // sends all rows to member `to`, receives from member `from`; -1 = nobody; called by all members
  barrier,     // no data
  all_gather_numbers,  // host side: every member contributes equally many signed 64-bit integers
  split,               // host side: new groups by colour, ordered by (key, rank)
};
enum class Reduction : std::uint8_t { none, sum };
// How unequal row counts are gathered: as they are, or padded to the largest and trimmed (transports without ragged
// gather).
enum class GatherForm : std::uint8_t { ragged, padded };
// In which order a reduction adds what the members contributed. Networks choose by themselves; the simulator adds in
// any of these, to show what a result owes to the order.
enum class ReductionOrder : std::uint8_t {
  ranks,   // ascending
  tree,    // neighbours first, then their sums
  ring,    // each slice starts at the member after its owner
  random,  // drawn anew for each operation, from the seed
};
std::string_view reduction_order_name(ReductionOrder order);

std::string_view operation_name(Operation operation);

struct Request {
  Operation operation = Operation::barrier;
  // What the caller does, for instance "ring: next chunk". Members must agree on it: it is part of the signature and of
  // every message. Must refer to a string literal.
  std::string_view purpose;
  Reduction reduction = Reduction::none;  // of the composed operation that this one serves
  DType dtype = kBool;
  Shape row_shape;                         // shape of one row; members must agree
  Tensor send;                             // [rows, row_shape..], contiguous; no tensor where nothing is sent
  Tensor receive;                          // [rows, row_shape..], contiguous; no tensor where nothing is received
  std::vector<std::int64_t> send_rows;     // all_to_all: one per member; scatter: one per member, on the root
  std::vector<std::int64_t> receive_rows;  // all_gather, all_to_all: one per member
  int to = -1;
  int from = -1;
  int root = -1;
  std::vector<std::int64_t> numbers;  // all_gather_numbers; split: {colour, key}
  // Number of the call in its group, which Communicator::post sets; 1 = the first, 0 = a part of another call.
  std::int64_t call = 0;
  // Number of the event that the rank's recorder has for it, which Communicator::post sets; -1 = none.
  std::int64_t event = -1;

  // One line: "all_to_all 'ulysses: heads of q' float32 rows of [2, 2, 16], send [4, 4], receive [4, 4]".
  std::string text() const;
};

// A posted operation. Destroying it before wait() is an error of the caller, which the implementation reports.
class Work {
 public:
  virtual ~Work() = default;
  // Returns when the operation is complete for this rank; may throw what went wrong. To be called once.
  virtual void wait() = 0;
  // After wait(): the numbers of all members in member order (all_gather_numbers).
  virtual std::span<const std::int64_t> numbers() const { return {}; }
  // When it ran on the device, if whoever posts it wants to know and the transport measures it; else null. It may be
  // filled in later than wait().
  virtual std::shared_ptr<const DeviceSpan> device_span() const { return nullptr; }
};

// A result that exists once its operation has completed; the value comes only out of wait().
template <class T>
class [[nodiscard]] Pending {
 public:
  using Finish = std::function<T(T)>;
  // A value that is there already.
  explicit Pending(T value) : value_(std::move(value)) {}
  // `finish`, if given, is applied to the value after the operation completed.
  Pending(std::unique_ptr<Work> work, T value, Finish finish = {})
      : work_(std::move(work)), value_(std::move(value)), finish_(std::move(finish)) {}

  // The same with a further step applied to the value after it has arrived.
  Pending then(Finish step) && {
    if (finish_) {
      finish_ = [first = std::move(finish_), second = std::move(step)](T value) {
        return second(first(std::move(value)));
      };
    } else {
      finish_ = std::move(step);
    }
    return std::move(*this);
  }

  // Waits and hands out the value. To be called once.
  T wait() {
    if (work_) {
      work_->wait();
      work_.reset();
    }
    return finish_ ? finish_(std::move(value_)) : std::move(value_);
  }

 private:
  std::unique_ptr<Work> work_;
  T value_;
  Finish finish_;
};

class Communicator {
 public:
  using Members = std::shared_ptr<const std::vector<int>>;
  // `members` are the world ranks of the group in member order; `rank` is the position of this rank in it. Ranks of one
  // process share one list, so that many ranks do not need memory for the square of their number.
  Communicator(std::string name, Members members, int rank);
  Communicator(std::string name, std::vector<int> members, int rank);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_->size()); }
  std::span<const int> members() const { return *members_; }
  int world_rank() const { return (*members_)[static_cast<std::size_t>(rank_)]; }
  // For messages: "world", "world/ulysses".
  const std::string& name() const { return name_; }
  // Like the name, with the number of the split of its parent that made it: "world/ulysses#2". The same on all members
  // and on every kind of communicator; siblings, which have no member in common, share it.
  const std::string& key() const { return key_; }
  GatherForm gather_form() const { return gather_form_; }
  // Takes effect for this communicator and for groups split from it later.
  void set_gather_form(GatherForm form) { gather_form_ = form; }

  ReductionOrder reduction_order() const { return reduction_order_; }
  // Takes effect for this communicator and for groups split from it later; `seed` is for the random order.
  void set_reduction_order(ReductionOrder order, std::uint64_t seed = 0) {
    reduction_order_ = order;
    reduction_seed_ = seed;
  }
  // The members in the order in which the next reduction on this rank adds them.
  std::vector<int> next_reduction_order();

  // Checks the request against the group (counts, roots, peers, shapes, memory in flight) and posts it. Marks the
  // memory as in flight until the work was waited for. Throws collective_error or state_error.
  [[nodiscard]] std::unique_ptr<Work> post(Request request);
  // Collective: members with equal `color` form a group, ordered by (key, rank). A negative colour joins none and gets
  // null.
  [[nodiscard]] std::unique_ptr<Communicator> split(int color, int key, std::string_view name);

 protected:
  // Calls made so far, splits included.
  std::int64_t calls() const { return calls_; }

 private:
  virtual std::unique_ptr<Work> do_post(Request request) = 0;
  virtual std::unique_ptr<Communicator> do_split(int color, int key, std::string name) = 0;

  std::string name_;
  std::string key_;
  Members members_;
  int rank_;
  GatherForm gather_form_ = GatherForm::ragged;
  ReductionOrder reduction_order_ = ReductionOrder::ranks;
  std::uint64_t reduction_seed_ = 0;
  std::uint64_t reductions_ = 0;  // asked for so far
  std::int64_t calls_ = 0;
  std::int64_t splits_ = 0;
};

}  // namespace shardproof
