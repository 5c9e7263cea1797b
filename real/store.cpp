#include "real/store.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "real/peer_failure.h"

namespace shardproof {
namespace {

using std::chrono::milliseconds;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Receives a reply; nothing if it is none.
struct Received {
  Transfer transfer = Transfer::done;
  std::optional<StoreReply> reply;
};

Received receive_store_reply(const Socket& socket, const Deadline& deadline) {
  std::string bytes(StoreReply::kHeaderBytes, '\0');
  const auto writable = [](std::string& text) { return std::as_writable_bytes(std::span(text.data(), text.size())); };
  Transfer transfer = receive_all(socket, writable(bytes), deadline);
  if (transfer != Transfer::done) return {transfer, std::nullopt};
  const std::optional<StoreReply::Header> header = StoreReply::decoded_header(bytes);
  if (!header) return {};
  std::string text(header->text_bytes, '\0');
  transfer = receive_all(socket, writable(text), deadline);
  if (transfer != Transfer::done) return {transfer, std::nullopt};
  return {transfer, StoreReply{header->answer, header->number, std::move(text)}};
}

// What became of one attempt to be let in.
struct Attempt {
  Socket socket;        // open if it was successful
  std::string problem;  // otherwise
  bool is_final = false;
  bool ran_out_of_time = false;
};

Attempt attempt_at(const std::string& host, int port, const StoreHello& hello, const Deadline& deadline) {
  SocketOrError connected = connect_to(host, port, deadline);
  if (connected.error != 0) return {{}, error_text(connected.error), false, connected.error == ETIMEDOUT};
  Transfer transfer = send_all(connected.socket, bytes_of(hello.encoded()), deadline);
  Received received;
  if (transfer == Transfer::done) received = receive_store_reply(connected.socket, deadline);
  if (transfer == Transfer::done) transfer = received.transfer;
  if (transfer != Transfer::done) {
    return {{},
            fmt::format("it was reached, but {} instead of greeting", transfer_text(transfer)),
            false,
            transfer == Transfer::timed_out};
  }
  if (!received.reply) return {{}, "what answers there is no store of shardproof"};
  if (received.reply->answer == StoreAnswer::done) return {std::move(connected.socket), {}};
  return {{}, printable(received.reply->text, 2000), received.reply->answer == StoreAnswer::refused};
}

}  // namespace

Store::Store(const StoreAddress& address, const StoreHello& hello, milliseconds patience)
    : rank_(static_cast<int>(hello.rank)), world_size_(static_cast<int>(hello.world_size)) {
  const Deadline deadline(patience);
  constexpr milliseconds kBetweenAttempts{20}, kLongestAttempt{2000};
  std::string problem;
  for (;;) {
    for (const int port : address.ports) {
      // Where there are several ports, a silent stranger on one must not use up the time for the others.
      const Deadline end(address.ports.size() > 1 ? std::min(deadline.left(), kLongestAttempt) : deadline.left());
      Attempt attempt = attempt_at(address.host, port, hello, end);
      place_ = StoreAddress{address.host, {port}}.text();
      if (attempt.socket.is_open()) {
        socket_ = std::move(attempt.socket);
        return;
      }
      // The last attempt may have had too little time to learn anything.
      if (problem.empty() || !attempt.ran_out_of_time) problem = fmt::format("{}: {}", place_, attempt.problem);
      if (attempt.is_final) fail_for_peer("the store at {} refuses this process: {}", place_, attempt.problem);
    }
    if (deadline.left() <= kBetweenAttempts) break;
    std::this_thread::sleep_for(kBetweenAttempts);
  }
  fail_for_peer("rank {} of {} found no store of rank 0 at {} within {}; what was found: {}", rank_, world_size_,
                printable(address.text()), seconds_text(patience), problem);
}

void Store::fail_call(const StoreRequest& request, std::string_view why) const {
  fail_for_peer("rank {} of {}, store at {}: {} '{}': {}", rank_, world_size_, place_, store_call_name(request.call),
                printable(request.key), why);
}

StoreReply Store::receive_reply(const StoreRequest& request, const Deadline& deadline) {
  if (!socket_.is_open()) fail_call(request, "the connection is closed since an earlier call failed");
  Transfer transfer = send_all(socket_, bytes_of(request.encoded()), deadline);
  Received received;
  if (transfer == Transfer::done) received = receive_store_reply(socket_, deadline);
  if (transfer == Transfer::done) transfer = received.transfer;
  if (transfer == Transfer::done && received.reply) return *std::move(received.reply);
  socket_.close();  // a late reply would be taken for that of the next call
  if (transfer == Transfer::done) fail_call(request, "the reply is malformed");
  if (transfer == Transfer::closed) fail_call(request, "the store has vanished: rank 0 closed the connection");
  fail_call(request, transfer == Transfer::timed_out ? "the store did not answer in time" : transfer_text(transfer));
}

StoreReply Store::answered(const StoreRequest& request, milliseconds patience) {
  SHARDPROOF_CHECK(!request.key.empty() && request.key.size() <= kMaxStoreKeyBytes, usage_error,
                   "store: the key '{}' has {} bytes; expected 1 to {}", printable(request.key), request.key.size(),
                   kMaxStoreKeyBytes);
  SHARDPROOF_CHECK(request.value.size() <= kMaxStoreValueBytes, usage_error,
                   "store: the value of '{}' has {} bytes; expected at most {}", printable(request.key),
                   request.value.size(), kMaxStoreValueBytes);
  StoreReply reply = receive_reply(request, Deadline(patience));
  if (reply.answer == StoreAnswer::refused) fail_call(request, printable(reply.text, 2000));
  if (reply.answer == StoreAnswer::other_run) fail_call(request, "the reply is malformed");
  return reply;
}

StoreReply Store::call(const StoreRequest& request, milliseconds patience) {
  StoreRequest bounded = request;
  // The store answers a little before the time is over, so that its words arrive in time.
  constexpr milliseconds kLongest{1'000'000'000};
  bounded.patience = std::min(patience - std::min(milliseconds(200), patience / 5), kLongest);
  StoreReply reply = answered(bounded, patience);
  if (reply.answer == StoreAnswer::timed_out) {
    fail_call(request, fmt::format("{} within {}", printable(reply.text, 2000), seconds_text(patience)));
  }
  return reply;
}

void Store::set(const std::string& key, std::string value, milliseconds patience) {
  call({.call = StoreCall::set, .key = key, .value = std::move(value)}, patience);
}

std::string Store::get(const std::string& key, milliseconds patience) {
  return call({.call = StoreCall::get, .key = key, .value = {}}, patience).text;
}

void Store::wait(const std::string& key, milliseconds patience) {
  call({.call = StoreCall::wait, .key = key, .value = {}}, patience);
}

std::optional<std::string> Store::get_if_set(const std::string& key, milliseconds patience) {
  StoreReply reply = answered({.call = StoreCall::get, .key = key, .value = {}}, patience);
  if (reply.answer == StoreAnswer::timed_out) return std::nullopt;
  return std::move(reply.text);
}

std::int64_t Store::add(const std::string& key, std::int64_t delta, milliseconds patience) {
  return call({.call = StoreCall::add, .key = key, .value = {}, .delta = delta}, patience).number;
}

void Store::barrier(const std::string& name, milliseconds patience) {
  call({.call = StoreCall::barrier, .key = name, .value = {}}, patience);
}

}  // namespace shardproof
