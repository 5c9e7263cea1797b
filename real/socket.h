// TCP sockets whose every call has a deadline: what the store is made of. All sockets are non-blocking, closed on exec
// unless they are handed to a program on purpose, and never raise SIGPIPE.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shardproof {

// A moment until which something must have happened.
class Deadline {
 public:
  explicit Deadline(std::chrono::milliseconds from_now) : end_(std::chrono::steady_clock::now() + from_now) {}
  bool is_over() const { return std::chrono::steady_clock::now() >= end_; }
  // Not negative; rounded up, so that a wait of so long ends behind the deadline and not just before it.
  std::chrono::milliseconds left() const;
  std::chrono::steady_clock::time_point end() const { return end_; }

 private:
  std::chrono::steady_clock::time_point end_;
};

// Owns a descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  int release();
  void close();

 private:
  int descriptor_ = -1;
};

// A socket, or the error number for which there is none.
struct SocketOrError {
  Socket socket;
  int error = 0;
};

// Both throw usage_error for a host whose name means nothing.
SocketOrError listen_on(const std::string& host, int port);  // port 0: any free one
SocketOrError connect_to(const std::string& host, int port, const Deadline& deadline);

// The port on which it listens. usage_error if the descriptor is no listening TCP socket.
int port_of_listening(int descriptor);

enum class Transfer : std::uint8_t {
  done,
  closed,     // by the other side, in the middle
  timed_out,  // the deadline passed
  failed,     // an error of the network
};
std::string_view transfer_text(Transfer transfer);
// All of it.
Transfer receive_all(const Socket& socket, std::span<std::byte> bytes, const Deadline& deadline);
Transfer send_all(const Socket& socket, std::span<const std::byte> bytes, const Deadline& deadline);

// "Connection refused".
std::string error_text(int error);

}  // namespace shardproof
