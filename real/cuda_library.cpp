// The functions of the CUDA runtime that are used here, each by that of its name in the library that is loaded. Who
// links the library itself, or a stand-in for it, does so in the place of this file.
#include "real/cuda_library.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "real/loaded_library.h"

namespace shardproof {
namespace {

constexpr int kMajorVersion = CUDART_VERSION / 1000;

LoadedLibrary load_cuda() {
  const std::string name = fmt::format("libcudart.so.{}", kMajorVersion);
  LoadedLibrary library({.library = "the CUDA runtime",
                         .expected = fmt::format("the CUDA runtime {}, with which this was built", kMajorVersion),
                         .advice = "tools/setup_nccl.sh fetches it, and the CUDA toolkit has it",
                         .variable = "SHARDPROOF_CUDART_LIBRARY",
                         .places = {SHARDPROOF_CUDART_FILE, name, "/usr/local/cuda/lib64/" + name}});
  const decltype(&cudaRuntimeGetVersion) get_version = library.function("cudaRuntimeGetVersion");
  int version = 0;
  const cudaError_t status = get_version(&version);
  // Another major version is another library: structures differ.
  if (status != cudaSuccess || version / 1000 != kMajorVersion) {
    library.reject(fmt::format("is the CUDA runtime {}.{}", version / 1000, version / 10 % 100));
  }
  return library;
}

struct CudaFunctions {
  LoadedLibrary library = load_cuda();
  decltype(&cudaEventCreateWithFlags) event_create = library.function("cudaEventCreateWithFlags");
  decltype(&cudaEventDestroy) event_destroy = library.function("cudaEventDestroy");
  decltype(&cudaEventElapsedTime) event_elapsed_time = library.function("cudaEventElapsedTime");
  decltype(&cudaEventQuery) event_query = library.function("cudaEventQuery");
  decltype(&cudaEventRecord) event_record = library.function("cudaEventRecord");
  decltype(&cudaFree) free = library.function("cudaFree");
  decltype(&cudaFreeHost) free_host = library.function("cudaFreeHost");
  decltype(&cudaGetDeviceCount) get_device_count = library.function("cudaGetDeviceCount");
  decltype(&cudaGetErrorString) get_error_string = library.function("cudaGetErrorString");
  decltype(&cudaGetLastError) get_last_error = library.function("cudaGetLastError");
  decltype(&cudaMalloc) malloc = library.function("cudaMalloc");
  decltype(&cudaMallocHost) malloc_host = library.function("cudaMallocHost");
  decltype(&cudaMemcpyAsync) memcpy_async = library.function("cudaMemcpyAsync");
  decltype(&cudaPointerGetAttributes) pointer_attributes = library.function("cudaPointerGetAttributes");
  decltype(&cudaSetDevice) set_device = library.function("cudaSetDevice");
  decltype(&cudaStreamCreateWithFlags) stream_create = library.function("cudaStreamCreateWithFlags");
  decltype(&cudaStreamDestroy) stream_destroy = library.function("cudaStreamDestroy");
  decltype(&cudaStreamSynchronize) stream_synchronize = library.function("cudaStreamSynchronize");
  decltype(&cudaStreamWaitEvent) stream_wait_event = library.function("cudaStreamWaitEvent");
};

const CudaFunctions& loaded() {
  static const CudaFunctions functions;
  return functions;
}

}  // namespace

void require_cuda() { loaded(); }

}  // namespace shardproof

using shardproof::loaded;

extern "C" {

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) { return loaded().get_device_count(count); }
cudaError_t CUDARTAPI cudaSetDevice(int device) { return loaded().set_device(device); }
cudaError_t CUDARTAPI cudaGetLastError() { return loaded().get_last_error(); }
const char* CUDARTAPI cudaGetErrorString(cudaError_t error) { return loaded().get_error_string(error); }

cudaError_t CUDARTAPI cudaMalloc(void** data, size_t bytes) { return loaded().malloc(data, bytes); }
cudaError_t CUDARTAPI cudaFree(void* data) { return loaded().free(data); }
cudaError_t CUDARTAPI cudaMallocHost(void** data, size_t bytes) { return loaded().malloc_host(data, bytes); }
cudaError_t CUDARTAPI cudaFreeHost(void* data) { return loaded().free_host(data); }

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  return loaded().pointer_attributes(attributes, data);
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return loaded().memcpy_async(target, source, bytes, kind, stream);
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return loaded().stream_create(stream, flags);
}
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) { return loaded().stream_destroy(stream); }
cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) { return loaded().stream_synchronize(stream); }
cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return loaded().stream_wait_event(stream, event, flags);
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return loaded().event_create(event, flags);
}
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) { return loaded().event_destroy(event); }
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return loaded().event_record(event, stream);
}
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) { return loaded().event_query(event); }
cudaError_t CUDARTAPI cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return loaded().event_elapsed_time(milliseconds, start, end);
}

}  // extern "C"
