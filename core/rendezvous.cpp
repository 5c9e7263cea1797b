#include "core/rendezvous.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "core/checksum.h"
#include "core/device.h"
#include "core/error.h"
#include "core/rendezvous_state.h"

namespace shardproof {
namespace rendezvous {

// A small counter-based generator; what it draws depends on the seed and the number of draws only.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  // Uniform in 0..count-1.
  std::size_t roll(std::size_t count) {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t bits = state_;
    bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
    bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
    bits ^= bits >> 31U;
    return static_cast<std::size_t>(((bits >> 32U) * count) >> 32U);
  }

 private:
  std::uint64_t state_;
};

class Engine {
 public:
  Engine(const RendezvousOptions& options, Carrier& carrier);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const RendezvousGroup& world() const { return *groups_.front(); }
  std::shared_ptr<Post> post(const RendezvousGroup& group, int member, Request request, std::string split_name);
  void wait(Post& post);
  void finish(int rank);
  void settle();
  void close();
  const RankStatistics& statistics(int rank) const { return ranks_[static_cast<std::size_t>(rank)].statistics; }
  std::vector<DeliveryRecord> take_deliveries() { return std::move(deliveries_); }

 private:
  Rank& rank_at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void check_caller(const RendezvousGroup& group, int rank, std::string_view action) const;
  Group& add_group(std::string name, std::vector<int> members);
  void accept(const std::shared_ptr<Post>& post);
  void note_head(const Post& post);
  void note_end(int rank);
  bool all_wait() const;
  void execute_ready();
  void execute(Group& group);
  void move(Call& call);
  void complete(Post& post);
  void share_numbers(const Call& call);
  void form_groups(const Call& call);
  void record(const Group& group, const Call& call);

