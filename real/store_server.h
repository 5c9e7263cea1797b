// The store of a run: keys with values, counters and barriers that all ranks share before they have any other way to
// talk. Rank 0 keeps it, in a thread of its own; the clients are in real/store.h.
//
// A peer says hello first: magic, version, run, rank, number of ranks, a hash of the configuration. Who says something
// else is cut off at the first byte that differs, who belongs to another run is told so, and a rank of this run that
// was started differently is refused in words, here and at every barrier that waits for it. After that, lengths are
// checked before anything is read, and one request of a peer is looked at at a time, so a peer can hold no more memory
// than one request and one reply.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "real/socket.h"
#include "real/store_address.h"

namespace shardproof {

struct StoreSettings {
  int world_size = 1;
  std::uint64_t configuration = 0;  // hash of what all ranks must have in common
  std::uint64_t run = 0;
  std::chrono::milliseconds handshake_time{5000};  // for how long a peer may be silent before it has said hello
  std::size_t most_strangers = 64;                 // connections that have not said hello; the oldest makes place
  std::size_t most_bytes = std::size_t{64} << 20;  // of keys and values
};

class StoreServer {
 public:
  // Listens on the first port of the address that is free. usage_error, naming them, if none is, or if the host is no
  // address of this machine.
  StoreServer(const StoreAddress& address, const StoreSettings& settings);
  // With a socket that listens already.
  StoreServer(Socket listening, const StoreSettings& settings);
  // Closes all connections: clients that wait are told by that.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const { return port_; }

 private:
  class Loop;
  int port_ = 0;
  std::unique_ptr<Loop> loop_;
};

// A socket that listens on the first free port of the address; usage_error as above.
Socket listening_socket(const StoreAddress& address);

}  // namespace shardproof
