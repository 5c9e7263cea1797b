// What the ranks of `run` do about each other besides the run itself: end all with a cause, and wait for what rank 0
// does alone without taking it for lost.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "core/communicator.h"

namespace shardproof {

// Ends this process, and those of all ranks that wait for it, which are told why.
using Abort = std::function<void(int status, const std::string& why)>;

[[noreturn]] void end_all(const Abort& abort, int status, const std::string& why);

// Every rank says it: which of them others will hear, nobody knows.
void say_on_rank(int rank, int size, std::string_view what);

// Collective: rank 0 does the work, on a thread of its own, which may take longer than ranks wait for each other: they
// wait for its next word, with that patience. Throws on rank 0 what the work throws, without a last word.
void while_others_wait(Communicator& world, std::chrono::milliseconds patience, const Abort& abort,
                       const std::function<void()>& work);

}  // namespace shardproof
