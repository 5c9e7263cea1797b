#include "real/watchdog.h"

#include <utility>

namespace shardproof {

Watchdog::Watchdog(std::chrono::milliseconds patience, std::function<void()> bark) {
  thread_ = std::thread([this, patience, bark = std::move(bark)] {
    std::unique_lock lock(mutex_);
    const bool was_in_time = changed_.wait_for(lock, patience, [this] { return is_over_; });
    lock.unlock();
    if (!was_in_time) bark();
  });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace shardproof
