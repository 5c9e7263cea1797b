// State shared by the parts of the rendezvous (matching, checks, delivery, reports). Private to core/rendezvous*.cpp.
// It stands in a header of its own so that each of those parts is a file that can be read alone.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/rendezvous.h"

namespace shardproof::rendezvous {

// How many ranks a message lists before it only counts them.
constexpr std::size_t kListedRanks = 8;

struct Group;

// One rank's side of one operation.
struct Post {
  Engine* engine = nullptr;  // null once the run is over
  Group* group = nullptr;
  int member = 0;
  int rank = 0;           // world rank of the member
  std::int64_t call = 0;  // 0 = the group's first
  Request request;
  std::string split_name;
  std::uint64_t checksum = 0;              // of the send buffer when it was posted
  std::vector<std::int64_t> send_offsets;  // first row for each member, where send_rows is given
  bool executed = false;
  bool was_blocked_at_delivery = false;
  bool waited = false;
  std::shared_ptr<Mover::Mark> ready;  // with a mover
  std::shared_ptr<Mover::Mark> moved;
  std::shared_ptr<const std::vector<std::int64_t>> numbers;
  const RendezvousGroup* new_group = nullptr;
  int new_member = -1;
};

// The k-th operation of a group as far as members have posted it.
struct Call {
  std::vector<std::shared_ptr<Post>> posts;  // by member; null = not yet
  Post* first = nullptr;
  int arrived = 0;
  int at_head = 0;  // members for which it is the oldest open operation
  // exchange: by member, the member that sends to it, and the one that receives from it; -1 = none so far.
  std::vector<int> sender_to;
  std::vector<int> receiver_from;

  void clear() {
    posts.clear();
    first = nullptr;
    arrived = at_head = 0;
    sender_to.clear();
    receiver_from.clear();
  }
};

struct Group : RendezvousGroup {
  std::deque<Call> calls;                // open ones, oldest first
  std::int64_t first_call = 0;           // number of calls.front()
  std::vector<std::int64_t> made_calls;  // by member
  // Calls from this number on can never be complete, since `returned_rank` has ended.
  std::int64_t closed_from = std::numeric_limits<std::int64_t>::max();
  int returned_rank = -1;
  std::vector<Call> spare;  // emptied calls, for reuse of their memory

  int size() const { return static_cast<int>(members.size()); }
  Call& call(std::int64_t number) { return calls[static_cast<std::size_t>(number - first_call)]; }
};

struct Rank {
  std::vector<std::shared_ptr<Post>> posted;  // since the last settle; written by the rank
  std::vector<std::shared_ptr<Post>> unwaited;
  std::deque<Post*> queue;  // strict order: open operations, oldest first
  Post* waiting = nullptr;
  bool finished = false;
  bool finish_noted = false;
  std::vector<Group*> groups;
  RankStatistics statistics;
};

std::int64_t rows_of(const Tensor& tensor);
std::size_t row_bytes(const Request& request);

// rendezvous_checks.cpp
// "world", "world/ulysses {2, 3}".
std::string group_text(const RendezvousGroup& group);
// "world/ulysses {2, 3}, call 4".
std::string call_text(const Post& post);
// Request::text(), cut to a bounded length.
std::string request_text(const Post& post);
// A bounded list of ranks: "rank 3", "ranks 0, 1, 2", "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1016 more".
std::string ranks_text(std::span<const int> ranks);
// Throws collective_error for buffers that do not fit the operation, whatever the others do.
void check_alone(const Post& post);
// Throws collective_error if `post`, which has joined `call`, contradicts the call's first post or its own peers.
void check_joined(Call& call, const Post& post);

// rendezvous_delivery.cpp
// Makes a buffer that is still to be filled spoil what is computed from it: every byte of one cache line in 4 KiB,
// and of the whole where it is smaller. (Poisoning every byte of every buffer cost more than moving the data.)
void poison_lines(const Tensor& tensor);
// Throws state_error if the send buffer is not what it was when it was posted.
void check_unchanged(const Post& post);
// Fills the receive buffers of all members of a complete call, from send buffers that are checked as above.
void move_data(const Call& call);
// What move_data() would move, for a mover.
std::vector<Movement> movements_of(const Call& call);
// What others receive of this member's data, in bytes.
std::int64_t bytes_to_others(const Post& post);

// rendezvous_deadlock.cpp
// Throws deadlock_error: what each rank that has not ended waits for, who is missing, and the cycle.
[[noreturn]] void fail_deadlocked(std::span<Rank> ranks, bool strict_order);

}  // namespace shardproof::rendezvous
