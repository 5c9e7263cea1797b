// The workers of a simulation: worker 0 is the calling thread, the others are threads that sleep between rounds.
// They are kept between rounds because a round is shorter than the start of a thread.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace shardproof::sim {

class Crew {
 public:
  // `job` is called with the worker's number; it must not throw. Throws internal_error if a thread cannot be had.
  Crew(int workers, std::function<void(int)> job);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Runs the job once on every worker and returns when all are done; what one wrote before is visible to all after.
  void run();

 private:
  void serve(int worker);
  void stop();

  std::function<void(int)> job_;
  std::atomic<unsigned> round_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace shardproof::sim
