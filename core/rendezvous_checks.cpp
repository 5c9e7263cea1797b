// The comparison of what the members of a group posted for one call, and the words for what differs. Each post is
// compared with the first post of its call and with its own peers only, so that a ring of W ranks costs W checks a
// step.
#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/rendezvous_state.h"

namespace shardproof::rendezvous {
namespace {

constexpr std::size_t kRequestCharacters = 400;

const Post* arrived(const Call& call, int member) { return call.posts[static_cast<std::size_t>(member)].get(); }

int world_rank(const Post& post, int member) {
  return member < 0 ? -1 : post.group->members[static_cast<std::size_t>(member)];
}

std::string peer_text(const Post& post, int member) {
  return member < 0 ? "nobody" : fmt::format("rank {}", world_rank(post, member));
}

// What both sides posted, to end a message with.
std::string both_texts(const Post& a, const Post& b) {
  return fmt::format("rank {} posted [{}], rank {} posted [{}]", a.rank, request_text(a), b.rank, request_text(b));
}

std::string_view first_difference(const Request& a, const Request& b) {
  if (a.operation != b.operation) return "operations";
  if (a.purpose != b.purpose) return "purposes";
  if (a.reduction != b.reduction) return "reductions";
  if (a.dtype != b.dtype) return "element types";
  if (a.row_shape != b.row_shape) return "row shapes";
  if (a.root != b.root) return "roots";
  if (a.operation == Operation::all_gather && a.receive_rows != b.receive_rows) return "row counts of the gather";
  if (a.operation == Operation::broadcast && rows_of(a.receive) != rows_of(b.receive)) return "rows of the broadcast";
  if (a.numbers.size() != b.numbers.size()) return "counts of numbers";
  return {};
}

// Rows that `sender` sends to the member `receiver` against the rows expected there.
void check_rows(const Post& sender, const Post& receiver, std::int64_t sent, std::int64_t expected) {
  SHARDPROOF_CHECK(sent == expected, collective_error, "{}: rank {} sends {} rows to rank {}, which expects {}: {}",
                   call_text(receiver), sender.rank, sent, receiver.rank, expected, both_texts(sender, receiver));
}

// `sender` sends to the member of `receiver`, or `receiver` receives from that of `sender`: both must say so.
void check_link(const Post& sender, const Post& receiver) {
  SHARDPROOF_CHECK(receiver.request.from == sender.member, collective_error,
                   "{}: rank {} sends to rank {}, which receives from {}: {}", call_text(sender), sender.rank,
                   receiver.rank, peer_text(receiver, receiver.request.from), both_texts(sender, receiver));
  SHARDPROOF_CHECK(sender.request.to == receiver.member, collective_error,
                   "{}: rank {} receives from rank {}, which sends to {}: {}", call_text(sender), receiver.rank,
                   sender.rank, peer_text(sender, sender.request.to), both_texts(sender, receiver));
  check_rows(sender, receiver, rows_of(sender.request.send), rows_of(receiver.request.receive));
}

// Notes that `post` names member `peer`; throws if another member has named it before.
void claim(const Call& call, std::vector<int>& claims, const Post& post, int peer, std::string_view what) {
  if (claims.empty()) claims.resize(post.group->members.size(), -1);
  int& claimed_by = claims[static_cast<std::size_t>(peer)];
  if (claimed_by >= 0) {
    const Post& other = *arrived(call, claimed_by);
    fail(ErrorKind::collective_error, "{}: rank {} and rank {} both {} rank {}: {}", call_text(post), other.rank,
         post.rank, what, world_rank(post, peer), both_texts(other, post));
  }
  claimed_by = post.member;
}

void check_exchange(Call& call, const Post& post) {
  const int to = post.request.to;
  const int from = post.request.from;
  if (to >= 0) {
    if (const Post* target = arrived(call, to)) check_link(post, *target);
    claim(call, call.sender_to, post, to, "send to");
  }
  if (from >= 0) {
    if (const Post* source = arrived(call, from)) check_link(*source, post);
    claim(call, call.receiver_from, post, from, "receive from");
  }
  // What others said of this member before it arrived.
  const auto me = static_cast<std::size_t>(post.member);
  if (!call.sender_to.empty() && call.sender_to[me] >= 0) check_link(*arrived(call, call.sender_to[me]), post);
  if (!call.receiver_from.empty() && call.receiver_from[me] >= 0) {
    check_link(post, *arrived(call, call.receiver_from[me]));
  }
}

void check_all_to_all(const Call& call, const Post& post) {
  for (int peer = 0; peer < post.group->size(); ++peer) {
    const Post* other = arrived(call, peer);
    if (other == nullptr) continue;
    const auto me = static_cast<std::size_t>(post.member);
    const auto them = static_cast<std::size_t>(peer);
    check_rows(post, *other, post.request.send_rows[them], other->request.receive_rows[me]);
    check_rows(*other, post, other->request.send_rows[me], post.request.receive_rows[them]);
  }
}

void check_scatter(const Call& call, const Post& post) {
  const Post* root = arrived(call, post.request.root);
  if (root == nullptr) return;
  const auto check_member = [&](const Post& member) {
    check_rows(*root, member, root->request.send_rows[static_cast<std::size_t>(member.member)],
               rows_of(member.request.receive));
  };
  if (root != &post) {
    check_member(post);
    return;
  }
  for (const std::shared_ptr<Post>& member : call.posts) {
    if (member) check_member(*member);
  }
}

bool overlap(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || a.bytes() == 0 || b.bytes() == 0 || a.storage() != b.storage()) return false;
  return a.data() < b.data() + b.bytes() && b.data() < a.data() + a.bytes();
}

}  // namespace