  RendezvousOptions options_;
  Carrier* carrier_;
  Dice dice_;
  std::vector<Rank> ranks_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<Group*> ready_;  // groups whose oldest call can execute
  std::vector<int> order_;     // scratch: members in the order in which they are served
  std::vector<DeliveryRecord> deliveries_;
  std::int64_t round_ = 0;
  int live_ranks_ = 0;
  int woken_ = 0;
  bool closed_ = false;
};

Engine::Engine(const RendezvousOptions& options, Carrier& carrier)
    : options_(options), carrier_(&carrier), dice_(options.seed), ranks_(static_cast<std::size_t>(options.world_size)) {
  std::vector<int> everyone;
  for (int rank = 0; rank < options.world_size; ++rank) everyone.push_back(rank);
  live_ranks_ = options.world_size;
  add_group("world", std::move(everyone));
}

Engine::~Engine() { close(); }

void Engine::close() {
  closed_ = true;
  for (Rank& rank : ranks_) {
    for (const std::shared_ptr<Post>& post : rank.unwaited) post->engine = nullptr;
  }
}

Group& Engine::add_group(std::string name, std::vector<int> members) {
  auto group = std::make_unique<Group>();
  group->id = static_cast<int>(groups_.size());
  group->name = std::move(name);
  group->members = std::move(members);
  group->made_calls.resize(group->members.size());
  for (const int rank : group->members) rank_at(rank).groups.push_back(group.get());
  groups_.push_back(std::move(group));
  return *groups_.back();
}

void Engine::check_caller(const RendezvousGroup& group, int rank, std::string_view action) const {
  SHARDPROOF_CHECK(!closed_, state_error, "{} of rank {} in {} after the run has ended", action, rank,
                   group_text(group));
  const int caller = carrier_->calling_rank();
  if (caller == rank) return;
  const bool member = std::find(group.members.begin(), group.members.end(), caller) != group.members.end();
  fail(ErrorKind::collective_error, "{} of rank {} in {} by {}{}: each rank must use its own communicator", action,
       rank, group_text(group), caller < 0 ? std::string("code of no rank") : ranks_text({&caller, 1}),
       member || caller < 0 ? "" : ", which is not a member");
}

std::shared_ptr<Post> Engine::post(const RendezvousGroup& group, int member, Request request, std::string split_name) {
  const int rank = group.members[static_cast<std::size_t>(member)];
  check_caller(group, rank, operation_name(request.operation));
  auto posted = std::make_shared<Post>();
  Post& post = *posted;
  post.engine = this;
  post.group = groups_[static_cast<std::size_t>(group.id)].get();
  post.member = member;
  post.rank = rank;
  post.call = post.group->made_calls[static_cast<std::size_t>(member)];
  post.request = std::move(request);
  post.split_name = std::move(split_name);
  check_alone(post);
  if (options_.mover != nullptr) {
    post.ready = options_.mover->mark_ready(rank);
  } else {
    poison_lines(post.request.receive);
    post.checksum = checksum_of(post.request.send);
  }
  if (!post.request.send_rows.empty()) {
    std::int64_t offset = 0;
    post.send_offsets.reserve(post.request.send_rows.size());
    for (const std::int64_t rows : post.request.send_rows) {
      post.send_offsets.push_back(offset);
      offset += rows;
    }
  }
  ++post.group->made_calls[static_cast<std::size_t>(member)];
  rank_at(rank).posted.push_back(posted);
  rank_at(rank).unwaited.push_back(posted);
  return posted;
}

void Engine::wait(Post& post) {
  check_caller(*post.group, post.rank, "wait");
  Rank& rank = rank_at(post.rank);
  while (!post.executed) {
    rank.waiting = &post;
    carrier_->block(post.rank);
  }
  post.waited = true;
  const auto entry =
      std::find_if(rank.unwaited.begin(), rank.unwaited.end(), [&](const auto& other) { return other.get() == &post; });
  rank.unwaited.erase(entry);
  if (options_.mover != nullptr) return options_.mover->follow(post.rank, *post.moved);
  // A rank that was blocked in this very wait has had no occasion since the data moved.
  if (!post.was_blocked_at_delivery) check_unchanged(post);
}

void Engine::finish(int rank) {
  Rank& state = rank_at(rank);
  state.finished = true;
  if (state.unwaited.empty()) return;
  const Post& post = *state.unwaited.front();
  const std::size_t others = state.unwaited.size() - 1;
  fail(ErrorKind::state_error, "{}: {} was posted but never waited for{}", call_text(post), request_text(post),
       others == 0 ? std::string() : fmt::format(" ({} more posted operations too)", others));
}

void Engine::settle() {
  ++round_;
  woken_ = 0;
  for (Rank& rank : ranks_) {
    for (const std::shared_ptr<Post>& post : rank.posted) accept(post);
    rank.posted.clear();
  }
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank_at(rank).finished && !rank_at(rank).finish_noted) note_end(rank);
  }
  execute_ready();
  if (woken_ == 0 && live_ranks_ > 0 && all_wait()) fail_deadlocked(ranks_, options_.strict_order);
}

void Engine::accept(const std::shared_ptr<Post>& post) {
  Group& group = *post->group;
  if (post->call >= group.closed_from) {
    fail(ErrorKind::collective_error, "rank {} returned, but rank {} waits for it in {}: {}", group.returned_rank,
         post->rank, call_text(*post), request_text(*post));
  }
  while (post->call >= group.first_call + static_cast<std::int64_t>(group.calls.size())) {
    if (group.spare.empty()) {
      group.calls.emplace_back();
    } else {
      group.calls.push_back(std::move(group.spare.back()));
      group.spare.pop_back();
    }
    group.calls.back().posts.resize(group.members.size());
  }
  Call& call = group.call(post->call);
  call.posts[static_cast<std::size_t>(post->member)] = post;
  ++call.arrived;
  if (call.first == nullptr) call.first = post.get();
  check_joined(call, *post);
  if (!options_.strict_order) {
    if (call.arrived == group.size() && post->call == group.first_call) ready_.push_back(&group);
    return;
  }
  std::deque<Post*>& queue = rank_at(post->rank).queue;
  queue.push_back(post.get());
  if (queue.size() == 1) note_head(*post);
}

