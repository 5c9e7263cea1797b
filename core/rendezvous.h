// The in-process rendezvous: matches and checks the operations that the ranks of one process post, and moves the data
// between them. It knows nothing of how ranks are carried (fibers, threads of a host program): a Carrier blocks and
// wakes them. Ranks only record what they post; everything in which ranks meet happens in settle(), which the carrier
// calls alone, when every rank waits or has ended. What NCCL would turn into a hang or into silent corruption is
// answered here in words: rank, group, call number (1 = the group's first) and what both sides posted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"

namespace shardproof {

class Carrier {
 public:
  virtual ~Carrier() = default;
  // Called by `rank` itself; returns after the next wake(rank). Throws what is to end the rank when the run is given
  // up.
  virtual void block(int rank) = 0;
  // Called out of settle(): lets the blocked `rank` go on after it.
  virtual void wake(int rank) = 0;
  // The rank on whose behalf the calling code runs; -1 for code of no rank of this run.
  virtual int calling_rank() const = 0;
};

// A part of what an operation moves, between two ranks or within one; they are world ranks.
struct Movement {
  int from = 0;
  int to = 0;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::size_t bytes = 0;
  std::int64_t event = -1;  // of the receiver's request
};

// Moves data in memory that the host does not reach, in the order of queues of a device. The rendezvous then neither
// poisons what is to be received nor checks that what is being sent stays as it is.
class Mover {
 public:
  // A place in the work that a rank has given to its queue, or in what the mover has moved.
  class Mark {
   public:
    virtual ~Mark() = default;
  };
  virtual ~Mover() = default;
  // Called by the rank when it posts: its buffers are ready once what it has queued by now is done.
  virtual std::shared_ptr<Mark> mark_ready(int rank) = 0;
  // Called out of settle(): queues the movements of one operation behind the marks of its members.
  virtual std::shared_ptr<Mark> move(std::span<const Movement> movements,
                                     std::span<const std::shared_ptr<Mark>> ready) = 0;
  // Called by the rank at the end of its wait: what it queues from now on comes after the movements.
  virtual void follow(int rank, Mark& moved) = 0;
};

inline constexpr int kOperationCount = static_cast<int>(Operation::split) + 1;

// What one rank did. Bytes are those of its data that other ranks received (of a padded gather, with the pads); copies
// to itself are not counted.
struct RankStatistics {
  std::int64_t bytes_sent = 0;
  std::array<std::int64_t, kOperationCount> calls{};  // indexed by Operation

  std::int64_t calls_of(Operation operation) const { return calls[static_cast<std::size_t>(operation)]; }
  // Calls that move tensors: all_gather, all_to_all, broadcast, scatter and exchange.
  std::int64_t data_calls() const;
  friend bool operator==(const RankStatistics&, const RankStatistics&) = default;
};

// One executed operation, in the order of execution.
struct DeliveryRecord {
  std::int64_t round = 0;
  int group = 0;  // number of the group in order of creation; 0 = world
  std::string group_name;
  std::int64_t call = 0;  // 1 = the group's first
  Operation operation = Operation::barrier;
  std::string_view purpose;
  std::vector<int> order;  // members in the order in which they were served
  friend bool operator==(const DeliveryRecord&, const DeliveryRecord&) = default;
};

// A group of ranks. Interned: created once, by the split that defines it.
struct RendezvousGroup {
  int id = 0;
  std::string name;
  std::vector<int> members;  // world ranks in member order
};

struct RendezvousOptions {
  int world_size = 1;
  std::uint64_t seed = 0;  // of the order of execution and delivery
  // True: an operation executes only when it is the oldest open one of every member, as on one stream. False: order
  // holds within each group only.
  bool strict_order = true;
  bool record_deliveries = false;
  Mover* mover = nullptr;  // null: buffers are host memory, whose bytes the rendezvous moves and checks
};

namespace rendezvous {
struct Post;
class Engine;
}  // namespace rendezvous

// The handle of a posted operation.
class RendezvousWork final : public Work {
 public:
  explicit RendezvousWork(std::shared_ptr<rendezvous::Post> post);
  ~RendezvousWork() override;
  // Blocks the rank until the operation was executed. Throws state_error if what was sent has been changed meanwhile,
  // if called twice, or after the run; collective_error if another rank than the poster calls it.
  void wait() override;
  std::span<const std::int64_t> numbers() const override;
  // After wait() of a split: the new group (null for a negative colour) and the rank's position in it.
  const RendezvousGroup* new_group() const;
  int new_member() const;

 private:
  std::shared_ptr<rendezvous::Post> post_;
};

class Rendezvous {
 public:
  // The carrier must outlive the calls of post, wait and settle, but not this object.
  Rendezvous(const RendezvousOptions& options, Carrier& carrier);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  const RendezvousGroup& world() const;
  // Called by member `member` of `group`: poisons the receive buffer and records the request. `split_name` is the full
  // name of the new group of a split. The request must have passed the checks of Communicator::post. Throws
  // collective_error for a caller that is not that member and for buffers that do not fit, state_error after close().
  std::unique_ptr<RendezvousWork> post(const RendezvousGroup& group, int member, Request request,
                                       std::string split_name = {});
  // Posts the split that Communicator::split asks for and waits for it: the new group, null for a negative colour, and
  // the rank's position in it.
  std::pair<const RendezvousGroup*, int> split(const RendezvousGroup& group, int member, int color, int key,
                                               std::string name);
  // Called by the rank when its work is done. Throws state_error if it never waited for something it posted.
  void finish(int rank);
  // Called alone, when every rank waits or has finished: matches, checks and executes what was posted and wakes ranks.
  // Throws collective_error for disagreement and for ranks that ended too early, state_error for data changed in
  // flight, deadlock_error if ranks remain and none can run. After an error the run is over.
  void settle();
  // Ends the run: from now on handles and communicators that are left answer with state_error.
  void close();

  const RankStatistics& statistics(int rank) const;
  std::vector<DeliveryRecord> take_deliveries();

 private:
  std::unique_ptr<rendezvous::Engine> engine_;
};

}  // namespace shardproof