std::int64_t rows_of(const Tensor& tensor) { return tensor.defined() ? tensor.size(0) : 0; }

std::size_t row_bytes(const Request& request) {
  return static_cast<std::size_t>(request.row_shape.numel()) * request.dtype.size();
}

std::string ranks_text(std::span<const int> ranks) {
  const std::span<const int> listed = ranks.first(std::min(ranks.size(), kListedRanks));
  std::string text = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(listed, ", "));
  if (ranks.size() > listed.size()) text += fmt::format(" and {} more", ranks.size() - listed.size());
  return text;
}

std::string group_text(const RendezvousGroup& group) {
  if (group.id == 0) return group.name;
  const std::span<const int> members = group.members;
  const std::span<const int> listed = members.first(std::min(members.size(), kListedRanks));
  return fmt::format("{} {{{}{}}}", group.name, fmt::join(listed, ", "), members.size() > listed.size() ? ", .." : "");
}

std::string call_text(const Post& post) { return fmt::format("{}, call {}", group_text(*post.group), post.call + 1); }

std::string request_text(const Post& post) {
  std::string text = post.request.text();
  if (text.size() > kRequestCharacters) text = text.substr(0, kRequestCharacters) + " ..";
  return text;
}

void check_alone(const Post& post) {
  const Request& request = post.request;
  SHARDPROOF_CHECK(!overlap(request.send, request.receive), collective_error,
                   "{}: the send and the receive tensor overlap: {}", call_text(post), request_text(post));
  if (request.operation == Operation::broadcast && request.root == post.member) {
    SHARDPROOF_CHECK(rows_of(request.send) == rows_of(request.receive), collective_error,
                     "{}: the root sends {} rows but receives {}: {}", call_text(post), rows_of(request.send),
                     rows_of(request.receive), request_text(post));
  }
  if (request.operation == Operation::exchange && request.from < 0) {
    SHARDPROOF_CHECK(rows_of(request.receive) == 0, collective_error, "{}: expects {} rows from nobody: {}",
                     call_text(post), rows_of(request.receive), request_text(post));
  }
}

void check_joined(Call& call, const Post& post) {
  const Post& first = *call.first;
  const std::string_view difference = first_difference(first.request, post.request);
  SHARDPROOF_CHECK(difference.empty(), collective_error, "{}: different {}: {}", call_text(post), difference,
                   both_texts(first, post));
  switch (post.request.operation) {
    case Operation::exchange: check_exchange(call, post); break;
    case Operation::all_to_all: check_all_to_all(call, post); break;
    case Operation::scatter: check_scatter(call, post); break;
    case Operation::all_gather:
    case Operation::broadcast:
    case Operation::barrier:
    case Operation::all_gather_numbers:
    case Operation::split: break;
  }
}

}  // namespace shardproof::rendezvous
