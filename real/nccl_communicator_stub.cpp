// Stands in for the NCCL communicator in a build without NCCL: says so instead of doing nothing.
// A caller never needs to know which files were compiled.
#include <cstdlib>

#include "core/error.h"
#include "real/nccl_communicator.h"

namespace shardproof {

NcclSession::NcclSession(const NcclOptions&, std::shared_ptr<NcclStore>) {
  fail(ErrorKind::unsupported_error,
       "this build has no NCCL; run tools/setup_nccl.sh, or name a folder that has nccl.h and libnccl.so.2 with "
       "-DNCCL_ROOT=FOLDER, and configure again");
}
NcclSession::~NcclSession() = default;
std::unique_ptr<Communicator> NcclSession::world() const { return nullptr; }
void NcclSession::check() const {}
void NcclSession::abort(int status, const std::string&) const { std::_Exit(status); }
bool nccl_is_built() { return false; }
std::string nccl_version() { return {}; }

}  // namespace shardproof