void Engine::note_head(const Post& post) {
  if (++post.group->call(post.call).at_head == post.group->size()) ready_.push_back(post.group);
}

void Engine::note_end(int rank) {
  rank_at(rank).finish_noted = true;
  --live_ranks_;
  for (Group* group : rank_at(rank).groups) {
    const auto& members = group->members;
    const auto member = std::find(members.begin(), members.end(), rank) - members.begin();
    const std::int64_t made = group->made_calls[static_cast<std::size_t>(member)];
    if (made >= group->closed_from) continue;
    group->closed_from = made;
    group->returned_rank = rank;
    if (made >= group->first_call + static_cast<std::int64_t>(group->calls.size())) continue;
    const Post& waiting = *group->call(made).first;
    fail(ErrorKind::collective_error, "rank {} returned, but rank {} waits for it in {}: {}", rank, waiting.rank,
         call_text(waiting), request_text(waiting));
  }
}

bool Engine::all_wait() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.finished || rank.waiting != nullptr; });
}

void Engine::execute_ready() {
  while (!ready_.empty()) {
    std::swap(ready_[dice_.roll(ready_.size())], ready_.back());
    Group& group = *ready_.back();
    ready_.pop_back();
    execute(group);
  }
}

void Engine::execute(Group& group) {
  Call call = std::move(group.calls.front());
  order_.clear();
  for (int member = 0; member < group.size(); ++member) order_.push_back(member);
  for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[dice_.roll(i)]);

  move(call);
  const Operation operation = call.first->request.operation;
  if (operation == Operation::all_gather_numbers) share_numbers(call);
  if (operation == Operation::split) form_groups(call);
  if (options_.record_deliveries) record(group, call);

  group.calls.pop_front();
  ++group.first_call;
  for (const int member : order_) complete(*call.posts[static_cast<std::size_t>(member)]);
  call.clear();
  group.spare.push_back(std::move(call));
  if (!options_.strict_order && !group.calls.empty() && group.calls.front().arrived == group.size()) {
    ready_.push_back(&group);
  }
}

void Engine::move(Call& call) {
  if (options_.mover == nullptr) return move_data(call);
  std::vector<std::shared_ptr<Mover::Mark>> ready;
  for (const std::shared_ptr<Post>& post : call.posts) ready.push_back(post->ready);
  const std::shared_ptr<Mover::Mark> moved = options_.mover->move(movements_of(call), ready);
  for (const std::shared_ptr<Post>& post : call.posts) post->moved = moved;
}

void Engine::complete(Post& post) {
  Rank& rank = rank_at(post.rank);
  rank.statistics.bytes_sent += bytes_to_others(post);
  ++rank.statistics.calls[static_cast<std::size_t>(post.request.operation)];
  post.executed = true;
  if (options_.strict_order) {
    rank.queue.pop_front();
    if (!rank.queue.empty()) note_head(*rank.queue.front());
  }
  if (rank.waiting != &post) return;
  post.was_blocked_at_delivery = true;
  rank.waiting = nullptr;
  ++woken_;
  carrier_->wake(post.rank);
}

void Engine::share_numbers(const Call& call) {
  auto all = std::make_shared<std::vector<std::int64_t>>();
  for (const std::shared_ptr<Post>& post : call.posts) {
    all->insert(all->end(), post->request.numbers.begin(), post->request.numbers.end());
  }
  for (const std::shared_ptr<Post>& post : call.posts) post->numbers = all;
}

