// Stands in for the MPI communicator in a build without MPI: says so instead of doing nothing.
// A caller never needs to know which of the two files was compiled.
#include <cstdlib>

#include "core/error.h"
#include "real/mpi_communicator.h"

namespace shardproof {

MpiSession::MpiSession(const MpiOptions&) {
  fail(ErrorKind::unsupported_error,
       "this build has no MPI; install libopenmpi-dev and openmpi-bin and configure again");
}
MpiSession::~MpiSession() = default;
std::unique_ptr<Communicator> MpiSession::world() const { return nullptr; }
void MpiSession::abort(int status) const { std::_Exit(status); }
bool mpi_is_built() { return false; }
std::string mpi_library() { return ""; }

}  // namespace shardproof
