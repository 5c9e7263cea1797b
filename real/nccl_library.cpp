// The functions of NCCL that are used here, each by that of its name in the library that is loaded. Who links the
// library itself, or a stand-in for it, does so in the place of this file.
#include "real/nccl_library.h"

#include <fmt/format.h>
#include <nccl.h>

#include "real/loaded_library.h"

namespace shardproof {
namespace {

constexpr int kOldestVersion = NCCL_VERSION(2, 28, 0);

LoadedLibrary load_nccl() {
  LoadedLibrary library({.library = "NCCL",
                         .expected = "NCCL 2.28 or newer",
                         .advice = "tools/setup_nccl.sh fetches it",
                         .variable = "SHARDPROOF_NCCL_LIBRARY",
                         .places = {SHARDPROOF_NCCL_FILE, "libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"}});
  const decltype(&ncclGetVersion) get_version = library.function("ncclGetVersion");
  int version = 0;
  const ncclResult_t result = get_version(&version);
  if (result != ncclSuccess || version < kOldestVersion) {
    library.reject(fmt::format("is NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100));
  }
  return library;
}

struct NcclFunctions {
  LoadedLibrary library = load_nccl();
  decltype(&ncclAllGather) all_gather = library.function("ncclAllGather");
  decltype(&ncclAllReduce) all_reduce = library.function("ncclAllReduce");
  decltype(&ncclBroadcast) broadcast = library.function("ncclBroadcast");
  decltype(&ncclCommAbort) abort = library.function("ncclCommAbort");
  decltype(&ncclCommDestroy) destroy = library.function("ncclCommDestroy");
  decltype(&ncclCommFinalize) finalize = library.function("ncclCommFinalize");
  decltype(&ncclCommGetAsyncError) get_async_error = library.function("ncclCommGetAsyncError");
  decltype(&ncclCommInitRankConfig) init_rank = library.function("ncclCommInitRankConfig");
  decltype(&ncclCommSplit) split = library.function("ncclCommSplit");
  decltype(&ncclGetErrorString) get_error_string = library.function("ncclGetErrorString");
  decltype(&ncclGetLastError) get_last_error = library.function("ncclGetLastError");
  decltype(&ncclGetUniqueId) get_unique_id = library.function("ncclGetUniqueId");
  decltype(&ncclGetVersion) get_version = library.function("ncclGetVersion");
  decltype(&ncclGroupEnd) group_end = library.function("ncclGroupEnd");
  decltype(&ncclGroupStart) group_start = library.function("ncclGroupStart");
  decltype(&ncclRecv) receive = library.function("ncclRecv");
  decltype(&ncclSend) send = library.function("ncclSend");
};

const NcclFunctions& loaded() {
  static const NcclFunctions functions;
  return functions;
}

}  // namespace

void require_nccl() { loaded(); }

}  // namespace shardproof

using shardproof::loaded;

extern "C" {

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return loaded().all_gather(send, receive, count, type, comm, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream) {
  return loaded().all_reduce(send, receive, count, type, reduction, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return loaded().broadcast(send, receive, count, type, root, comm, stream);
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return loaded().send(data, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return loaded().receive(data, count, type, peer, comm, stream);
}

ncclResult_t ncclGroupStart() { return loaded().group_start(); }
ncclResult_t ncclGroupEnd() { return loaded().group_end(); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return loaded().init_rank(comm, size, id, rank, config);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  return loaded().split(comm, color, key, child, config);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return loaded().finalize(comm); }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return loaded().destroy(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return loaded().abort(comm); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return loaded().get_async_error(comm, error);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return loaded().get_unique_id(id); }
ncclResult_t ncclGetVersion(int* version) { return loaded().get_version(version); }
const char* ncclGetErrorString(ncclResult_t result) { return loaded().get_error_string(result); }
const char* ncclGetLastError(ncclComm_t comm) { return loaded().get_last_error(comm); }

}  // extern "C"
