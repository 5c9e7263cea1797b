// The movement itself: rows copied between host-addressable buffers, and the checksums that show a buffer changed while
// it was being sent.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/checksum.h"
#include "core/error.h"
#include "core/host_parallel.h"
#include "core/rendezvous_state.h"

namespace shardproof::rendezvous {
namespace {

// Copies `rows` rows from the sender's row `from` to the receiver's row `to`.
void copy_rows(const Post& sender, std::int64_t from, const Post& receiver, std::int64_t to, std::int64_t rows) {
  const std::size_t bytes = row_bytes(receiver.request);
  const std::size_t count = static_cast<std::size_t>(rows) * bytes;
  if (count == 0) return;
  std::memcpy(receiver.request.receive.data() + static_cast<std::size_t>(to) * bytes,
              sender.request.send.data() + static_cast<std::size_t>(from) * bytes, count);
}

const Post& post_of(const Call& call, int member) { return *call.posts[static_cast<std::size_t>(member)]; }

std::int64_t offset_for(const Post& sender, const Post& receiver) {
  return sender.send_offsets[static_cast<std::size_t>(receiver.member)];
}

// all_gather and all_to_all: the rows of all members, in member order.
void deliver_from_all(const Call& call, const Post& receiver) {
  const bool personal = receiver.request.operation == Operation::all_to_all;
  std::int64_t to = 0;
  for (const std::shared_ptr<Post>& sender : call.posts) {
    const std::int64_t rows = receiver.request.receive_rows[static_cast<std::size_t>(sender->member)];
    copy_rows(*sender, personal ? offset_for(*sender, receiver) : 0, receiver, to, rows);
    to += rows;
  }
}

bool is_unchanged(const Post& post) { return checksum_of(post.request.send) == post.checksum; }

// Fills the receive buffer of one member.
void deliver(const Call& call, const Post& receiver) {
  const Request& request = receiver.request;
  switch (request.operation) {
    case Operation::all_gather:
    case Operation::all_to_all: deliver_from_all(call, receiver); break;
    case Operation::broadcast: copy_rows(post_of(call, request.root), 0, receiver, 0, rows_of(request.receive)); break;
    case Operation::scatter: {
      const Post& root = post_of(call, request.root);
      copy_rows(root, offset_for(root, receiver), receiver, 0, rows_of(request.receive));
      break;
    }
    case Operation::exchange:
      if (request.from >= 0) copy_rows(post_of(call, request.from), 0, receiver, 0, rows_of(request.receive));
      break;
    case Operation::barrier:
    case Operation::all_gather_numbers:
    case Operation::split: break;
  }
}

}  // namespace

void poison_lines(const Tensor& tensor) {
  if (!tensor.defined()) return;
  constexpr std::size_t kLine = 64, kDistance = 4096;
  const std::size_t bytes = tensor.bytes();
  for (std::size_t offset = 0; offset < bytes; offset += kDistance) {
    std::memset(tensor.data() + offset, 0xFF, bytes <= kDistance ? bytes : std::min(kLine, bytes - offset));
  }
}

void check_unchanged(const Post& post) {
  SHARDPROOF_CHECK(is_unchanged(post), state_error, "{}: rank {} changed {} while it was being sent: {}",
                   call_text(post), post.rank, post.request.send.text(), request_text(post));
}

void move_data(const Call& call) {
  const Operation operation = call.first->request.operation;
  const auto members = static_cast<std::int64_t>(call.posts.size());
  const Tensor& received = call.first->request.receive;
  const std::int64_t steps = received.defined() ? received.numel() : 1;
  // What each member sent is read for the check just before it is copied, where one member alone receives it.
  const bool has_one_receiver = operation == Operation::exchange;
  std::vector<char> unchanged(call.posts.size(), 1);
  const auto check = [&](int member) {
    unchanged[static_cast<std::size_t>(member)] = is_unchanged(post_of(call, member)) ? 1 : 0;
  };
  if (!has_one_receiver) {
    for_ranges(members, steps, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t member = first; member < last; ++member) check(static_cast<int>(member));
    });
  }
  // Receivers have buffers of their own, so that they can be filled at once.
  for_ranges(members, steps, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t member = first; member < last; ++member) {
      const Post& receiver = post_of(call, static_cast<int>(member));
      if (has_one_receiver && receiver.request.from >= 0) check(receiver.request.from);
      deliver(call, receiver);
    }
  });
  for (std::size_t member = 0; member < unchanged.size(); ++member) {
    if (unchanged[member] == 0) check_unchanged(*call.posts[member]);
  }
}

std::int64_t bytes_to_others(const Post& post) {
  const Request& request = post.request;
  std::int64_t rows = 0;
  switch (request.operation) {
    case Operation::all_gather: rows = rows_of(request.send) * (post.group->size() - 1); break;
    case Operation::all_to_all:
      rows = rows_of(request.send) - request.send_rows[static_cast<std::size_t>(post.member)];
      break;
    case Operation::broadcast:
      if (request.root == post.member) rows = rows_of(request.send) * (post.group->size() - 1);
      break;
    case Operation::scatter:
      if (request.root == post.member) {
        rows = rows_of(request.send) - request.send_rows[static_cast<std::size_t>(post.member)];
      }
      break;
    case Operation::exchange:
      if (request.to >= 0 && request.to != post.member) rows = rows_of(request.send);
      break;
    case Operation::barrier:
    case Operation::all_gather_numbers:
    case Operation::split: break;
  }
  return rows * static_cast<std::int64_t>(row_bytes(request));
}

}  // namespace shardproof::rendezvous
