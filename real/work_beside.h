// Long work of one rank for which others wait: it is done on a thread of its own, so that the rank can go on telling
// the others that it is alive, and their deadlines count from the last word of it.
#pragma once

#include <chrono>
#include <functional>

namespace shardproof {

// Does `work` on another thread and returns when it has ended; until then calls `meanwhile` from this one, once each
// `interval`. Throws what `work` throws. `meanwhile` must not throw.
void work_beside(const std::function<void()>& work, std::chrono::milliseconds interval,
                 const std::function<void()>& meanwhile);

}  // namespace shardproof
