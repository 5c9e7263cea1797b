#include "real/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "core/error.h"
#include "core/file.h"

namespace shardproof {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList addresses_of(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  SHARDPROOF_CHECK(status == 0, usage_error, "host '{}' cannot be found: {}", printable(host), ::gai_strerror(status));
  return {found, &::freeaddrinfo};
}

Socket new_socket(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  const int on = 1;
  if (socket.is_open()) {
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return socket;
}

// 0, or the error number.
int wait_for(int descriptor, short events, const Deadline& deadline) {
  for (;;) {
    pollfd entry{descriptor, events, 0};
    const auto left = std::min<std::int64_t>(deadline.left().count(), std::numeric_limits<int>::max());
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready > 0) return 0;
    if (ready == 0 && deadline.is_over()) return ETIMEDOUT;
    if (ready < 0 && errno != EINTR) return errno;
  }
}

int finish_connecting(const Socket& socket, const addrinfo& address, const Deadline& deadline) {
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS && errno != EINTR) return errno;
  if (const int error = wait_for(socket.get(), POLLOUT, deadline); error != 0) return error;
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

bool should_wait(ssize_t count) { return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR); }

Transfer transfer_of(int error) { return error == ETIMEDOUT ? Transfer::timed_out : Transfer::failed; }

}  // namespace

std::chrono::milliseconds Deadline::left() const {
  const auto left = end_ - std::chrono::steady_clock::now();
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(0));
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = other.release();
  }
  return *this;
}

int Socket::release() { return std::exchange(descriptor_, -1); }

void Socket::close() {
  if (descriptor_ >= 0) ::close(release());
}

SocketOrError listen_on(const std::string& host, int port) {
  const AddressList addresses = addresses_of(host, port);
  SocketOrError result;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    result.socket = new_socket(*address);
    constexpr int kBacklog = 1024;
    if (result.socket.is_open() && ::bind(result.socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(result.socket.get(), kBacklog) == 0) {
      result.error = 0;
      return result;
    }
    result.error = errno;
    result.socket.close();
  }
  return result;
}

SocketOrError connect_to(const std::string& host, int port, const Deadline& deadline) {
  const AddressList addresses = addresses_of(host, port);
  SocketOrError result;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    result.socket = new_socket(*address);
    result.error = result.socket.is_open() ? finish_connecting(result.socket, *address, deadline) : errno;
    if (result.error == 0) return result;
    result.socket.close();
  }
  return result;
}

int port_of_listening(int descriptor) {
  int listens = 0;
  socklen_t size = sizeof listens;
  const bool is_socket = ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0;
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  const bool has_name = ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  SHARDPROOF_CHECK(is_socket && listens != 0 && has_name, usage_error, "descriptor {} is no listening socket",
                   descriptor);
  // The port lies at the same place for both families.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string_view transfer_text(Transfer transfer) {
  switch (transfer) {
    case Transfer::done: return "was done";
    case Transfer::closed: return "the other side closed the connection";
    case Transfer::timed_out: return "the other side was silent";
    case Transfer::failed: return "the connection broke";
  }
  fail(ErrorKind::internal_error, "transfer {} does not exist", static_cast<int>(transfer));
}

Transfer receive_all(const Socket& socket, std::span<std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (count == 0) return Transfer::closed;
    if (count > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (!should_wait(count)) {
      return errno == ECONNRESET ? Transfer::closed : Transfer::failed;
    } else if (const int error = wait_for(socket.get(), POLLIN, deadline); error != 0) {
      return transfer_of(error);
    }
  }
  return Transfer::done;
}

Transfer send_all(const Socket& socket, std::span<const std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    } else if (!should_wait(count)) {
      return errno == EPIPE || errno == ECONNRESET ? Transfer::closed : Transfer::failed;
    } else if (const int error = wait_for(socket.get(), POLLOUT, deadline); error != 0) {
      return transfer_of(error);
    }
  }
  return Transfer::done;
}

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace shardproof
