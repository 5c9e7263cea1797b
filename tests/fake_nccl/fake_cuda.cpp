// The part of the CUDA runtime that the product uses: memory, streams and events, on host memory and threads. Stricter
// than the real one: what would be undefined, slow or a silent synchronisation there is noted as a violation here.
#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <set>

#include "tests/fake_nccl/fabric_body.h"
#include "tests/fake_nccl/watch_hooks.h"

// Each recording is a flag of its own: who waits for an event waits for its latest recording at that moment, whatever
// becomes of the event later.
struct CUevent_st {
  using Flag = std::shared_ptr<std::atomic<bool>>;
  Flag latest() {
    const std::lock_guard lock(mutex);
    return flag;
  }
  Flag renew() {
    const std::lock_guard lock(mutex);
    flag = std::make_shared<std::atomic<bool>>(false);
    return flag;
  }
  const bool has_time;
  std::atomic<std::int64_t> reached_ns{0};  // by the stream, the latest time

  explicit CUevent_st(bool timed) : has_time(timed) {}

 private:
  std::mutex mutex;
  Flag flag = std::make_shared<std::atomic<bool>>(true);
};

namespace shardproof::fake_nccl {
namespace {

struct Block {
  std::size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeDevice;
};

// What this process has made. Handles stay readable after their end, so that a later use is seen.
struct Runtime {
  std::mutex mutex;
  std::map<std::size_t, Block> blocks;  // by offset in the arena
  std::set<CUstream_st*> streams;
  std::set<CUevent_st*> events;
  std::vector<std::unique_ptr<CUstream_st>> all_streams;
  std::vector<std::unique_ptr<CUevent_st>> all_events;
  std::unique_ptr<CUstream_st> default_stream;
};
Runtime& runtime() {
  static Runtime* const only = new Runtime;  // outlives the threads of streams that a test leaves hanging
  return *only;
}

cudaError_t allocate(void** data, std::size_t bytes, cudaMemoryType type) {
  constexpr std::size_t kAlignment = 256;
  const std::size_t needed = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard lock(runtime().mutex);
  std::size_t offset = 0;
  for (const auto& [begin, block] : runtime().blocks) {
    if (begin - offset >= needed) break;
    offset = begin + (block.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (offset + needed > kArenaBytes) return cudaErrorMemoryAllocation;
  runtime().blocks[offset] = {.bytes = bytes, .type = type};
  *data = own_arena() + offset;
  std::memset(*data, 0xCD, bytes);
  return cudaSuccess;
}

cudaError_t release(void* data, cudaMemoryType type, std::string_view call) {
  if (data == nullptr) return cudaSuccess;
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().blocks.find(static_cast<std::size_t>(static_cast<std::byte*>(data) - own_arena()));
  if (found == runtime().blocks.end() || found->second.type != type) {
    violate(call, "no such block");
    return cudaErrorInvalidValue;
  }
  std::memset(data, 0xDD, found->second.bytes);
  runtime().blocks.erase(found);
  return cudaSuccess;
}

// The block that holds the byte, or null.
const Block* block_of(const void* data, std::size_t* offset_in_block) {
  const auto* const byte = static_cast<const std::byte*>(data);
  if (byte < own_arena() || byte >= own_arena() + kArenaBytes) return nullptr;
  const auto offset = static_cast<std::size_t>(byte - own_arena());
  auto found = runtime().blocks.upper_bound(offset);
  if (found == runtime().blocks.begin()) return nullptr;
  --found;
  *offset_in_block = offset - found->first;
  return *offset_in_block < found->second.bytes ? &found->second : nullptr;
}

bool check_stream(cudaStream_t stream, std::string_view call) {
  if (stream == nullptr) return true;
  const std::lock_guard lock(runtime().mutex);
  if (!runtime().streams.contains(stream)) {
    violate(call, "the stream was destroyed or never made");
    return false;
  }
  if (stream->unlaunched > 0) violate(call, "the stream has NCCL calls that are still in progress");
  return true;
}

bool check_event(cudaEvent_t event, std::string_view call) {
  const std::lock_guard lock(runtime().mutex);
  if (runtime().events.contains(event)) return true;
  violate(call, "the event was destroyed or never made");
  return false;
}

}  // namespace

CUstream_st& stream_of(cudaStream_t stream) {
  if (stream != nullptr) return *stream;
  const std::lock_guard lock(runtime().mutex);
  if (!runtime().default_stream) runtime().default_stream = std::make_unique<CUstream_st>();
  return *runtime().default_stream;
}

bool check_memory(const void* data, std::size_t bytes, std::string_view call, std::string_view role) {
  if (bytes == 0) return true;
  const std::lock_guard lock(runtime().mutex);
  std::size_t offset = 0;
  const Block* const block = block_of(data, &offset);
  if (block == nullptr) {
    violate(call, "{} is no device or pinned memory of this rank", role);
    return false;
  }
  if (offset + bytes > block->bytes) {
    violate(call, "{} reaches {} bytes beyond its block of {}", role, offset + bytes - block->bytes, block->bytes);
    return false;
  }
  return true;
}

const WatchHooks* watch_hooks() {
  static std::atomic<const WatchHooks*> known = nullptr;
  static const char* const path = std::getenv("SHARDPROOF_CUPTI_LIBRARY");
  if (known != nullptr || path == nullptr) return known;
  void* const library = ::dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  known = static_cast<const WatchHooks*>(::dlsym(library, kWatchHooks));
  return known;
}

std::string leftovers() {
  const std::lock_guard lock(runtime().mutex);
  std::string text;
  if (!runtime().blocks.empty()) text += fmt::format(" {} blocks of memory", runtime().blocks.size());
  if (!runtime().streams.empty()) text += fmt::format(" {} streams", runtime().streams.size());
  if (!runtime().events.empty()) text += fmt::format(" {} events", runtime().events.size());
  return text;
}

}  // namespace shardproof::fake_nccl

CUstream_st::CUstream_st() : thread_([this] { run(); }) {}

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  signal_.notify_all();
  thread_.join();
}

void CUstream_st::add(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  signal_.notify_all();
}

void CUstream_st::run() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      signal_.wait(lock, [this] { return is_stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

using namespace shardproof::fake_nccl;

extern "C" {

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
  const char* const told = std::getenv("SHARDPROOF_FAKE_CUDART_VERSION");
  *version = told == nullptr ? CUDART_VERSION : std::atoi(told);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  *count = kMostRanks;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  return device >= 0 && device < kMostRanks ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t CUDARTAPI cudaGetLastError() { return cudaSuccess; }

const char* CUDARTAPI cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    default: return "invalid argument";
  }
}

cudaError_t CUDARTAPI cudaMalloc(void** data, size_t bytes) { return allocate(data, bytes, cudaMemoryTypeDevice); }
cudaError_t CUDARTAPI cudaFree(void* data) { return release(data, cudaMemoryTypeDevice, "cudaFree"); }
cudaError_t CUDARTAPI cudaMallocHost(void** data, size_t bytes) {
  const int refused = faults_of(own_rank()).refused_pinned_bytes;
  if (refused != 0 && bytes >= static_cast<std::size_t>(refused)) return cudaErrorMemoryAllocation;
  return allocate(data, bytes, cudaMemoryTypeHost);
}
cudaError_t CUDARTAPI cudaFreeHost(void* data) { return release(data, cudaMemoryTypeHost, "cudaFreeHost"); }

cudaError_t CUDARTAPI cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  const std::lock_guard lock(runtime().mutex);
  std::size_t offset = 0;
  const Block* const block = block_of(data, &offset);
  *attributes = {};
  attributes->type = block == nullptr ? cudaMemoryTypeUnregistered : block->type;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  if (kind != cudaMemcpyDefault) violate("cudaMemcpyAsync", "kind {} is not implemented", static_cast<int>(kind));
  const bool is_legal = check_stream(stream, "cudaMemcpyAsync") &&
                        check_memory(target, bytes, "cudaMemcpyAsync", "the target") &&
                        check_memory(source, bytes, "cudaMemcpyAsync", "the source");
  if (!is_legal) return cudaErrorInvalidValue;
  const WatchHooks* const watch = watch_hooks();
  const std::uint32_t call = watch == nullptr ? 0 : watch->launched();
  stream_of(stream).add([=] {
    const std::uint64_t begin = watch == nullptr ? 0 : watch->now();
    std::memcpy(target, source, bytes);
    if (watch != nullptr) watch->ran_copy(call, bytes, stream, begin, watch->now());
  });
  return cudaSuccess;
}

// In the order of the default stream; host memory may be any.
cudaError_t CUDARTAPI cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind) {
  cudaStreamSynchronize(nullptr);
  std::memcpy(target, source, bytes);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  if (!check_stream(stream, "cudaLaunchHostFunc")) return cudaErrorInvalidValue;
  stream_of(stream).add([=] { function(data); });
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  if (flags != cudaStreamNonBlocking) {
    violate("cudaStreamCreateWithFlags", "a stream that waits for the default stream");
    return cudaErrorInvalidValue;
  }
  auto made = std::make_unique<CUstream_st>();
  *stream = made.get();
  const std::lock_guard lock(runtime().mutex);
  runtime().streams.insert(made.get());
  runtime().all_streams.push_back(std::move(made));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamSynchronize(cudaStream_t stream) {
  if (!check_stream(stream, "cudaStreamSynchronize")) return cudaErrorInvalidValue;
  std::promise<void> reached;
  stream_of(stream).add([&] { reached.set_value(); });
  reached.get_future().wait();
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream) {
  if (!check_stream(stream, "cudaStreamDestroy")) return cudaErrorInvalidValue;
  const std::lock_guard lock(runtime().mutex);
  runtime().streams.erase(stream);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  if (flags != 0 || !check_stream(stream, "cudaStreamWaitEvent") || !check_event(event, "cudaStreamWaitEvent")) {
    return cudaErrorInvalidValue;
  }
  stream_of(stream).add([flag = event->latest()] { flag->wait(false); });
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (flags != cudaEventDisableTiming && flags != cudaEventDefault) {
    violate("cudaEventCreateWithFlags", "flags {} are not implemented", flags);
  }
  auto made = std::make_unique<CUevent_st>(flags == cudaEventDefault);
  *event = made.get();
  const std::lock_guard lock(runtime().mutex);
  runtime().events.insert(made.get());
  runtime().all_events.push_back(std::move(made));
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event) {
  if (!check_event(event, "cudaEventDestroy")) return cudaErrorInvalidValue;
  const std::lock_guard lock(runtime().mutex);
  runtime().events.erase(event);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!check_stream(stream, "cudaEventRecord") || !check_event(event, "cudaEventRecord")) return cudaErrorInvalidValue;
  stream_of(stream).add([flag = event->renew(), event] {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    event->reached_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    *flag = true;
    flag->notify_all();
  });
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event) {
  if (!check_event(event, "cudaEventQuery")) return cudaErrorInvalidValue;
  return *event->latest() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t CUDARTAPI cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  constexpr const char* kCall = "cudaEventElapsedTime";
  if (!check_event(start, kCall) || !check_event(end, kCall)) return cudaErrorInvalidValue;
  if (!start->has_time || !end->has_time) {
    violate(kCall, "an event was made without timing");
    return cudaErrorInvalidValue;
  }
  if (!*start->latest() || !*end->latest()) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(static_cast<double>(end->reached_ns - start->reached_ns) / 1e6);
  return cudaSuccess;
}

}  // extern "C"
