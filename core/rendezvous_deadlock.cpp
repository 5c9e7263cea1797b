// The report of a deadlock: computed only when nobody can run. Every rank that has not ended waits for an operation
// that some member has not reached, so following "waits for" from any rank leads into a cycle.
#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/rendezvous_state.h"

namespace shardproof::rendezvous {
namespace {

struct Obstacle {
  const Post* held = nullptr;  // the rank's own operation that cannot execute
  std::vector<int> missing;    // world ranks that have not reached it, in member order
};

class DeadlockReport {
 public:
  DeadlockReport(std::span<Rank> ranks, bool strict_order) : ranks_(ranks), strict_order_(strict_order) {}

  std::string text() const {
    std::vector<int> blocked;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].waiting != nullptr) blocked.push_back(static_cast<int>(rank));
    }
    std::string text = fmt::format("deadlock: {} and none can run", blocked_text(blocked));
    for (const int rank : std::span(blocked).first(std::min(blocked.size(), kListedRanks))) {
      text += "\n  " + line_of(rank);
    }
    if (blocked.size() > kListedRanks) text += fmt::format("\n  and {} more ranks", blocked.size() - kListedRanks);
    return text + "\n  cycle: " + cycle_from(blocked.front());
  }

 private:
  static std::string blocked_text(std::span<const int> blocked) {
    return blocked.size() == 1 ? "1 rank waits" : fmt::format("{} ranks wait", blocked.size());
  }

  const Rank& rank_at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  // The operation of `rank` in the same call, or null if it has not been posted.
  static const Post* counterpart(const Post& post, std::size_t member) {
    return post.group->call(post.call).posts[member].get();
  }

  Obstacle obstacle_of(int rank) const {
    Obstacle obstacle;
    obstacle.held = strict_order_ ? rank_at(rank).queue.front() : rank_at(rank).waiting;
    const Group& group = *obstacle.held->group;
    for (std::size_t member = 0; member < group.members.size(); ++member) {
      const int other = group.members[member];
      const Post* theirs = counterpart(*obstacle.held, member);
      const bool reached = theirs != nullptr && (!strict_order_ || rank_at(other).queue.front() == theirs);
      if (!reached) obstacle.missing.push_back(other);
    }
    return obstacle;
  }

  std::string line_of(int rank) const {
    const Obstacle obstacle = obstacle_of(rank);
    const Post& wanted = *rank_at(rank).waiting;
    std::string line = fmt::format("rank {} waits in {}: {}", rank, call_text(wanted), request_text(wanted));
    if (obstacle.held != &wanted) {
      line += fmt::format("; before it comes {}: {}", call_text(*obstacle.held), request_text(*obstacle.held));
    }
    const int absent = obstacle.missing.front();
    const auto& members = obstacle.held->group->members;
    const auto member = std::find(members.begin(), members.end(), absent) - members.begin();
    if (counterpart(*obstacle.held, static_cast<std::size_t>(member)) == nullptr) {
      line += fmt::format("; missing: {}", ranks_text(obstacle.missing));
    } else {
      const Post& before = *rank_at(absent).queue.front();
      line += fmt::format("; {} has it queued behind {}: {}", ranks_text({&absent, 1}), call_text(before),
                          request_text(before));
    }
    return line;
  }

  std::string cycle_from(int rank) const {
    std::vector<int> path;
    while (std::find(path.begin(), path.end(), rank) == path.end()) {
      path.push_back(rank);
      rank = obstacle_of(rank).missing.front();
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), rank));
    const std::size_t listed = std::min(path.size(), kListedRanks);
    std::string text = fmt::format("rank {}", path[0]);
    for (std::size_t i = 0; i < listed; ++i) {
      const Obstacle obstacle = obstacle_of(path[i]);
      text += fmt::format("{} waits in {} for rank {}", i == 0 ? "" : ", which", obstacle.held->group->name,
                          obstacle.missing.front());
    }
    if (path.size() > listed) text += fmt::format(", and so on over {} ranks back to rank {}", path.size(), path[0]);
    return text;
  }

  std::span<Rank> ranks_;
  bool strict_order_;
};

}  // namespace

void fail_deadlocked(std::span<Rank> ranks, bool strict_order) {
  throw Error(ErrorKind::deadlock_error, DeadlockReport(ranks, strict_order).text());
}

}  // namespace shardproof::rendezvous
