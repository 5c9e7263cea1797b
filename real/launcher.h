// Where a process stands among the ranks of a run, and where rank 0 can be met: told by options, by variables of our
// own, or by those of the program that started it. Backends check what they find against it, so that a process started
// in another way is told instead of waiting.
//
// The sources, in the order in which they count: explicit options, SHARDPROOF_*, torchrun, Open MPI, PMI, SLURM. What
// two of them say must agree. SLURM counts only inside a step, and beside torchrun, Open MPI or PMI not at all: there
// its variables describe the task in which the other launcher runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "real/store_address.h"

namespace shardproof {

struct LaunchOptions {
  std::optional<int> rank = std::nullopt;             // --rank
  std::optional<int> world_size = std::nullopt;       // --world-size
  std::optional<int> local_rank = std::nullopt;       // --local-rank
  std::optional<std::string> address = std::nullopt;  // --address
};

struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among those on the same machine; all ranks are taken to be there if the source does not say
  int local_size = 1;
  StoreAddress address = {};                       // unknown under mpirun
  std::optional<int> store_socket = std::nullopt;  // listens at that address already: SHARDPROOF_STORE_SOCKET
  std::uint64_t run = 0;          // the same for the ranks of a run; keeps runs apart that have ports in common
  std::string source;             // "options", "SHARDPROOF_*", "torchrun", "Open MPI", "PMI", "SLURM", "none"
  std::string claim;              // what the source says, for messages: "RANK=1, WORLD_SIZE=2"
  bool has_mpi_launcher = false;  // started by a program that MPI knows by itself
};

// The value of an environment variable, if it is set.
using Lookup = std::function<std::optional<std::string>(std::string_view variable)>;

// A process of which nobody says anything is the only rank. usage_error for variables and options that are no numbers,
// are missing, or contradict each other, naming both with their values.
//
// The port under torchrun: MASTER_PORT is held by torchrun's own agent. Rank 0 takes the first free one of eight that
// follow from MASTER_PORT and lie outside the range from which systems give out ports, and the others look for it
// there; the handshake of the store tells ranks of this run from others. A step of SLURM derives them from its job and
// step.
Launch launch_from(const LaunchOptions& options, const Lookup& variable);
// With the environment of this process.
Launch launch_from_environment(const LaunchOptions& options = {});

// True for variables by which a launcher tells a process where it stands: a process that is started anew must not
// inherit them.
bool is_launcher_variable(std::string_view name);

}  // namespace shardproof
