// The movement itself: rows copied between host-addressable buffers, or shared where many or large buffers would end up
// with the same bytes; and the checksums that show a buffer changed while it was being sent.
#include <algorithm>
#include <cstring>
#include <numeric>
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

// all_to_all: what the members have for the receiver, in member order.
void deliver_from_all(const Call& call, const Post& receiver) {
  std::int64_t to = 0;
  for (const std::shared_ptr<Post>& sender : call.posts) {
    const std::int64_t rows = receiver.request.receive_rows[static_cast<std::size_t>(sender->member)];
    copy_rows(*sender, offset_for(*sender, receiver), receiver, to, rows);
    to += rows;
  }
}

bool is_unchanged(const Post& post) { return checksum_of(post.request.send) == post.checksum; }

// Makes `receive` hold the bytes of `sent`, without moving them where that is possible and worth it.
void take_over(const Tensor& receive, const Tensor& sent) {
  constexpr std::size_t kWorthSharing = 16 * 1024;
  const std::size_t bytes = receive.bytes();
  if (bytes == 0) return;
  const bool is_whole = receive.bytes() == receive.storage()->bytes();
  if (is_whole && bytes >= kWorthSharing && receive.storage()->share(*sent.storage(), sent.data())) return;
  std::memcpy(receive.data(), sent.data(), bytes);
}

// Fills the receive buffer of one member, which is nobody else's.
void deliver(const Call& call, const Post& receiver) {
  const Request& request = receiver.request;
  if (request.operation == Operation::all_to_all) return deliver_from_all(call, receiver);
  const Post& root = post_of(call, request.root);
  copy_rows(root, offset_for(root, receiver), receiver, 0, rows_of(request.receive));
}

// all_gather: all members have the same rows in the end, so they are put together once.
void deliver_to_all(const Call& call) {
  const Post& first = post_of(call, 0);
  const auto members = static_cast<std::int64_t>(call.posts.size());
  std::vector<std::int64_t> offsets(call.posts.size(), 0);
  const std::vector<std::int64_t>& rows = first.request.receive_rows;
  std::partial_sum(rows.begin(), rows.end() - 1, offsets.begin() + 1);
  for_ranges(members, first.request.receive.numel() / members, [&](std::int64_t from, std::int64_t to) {
    for (auto member = static_cast<std::size_t>(from); member < static_cast<std::size_t>(to); ++member) {
      copy_rows(*call.posts[member], 0, first, offsets[member], rows[member]);
    }
  });
  for (const std::shared_ptr<Post>& post : call.posts) {
    if (post->member != 0) take_over(post->request.receive, first.request.receive);
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
  const auto members = static_cast<std::int64_t>(call.posts.size());
  const Tensor& received = call.first->request.receive;
  const std::int64_t steps = received.defined() ? received.numel() : 1;
  std::vector<char> unchanged(call.posts.size(), 1);
  for_ranges(members, steps, [&](std::int64_t first, std::int64_t last) {
    for (auto member = static_cast<std::size_t>(first); member < static_cast<std::size_t>(last); ++member) {
      unchanged[member] = is_unchanged(*call.posts[member]) ? 1 : 0;
    }
  });
  for (std::size_t member = 0; member < unchanged.size(); ++member) {
    if (unchanged[member] == 0) check_unchanged(*call.posts[member]);
  }
  switch (call.first->request.operation) {
    case Operation::all_gather: return deliver_to_all(call);
    case Operation::broadcast:
    case Operation::exchange:
      for (const std::shared_ptr<Post>& receiver : call.posts) {
        const Request& request = receiver->request;
        const int sender = request.operation == Operation::exchange ? request.from : request.root;
        if (sender >= 0) take_over(request.receive, post_of(call, sender).request.send);
      }
      return;
    case Operation::all_to_all:
    case Operation::scatter:
      return for_ranges(members, steps, [&](std::int64_t first, std::int64_t last) {
        for (auto member = static_cast<std::size_t>(first); member < static_cast<std::size_t>(last); ++member) {
          deliver(call, *call.posts[member]);
        }
      });
    case Operation::barrier:
    case Operation::all_gather_numbers:
    case Operation::split: return;
  }
}

std::vector<Movement> movements_of(const Call& call) {
  std::vector<Movement> movements;
  const auto add = [&](const Post& sender, std::int64_t from, const Post& receiver, std::int64_t to,
                       std::int64_t rows) {
    const std::size_t bytes = row_bytes(receiver.request);
    if (rows <= 0 || bytes == 0) return;
    movements.push_back({.from = sender.rank,
                         .to = receiver.rank,
                         .source = sender.request.send.data() + static_cast<std::size_t>(from) * bytes,
                         .target = receiver.request.receive.data() + static_cast<std::size_t>(to) * bytes,
                         .bytes = static_cast<std::size_t>(rows) * bytes,
                         .event = receiver.request.event});
  };
  for (const std::shared_ptr<Post>& receiver : call.posts) {
    const Request& request = receiver->request;
    const std::int64_t all = rows_of(request.receive);
    std::int64_t to = 0;
    switch (request.operation) {
      case Operation::all_gather:
      case Operation::all_to_all:
        for (const std::shared_ptr<Post>& sender : call.posts) {
          const std::int64_t rows = request.receive_rows[static_cast<std::size_t>(sender->member)];
          const bool is_gather = request.operation == Operation::all_gather;
          add(*sender, is_gather ? 0 : offset_for(*sender, *receiver), *receiver, to, rows);
          to += rows;
        }
        break;
      case Operation::broadcast: add(post_of(call, request.root), 0, *receiver, 0, all); break;
      case Operation::scatter: {
        const Post& root = post_of(call, request.root);
        add(root, offset_for(root, *receiver), *receiver, 0, all);
        break;
      }
      case Operation::exchange:
        if (request.from >= 0) add(post_of(call, request.from), 0, *receiver, 0, all);
        break;
      case Operation::barrier:
      case Operation::all_gather_numbers:
      case Operation::split: break;
    }
  }
  return movements;
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
