// Ranks that share one GPU: host threads of one process, each with a stream on which its device computes and one on
// which what it receives is copied. Operations are matched and checked as simulated ones are (core/rendezvous.h), when
// every rank waits; the copies are ordered by events, so the host never waits for the device. Sums are composed by
// collectives and added in rank order: their bits are the simulator's. The headers of CUDA stay out of this one.
#pragma once

#include <cstdint>
#include <functional>

#include "core/communicator.h"

namespace shardproof {

class DeviceActivity;

enum class CudaThreadsMode : std::uint8_t {
  concurrent,
  serial,  // one rank at a time, which has the device to itself: for timings of a rank without the others
};

struct CudaThreadsOptions {
  int world_size = 1;
  int device = 0;  // the CUDA device of all
  CudaThreadsMode mode = CudaThreadsMode::concurrent;
  DeviceActivity* activity = nullptr;  // is told to whose communication a copy belongs; may be null
};

// Computes and communicates as one rank. Its tensors lie in device memory and are computed on `compute_stream`, a
// cudaStream_t; the communicator is this thread's alone.
using CudaRank = std::function<void(Communicator& world, void* compute_stream)>;

// Runs `body` once for each rank and returns when all have ended and the device is idle. unsupported_error if this
// build has no CUDA, or the machine no GPU or not the library of its runtime (real/cuda_library.h); config_error for
// options that cannot be. What a rank throws ends the run: the others are cancelled (their waits throw something that
// is no std::exception), and an Error of the same kind is thrown whose message starts with "rank 3: ". Disagreement and
// deadlock are thrown as Rendezvous::settle() describes.
void run_cuda_ranks(const CudaThreadsOptions& options, const CudaRank& body);

// True if this build has CUDA.
bool cuda_threads_are_built();

}  // namespace shardproof
