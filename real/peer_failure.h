// The error for what is the fault of another process: it failed, is not what it must be, or did not answer in time.
// A program ends with a status of its own for it, since neither its request nor its code is wrong.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include <fmt/core.h>

#include "core/error.h"

namespace shardproof {

class PeerFailure : public Error {
 public:
  explicit PeerFailure(const std::string& message) : Error(ErrorKind::collective_error, message) {}
};

template <class... Arguments>
[[noreturn]] void fail_for_peer(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw PeerFailure(fmt::format(format, std::forward<Arguments>(arguments)...));
}

// A time as messages have it: "1.5 s".
inline std::string seconds_text(std::chrono::milliseconds time) {
  return fmt::format("{:.3g} s", static_cast<double>(time.count()) / 1e3);
}

}  // namespace shardproof
