#include "real/work_beside.h"

#include <future>
#include <thread>
#include <utility>

namespace shardproof {

void work_beside(const std::function<void()>& work, std::chrono::milliseconds interval,
                 const std::function<void()>& meanwhile) {
  std::packaged_task<void()> task(work);
  std::future<void> end = task.get_future();
  std::thread thread(std::move(task));
  while (end.wait_for(interval) != std::future_status::ready) meanwhile();
  thread.join();
  end.get();
}

}  // namespace shardproof
