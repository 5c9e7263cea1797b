// The part of CUPTI that the product uses. What would be undefined or silently wrong there ends the process here with a
// message: enabling without callbacks or a clock, popping what was not pushed, reading beyond a buffer. Buffers are
// given back after few records and from another thread, as CUPTI does. SHARDPROOF_FAKE_CUPTI asks for trouble:
// "no-gpu", "other-version", "dropped", "unfinished", "unreadable" (the buffers) or "endless" (work).
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <vector>

#include <cupti_activity.h>
#include <cupti_version.h>

#include "tests/fake_nccl/watch_hooks.h"

namespace {

[[noreturn]] void violate(const char* call, const char* what) {
  std::fprintf(stderr, "fake CUPTI: %s: %s\n", call, what);
  std::abort();
}

bool is_asked_for(std::string_view trouble) {
  const char* const asked = std::getenv("SHARDPROOF_FAKE_CUPTI");
  return asked != nullptr && trouble == asked;
}

constexpr std::size_t kMostRecords = 3;  // in a buffer

struct State {
  std::recursive_mutex mutex;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  CUpti_TimestampCallbackFunc clock = nullptr;
  std::set<CUpti_ActivityKind> enabled;
  std::uint8_t* buffer = nullptr;
  std::size_t bytes = 0, used = 0, records = 0;
  std::atomic<std::uint32_t> calls = 0;
  std::map<const void*, std::uint32_t> streams;
};
State& state() {
  static State* const only = new State;  // outlives the threads of streams
  return *only;
}
thread_local std::vector<std::uint64_t> ids;

void complete_buffer() {
  State& now = state();
  if (now.buffer == nullptr) return;
  std::thread([&] { now.complete(nullptr, 0, now.buffer, now.bytes, now.used); }).join();
  now.buffer = nullptr;
}

template <class Record>
void add(const Record& record) {
  State& now = state();
  if (now.buffer == nullptr) {
    std::size_t most = 1;
    now.request(&now.buffer, &now.bytes, &most);
    if (now.buffer == nullptr || most != 0 || now.bytes < 1024) violate("the callback for buffers", "gave none");
    if (reinterpret_cast<std::uintptr_t>(now.buffer) % ACTIVITY_RECORD_ALIGNMENT != 0) {
      violate("the callback for buffers", "gave one that is not aligned");
    }
    now.used = now.records = 0;
  }
  std::memcpy(now.buffer + now.used, &record, sizeof(record));
  now.used += sizeof(record);
  if (++now.records == kMostRecords) complete_buffer();
}

std::size_t size_of(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_RUNTIME: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
    default: violate("cuptiActivityGetNextRecord", "the buffer holds no record there");
  }
}

std::uint32_t launch(bool is_by_caller) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  const std::uint32_t call = ++now.calls;
  if (!now.enabled.contains(CUPTI_ACTIVITY_KIND_RUNTIME)) return call;
  if (is_by_caller && !ids.empty() && now.enabled.contains(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
    CUpti_ActivityExternalCorrelation join{};
    join.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    join.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
    join.externalId = ids.back();
    join.correlationId = call;
    add(join);
  }
  CUpti_ActivityAPI api{};
  api.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  api.correlationId = call;
  add(api);
  return call;
}

std::uint64_t time_now() { return state().clock == nullptr ? 0 : state().clock(); }

template <class Record>
void add_work(Record record, CUpti_ActivityKind kind, std::uint32_t call, const void* stream, std::uint64_t begin,
              std::uint64_t end) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  if (!now.enabled.contains(kind)) return;
  record.kind = kind;
  record.correlationId = call;
  record.start = is_asked_for("unfinished") ? 0 : begin;
  record.end = is_asked_for("endless") ? std::numeric_limits<std::uint64_t>::max() : end;
  record.streamId = now.streams.try_emplace(stream, static_cast<std::uint32_t>(now.streams.size()) + 7).first->second;
  add(record);
}

void ran_kernel(std::uint32_t call, const char* name, const void* stream, std::uint64_t begin, std::uint64_t end) {
  CUpti_ActivityKernel10 kernel{};
  kernel.name = name;
  add_work(kernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, call, stream, begin, end);
}

void ran_copy(std::uint32_t call, std::size_t bytes, const void* stream, std::uint64_t begin, std::uint64_t end) {
  CUpti_ActivityMemcpy6 copy{};
  copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
  copy.bytes = bytes;
  add_work(copy, CUPTI_ACTIVITY_KIND_MEMCPY, call, stream, begin, end);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) extern const shardproof::fake_nccl::WatchHooks shardproof_fake_cupti_hooks;
const shardproof::fake_nccl::WatchHooks shardproof_fake_cupti_hooks{
    .launched = [] { return launch(true); },
    .launched_elsewhere = [] { return launch(false); },
    .now = time_now,
    .ran_kernel = ran_kernel,
    .ran_copy = ran_copy,
};

CUptiResult CUPTIAPI cuptiGetVersion(std::uint32_t* version) {
  *version = is_asked_for("other-version") ? 120000 : CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult result, const char** text) {
  *text = result == CUPTI_ERROR_UNKNOWN ? "CUPTI_ERROR_UNKNOWN" : "another result";
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
  if (!state().enabled.empty()) violate("cuptiActivityRegisterTimestampCallback", "something is enabled already");
  state().clock = clock;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                    CUpti_BuffersCallbackCompleteFunc complete) {
  state().request = request;
  state().complete = complete;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  if (now.clock == nullptr || now.request == nullptr) violate("cuptiActivityEnable", "no callbacks are registered");
  if (is_asked_for("no-gpu")) return CUPTI_ERROR_UNKNOWN;
  now.enabled.insert(kind);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind kind) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  if (now.enabled.erase(kind) == 0) violate("cuptiActivityDisable", "it was not enabled");
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(std::uint32_t) {
  const std::lock_guard lock(state().mutex);
  complete_buffer();
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  if (is_asked_for("unreadable")) return CUPTI_ERROR_INVALID_KIND;
  std::uint8_t* next = buffer;
  if (*record != nullptr) {
    auto* const before = reinterpret_cast<std::uint8_t*>(*record);
    if (before < buffer || before >= buffer + valid) {
      violate("cuptiActivityGetNextRecord", "the record is not of this buffer");
    }
    next = before + size_of(**record);
  }
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(next);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
  *dropped = is_asked_for("dropped") ? 3 : 0;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, std::uint64_t id) {
  if (kind != CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0) violate("cuptiActivityPushExternalCorrelationId", "other kind");
  ids.push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, std::uint64_t* last) {
  if (kind != CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0) violate("cuptiActivityPopExternalCorrelationId", "other kind");
  if (ids.empty()) violate("cuptiActivityPopExternalCorrelationId", "this thread has pushed nothing");
  *last = ids.back();
  ids.pop_back();
  return CUPTI_SUCCESS;
}

}  // extern "C"
