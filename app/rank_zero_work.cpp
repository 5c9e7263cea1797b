#include "app/rank_zero_work.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include <fmt/format.h>

#include "app/commands.h"
#include "app/output.h"
#include "core/collectives.h"
#include "core/file.h"
#include "real/peer_failure.h"
#include "real/work_beside.h"

namespace shardproof {

void end_all(const Abort& abort, int status, const std::string& why) {
  abort(status, why);
  std::_Exit(status);
}

void say_on_rank(int rank, int size, std::string_view what) {
  write_standard_error(fmt::format("shardproof: rank {} of {}: {}\n", rank, size, printable_lines(what)));
}

void while_others_wait(Communicator& world, std::chrono::milliseconds patience, const Abort& abort,
                       const std::function<void()>& work) {
  // What rank 0 says. An error that it throws would wait for the work, which may never end.
  const auto says_done = [&](bool is_done) {
    const std::int64_t number = is_done ? 1 : 0;
    try {
      return collectives::all_gather_numbers(world, std::span(&number, 1), "run: whether rank 0 is done").front() == 1;
    } catch (const PeerFailure& error) {
      say_on_rank(world.rank(), world.size(), error.what());
      end_all(abort, kPeerFailed, error.what());
    }
  };
  if (world.rank() != 0) {
    while (!says_done(false)) {
    }
    return;
  }
  constexpr std::chrono::milliseconds kLongest{1000};
  work_beside(work, std::min(patience / 4, kLongest), [&] { (void)says_done(false); });
  (void)says_done(true);
}

}  // namespace shardproof
