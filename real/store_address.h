// Where the store of a run is to be found: a host and the ports to try. Text such as "127.0.0.1:29500" or
// "[::1]:29500", read and written in one place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardproof {

// Where rank 0 keeps the store of a run (real/store.h). Of several ports, rank 0 takes the first that is free, and the
// others find it there.
struct StoreAddress {
  std::string host;
  std::vector<int> ports;
  bool is_known() const { return !ports.empty(); }
  std::string text() const;  // "127.0.0.1:29500", or with the first and the number of the ports
};

// HOST:PORT or [HOST]:PORT. usage_error that names `option`, which is where the text comes from.
StoreAddress address_from(const std::string& option, std::string_view text);

// A port from 1 to 65535; `whole` is what a message shows.
int port_from(std::string_view option, std::string_view text, std::string_view whole);

}  // namespace shardproof
