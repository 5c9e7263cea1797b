// A process beside the one that starts the ranks of a run. It does nothing as long as that lives; when it is gone, even
// killed, the keeper ends the groups of processes that are left and removes the folder of the run.
#pragma once

#include <sys/types.h>

#include "real/run_folder.h"
#include "real/socket.h"

namespace shardproof {

class RunKeeper {
 public:
  // For a process with one thread; the keeper has its signal mask. state_error if it cannot be started.
  explicit RunKeeper(const RunFolder& folder);
  // Lets it end and waits for that: then the folder is gone, which must live until then.
  ~RunKeeper();
  RunKeeper(const RunKeeper&) = delete;
  RunKeeper& operator=(const RunKeeper&) = delete;

  // Of a group of processes that is to end with the run; of one that has ended. The first may be called in the child
  // that leads the group, between fork and exec, so that there is no moment in which nobody knows of it. The second
  // comes before that child is waited for, as the number may be another's after that.
  void add(pid_t group) const { tell(group); }
  void forget(pid_t group) const { tell(-group); }

 private:
  void tell(pid_t number) const;

  const RunFolder& folder_;
  Socket line_;
  pid_t keeper_ = -1;
};

}  // namespace shardproof
