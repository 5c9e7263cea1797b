#include "sim/crew.h"

#include <system_error>
#include <utility>

#include "core/error.h"

namespace shardproof::sim {

Crew::Crew(int workers, std::function<void(int)> job) : job_(std::move(job)) {
  try {
    for (int worker = 1; worker < workers; ++worker) threads_.emplace_back(&Crew::serve, this, worker);
  } catch (const std::system_error& error) {
    stop();
    fail(ErrorKind::internal_error, "no thread for worker {} of {}: {}", threads_.size() + 1, workers, error.what());
  }
}

Crew::~Crew() { stop(); }

void Crew::stop() {
  stopping_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Crew::run() {
  busy_.store(static_cast<int>(threads_.size()));
  if (!threads_.empty()) {
    round_.fetch_add(1);
    round_.notify_all();
  }
  job_(0);
  for (int busy = busy_.load(); busy != 0; busy = busy_.load()) busy_.wait(busy);
}

void Crew::serve(int worker) {
  for (unsigned seen = 0;; ++seen) {
    round_.wait(seen);
    if (stopping_.load()) return;
    job_(worker);
    if (busy_.fetch_sub(1) == 1) busy_.notify_one();
  }
}

}  // namespace shardproof::sim
