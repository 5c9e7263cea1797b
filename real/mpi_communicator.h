// Communicator over MPI: ranks are processes. Every operation is made of non-blocking MPI operations, in as many pieces
// as its size needs; operations of one group match in call order, as MPI has it, and several may be in flight on
// several groups. Tensors must live in host memory. MPI's headers stay out of this one.
//
// Every wait has a deadline. A rank that waits too long gets a PeerFailure that names the operation, the group and,
// among the ranks of its machine, those that are late: each rank counts in shared memory what it has posted.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "core/communicator.h"

namespace shardproof {

struct MpiOptions {
  std::chrono::milliseconds patience{std::chrono::minutes(30)};        // of every wait
  std::size_t most_message_bytes = std::size_t{1} << 30;               // larger ones are split; at most 2^31 - 1
  std::chrono::milliseconds start_patience{std::chrono::minutes(30)};  // of the start and the end of MPI
  // Called from another thread, with what hangs, if MPI does not start or end in time: nothing can make it return, so
  // this is expected to end the process. Without it there is no deadline for these two.
  std::function<void(const std::string& what)> when_it_hangs = {};
};

// Initialises MPI for the life of the object; one a process. Threads: only the thread that made it calls MPI.
class MpiSession {
 public:
  // unsupported_error if this build has no MPI; state_error if MPI was initialised or finalised before; usage_error for
  // a message size that MPI cannot have.
  explicit MpiSession(const MpiOptions& options = {});
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // All processes. The session must outlive the communicator and all that is split from it.
  std::unique_ptr<Communicator> world() const;
  // Ends all processes of the run with that exit status; for a rank that cannot go on while others wait for it.
  [[noreturn]] void abort(int status) const;

 private:
  std::shared_ptr<struct MpiState> state_;
};

// True if this build has MPI.
bool mpi_is_built();
// What MPI says it is, up to the first comma: "Open MPI v4.1.4". Empty in a build without it.
std::string mpi_library();

}  // namespace shardproof
