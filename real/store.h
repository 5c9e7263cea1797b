// A client of the store that rank 0 keeps (real/store_server.h). Every call has a deadline; what goes wrong is a
// PeerFailure that names the call, the key and, where the store knows it, the ranks that are late.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "real/socket.h"
#include "real/store_address.h"
#include "real/store_message.h"

namespace shardproof {

// Used by one thread.
class Store {
 public:
  // Looks for the store at every port of the address until the deadline: rank 0 may start later than the others.
  // PeerFailure, with the words of the store, if it refuses this rank.
  Store(const StoreAddress& address, const StoreHello& hello, std::chrono::milliseconds patience);

  // Keys have 1 to 256 bytes, values at most 1 MiB; usage_error otherwise.
  void set(const std::string& key, std::string value, std::chrono::milliseconds patience);
  // Waits until somebody has set it.
  std::string get(const std::string& key, std::chrono::milliseconds patience);
  void wait(const std::string& key, std::chrono::milliseconds patience);
  // Nothing if nobody has set it yet.
  std::optional<std::string> get_if_set(const std::string& key, std::chrono::milliseconds patience);
  // The sum of the old value (0 if there is none) and delta; the value becomes its decimal text.
  std::int64_t add(const std::string& key, std::int64_t delta, std::chrono::milliseconds patience);
  // Returns when every rank has called it with this name. It may be called again with the same name.
  void barrier(const std::string& name, std::chrono::milliseconds patience);

  const std::string& place() const { return place_; }  // "127.0.0.1:29500"

 private:
  StoreReply call(const StoreRequest& request, std::chrono::milliseconds patience);
  StoreReply answered(const StoreRequest& request, std::chrono::milliseconds patience);
  StoreReply receive_reply(const StoreRequest& request, const Deadline& deadline);
  [[noreturn]] void fail_call(const StoreRequest& request, std::string_view why) const;

  std::string place_;
  int rank_ = 0;
  int world_size_ = 1;
  Socket socket_;
};

}  // namespace shardproof
