// Ends a wait that cannot be given up: calls a function from a thread of its own unless the object is destroyed in
// time. For calls of foreign libraries that have no deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace shardproof {

class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds patience, std::function<void()> bark);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace shardproof