void Engine::form_groups(const Call& call) {
  std::map<std::int64_t, std::vector<Post*>> by_colour;
  for (const std::shared_ptr<Post>& post : call.posts) {
    if (post->request.numbers[0] >= 0) by_colour[post->request.numbers[0]].push_back(post.get());
  }
  for (auto& [colour, posts] : by_colour) {
    std::sort(posts.begin(), posts.end(), [](const Post* a, const Post* b) {
      return std::pair(a->request.numbers[1], a->member) < std::pair(b->request.numbers[1], b->member);
    });
    std::vector<int> members;
    for (const Post* post : posts) {
      members.push_back(post->rank);
      SHARDPROOF_CHECK(post->split_name == posts[0]->split_name, collective_error,
                       "{}: different names for the new group of colour {}: rank {} calls it '{}', rank {} '{}'",
                       call_text(*post), colour, posts[0]->rank, posts[0]->split_name, post->rank, post->split_name);
    }
    const Group& group = add_group(posts[0]->split_name, std::move(members));
    for (std::size_t i = 0; i < posts.size(); ++i) {
      posts[i]->new_group = &group;
      posts[i]->new_member = static_cast<int>(i);
    }
  }
}

void Engine::record(const Group& group, const Call& call) {
  DeliveryRecord& entry = deliveries_.emplace_back();
  entry.round = round_;
  entry.group = group.id;
  entry.group_name = group.name;
  entry.call = group.first_call + 1;
  entry.operation = call.first->request.operation;
  entry.purpose = call.first->request.purpose;
  entry.order = order_;
}

}  // namespace rendezvous

std::int64_t RankStatistics::data_calls() const {
  return calls_of(Operation::all_gather) + calls_of(Operation::all_to_all) + calls_of(Operation::broadcast) +
         calls_of(Operation::scatter) + calls_of(Operation::exchange);
}

RendezvousWork::RendezvousWork(std::shared_ptr<rendezvous::Post> post) : post_(std::move(post)) {}
RendezvousWork::~RendezvousWork() = default;

void RendezvousWork::wait() {
  SHARDPROOF_CHECK(!post_->waited, state_error, "waited twice for {}", rendezvous::request_text(*post_));
  SHARDPROOF_CHECK(post_->engine != nullptr, state_error, "wait for {} after the run has ended",
                   rendezvous::request_text(*post_));
  post_->engine->wait(*post_);
}

std::span<const std::int64_t> RendezvousWork::numbers() const {
  if (!post_->numbers) return {};
  return *post_->numbers;
}

const RendezvousGroup* RendezvousWork::new_group() const { return post_->new_group; }
int RendezvousWork::new_member() const { return post_->new_member; }

Rendezvous::Rendezvous(const RendezvousOptions& options, Carrier& carrier)
    : engine_(std::make_unique<rendezvous::Engine>(options, carrier)) {}
Rendezvous::~Rendezvous() = default;

const RendezvousGroup& Rendezvous::world() const { return engine_->world(); }

std::unique_ptr<RendezvousWork> Rendezvous::post(const RendezvousGroup& group, int member, Request request,
                                                 std::string split_name) {
  return std::make_unique<RendezvousWork>(engine_->post(group, member, std::move(request), std::move(split_name)));
}

std::pair<const RendezvousGroup*, int> Rendezvous::split(const RendezvousGroup& group, int member, int color, int key,
                                                         std::string name) {
  Request request;
  request.operation = Operation::split;
  request.numbers = {color, key};
  const std::unique_ptr<RendezvousWork> work = post(group, member, std::move(request), std::move(name));
  work->wait();
  return {work->new_group(), work->new_member()};
}

void Rendezvous::finish(int rank) { engine_->finish(rank); }
void Rendezvous::settle() { engine_->settle(); }
void Rendezvous::close() { engine_->close(); }
const RankStatistics& Rendezvous::statistics(int rank) const { return engine_->statistics(rank); }
std::vector<DeliveryRecord> Rendezvous::take_deliveries() { return engine_->take_deliveries(); }

}  // namespace shardproof
