// Communicator over MPI: ranks are processes of one mpirun. Every operation is a non-blocking MPI operation with counts
// in rows (a row is one derived datatype, so that counts stay small); operations of one group match in call order, as
// MPI has it. Tensors must live in host memory. MPI's headers stay out of this one.
#pragma once

#include <memory>

#include "core/communicator.h"

namespace shardproof {

// Initialises MPI for the life of the object; one a process. Threads: only the thread that made it calls MPI.
class MpiSession {
 public:
  // unsupported_error if this build has no MPI; state_error if MPI was initialised or finalised before.
  MpiSession();
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  // All processes. The session must outlive the communicator and all that is split from it.
  std::unique_ptr<Communicator> world() const;
  // Ends all processes of the run with that exit status; for a rank that cannot go on while others wait for it.
  [[noreturn]] void abort(int status) const;
};

// True if this build has MPI.
bool mpi_is_built();

}  // namespace shardproof
