// Where a process stands among the ranks of a run: told by the environment of the program that started it.
// Backends check what they find against it, so that a process started in another way is told instead of waiting.
#pragma once

#include <string>

namespace shardproof {

struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_size = 1;
  std::string source;  // "Open MPI", or "none" for a process that was started alone
};

// From the variables that mpirun of Open MPI sets. A process that was started alone is the only rank. usage_error for
// variables that are no numbers or contradict each other, naming variable and value.
Launch launch_from_environment();

}  // namespace shardproof
