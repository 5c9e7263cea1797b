// Communicator over NCCL: one process for each rank, each with a GPU of its own. Tensors in device memory move in
// place, on a stream of the group that events tie to the stream on which the device computes; tensors in host memory go
// through pinned buffers. NCCL adds in an order of its own choice, so sums are not left to it: collectives compose them
// of all-to-alls, and their bits are those of every other communicator. The headers of NCCL and CUDA stay out of this
// one.
//
// A watchdog thread has a record of every operation. When one does not end in time, when NCCL reports an asynchronous
// error or when another rank gave up, it writes the flight record and aborts NCCL, and every later call throws
// PeerFailure (real/peer_failure.h) with the operation and the ranks that are late.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/communicator.h"

namespace shardproof {

// What the ranks share before they can talk over NCCL: a store of short texts. Called by two threads at once.
class NcclStore {
 public:
  virtual ~NcclStore() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  // The value of the key, waiting for it so long; nothing if nobody has set it by then.
  virtual std::optional<std::string> get(std::string_view key, std::chrono::milliseconds wait) = 0;
};

struct NcclOptions {
  int rank = 0;
  int world_size = 1;
  // The CUDA device of this rank. Beyond the last one they are shared, if NCCL_MULTI_RANK_GPU_ENABLE=1 lets NCCL do so.
  int device = 0;
  void* compute_stream = nullptr;              // the cudaStream_t on which tensors are computed; null: the default one
  std::chrono::milliseconds timeout{600'000};  // of every operation, of starting up and of every split
  std::chrono::milliseconds heartbeat{1'000};  // how often a rank tells the others how far it is
  std::filesystem::path flight_record{};       // where the watchdog writes what it saw; empty: nowhere
  std::int64_t padded_gather_bytes = 1 << 18;  // uneven gathers up to this size are padded; larger ones are broadcasts
};

namespace nccl {
class Context;
}

class NcclSession {
 public:
  // Connects all ranks. unsupported_error if this build has no NCCL, or the machine no GPU for it or not the libraries
  // (real/nccl_library.h, real/cuda_library.h); PeerFailure if ranks are missing after the timeout, naming them.
  NcclSession(const NcclOptions& options, std::shared_ptr<NcclStore> store);
  ~NcclSession();
  NcclSession(const NcclSession&) = delete;
  NcclSession& operator=(const NcclSession&) = delete;

  // All ranks; to be called once. The session must outlive the communicator and all that is split from it; one thread
  // uses them.
  std::unique_ptr<Communicator> world() const;
  // Throws what the watchdog has found since, if anything: a result that is still being computed on the device is
  // whole only if this is silent after Device::synchronize().
  void check() const;
  // Ends this process with that status; the other ranks' next calls say that this rank gave up, and why.
  [[noreturn]] void abort(int status, const std::string& why) const;

 private:
  std::shared_ptr<nccl::Context> context_;
};

// True if this build has NCCL.
bool nccl_is_built();
// "2.30.7", as the library says, which is loaded for that; empty if this build has none. Throws as require_nccl().
std::string nccl_version();

}  // namespace shardproof
