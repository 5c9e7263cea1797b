// DeviceActivity by the activity records of CUPTI. What is launched between a push and a pop of an external correlation
// id gets a record that joins the id with the number of the call to CUDA, which kernels and copies carry too.
#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cupti_activity.h>
#include <cupti_version.h>
#include <fmt/format.h>

#include "core/error.h"
#include "real/device_activity.h"
#include "real/loaded_library.h"

namespace shardproof {
namespace {

constexpr int kMajorVersion = CUPTI_API_VERSION / 10000;

// What is recorded: what runs on a device, and the calls that launch it, since ids are joined to those.
constexpr std::array kKinds{
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
};
constexpr CUpti_ExternalCorrelationKind kIdKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

LoadedLibrary load_cupti() {
  const std::string name = fmt::format("libcupti.so.{}", kMajorVersion);
  std::vector<std::string> places{name, "/usr/local/cuda/extras/CUPTI/lib64/" + name};
  if (const std::string built_with = SHARDPROOF_CUPTI_FILE; !built_with.empty()) {
    places.insert(places.begin(), built_with);
  }
  LoadedLibrary library({.library = "CUPTI",
                         .expected = fmt::format("CUPTI {}, with which this was built", kMajorVersion),
                         .advice = "install it with the CUDA toolkit",
                         .variable = "SHARDPROOF_CUPTI_LIBRARY",
                         .places = std::move(places)});
  const decltype(&cuptiGetVersion) get_version = library.function("cuptiGetVersion");
  std::uint32_t version = 0;
  const CUptiResult result = get_version(&version);
  // Within a major version records only grow at their end.
  if (result != CUPTI_SUCCESS || version / 10000 != kMajorVersion) library.reject(fmt::format("is CUPTI {}", version));
  return library;
}

// The functions of CUPTI that are used.
struct CuptiFunctions {
  LoadedLibrary library = load_cupti();
  decltype(&cuptiGetResultString) result_string = library.function("cuptiGetResultString");
  decltype(&cuptiActivityRegisterTimestampCallback) register_timestamp =
      library.function("cuptiActivityRegisterTimestampCallback");
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = library.function("cuptiActivityRegisterCallbacks");
  decltype(&cuptiActivityEnable) enable = library.function("cuptiActivityEnable");
  decltype(&cuptiActivityDisable) disable = library.function("cuptiActivityDisable");
  decltype(&cuptiActivityFlushAll) flush = library.function("cuptiActivityFlushAll");
  decltype(&cuptiActivityGetNextRecord) next_record = library.function("cuptiActivityGetNextRecord");
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = library.function("cuptiActivityGetNumDroppedRecords");
  decltype(&cuptiActivityPushExternalCorrelationId) push_id =
      library.function("cuptiActivityPushExternalCorrelationId");
  decltype(&cuptiActivityPopExternalCorrelationId) pop_id = library.function("cuptiActivityPopExternalCorrelationId");
};

const CuptiFunctions& cupti() {
  static const CuptiFunctions functions;
  return functions;
}

std::string result_text(CUptiResult result) {
  const char* text = nullptr;
  const bool has_text = cupti().result_string(result, &text) == CUPTI_SUCCESS && text != nullptr;
  return has_text ? text : fmt::format("result {}", static_cast<int>(result));
}

void check(CUptiResult result, std::string_view call) {
  SHARDPROOF_CHECK(result == CUPTI_SUCCESS, unsupported_error,
                   "CUPTI cannot watch the GPUs of this process: {}: {}; expected a GPU with its driver, and no other "
                   "profiler at work",
                   call, result_text(result));
}

std::string readable_name(const char* name) {
  if (name == nullptr) return "kernel";
  int status = 0;
  char* const plain = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = plain != nullptr ? plain : name;
  std::free(plain);
  return text;
}

std::string_view copy_name(std::uint8_t kind) {
  switch (static_cast<CUpti_ActivityMemcpyKind>(kind)) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD: return "copy to the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH: return "copy to the host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD: return "copy on the device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_PTOP: return "copy between devices";
    default: return "copy";
  }
}

// A rank and the number of one of its events, in one number; 0 for neither.
constexpr int kEventBits = 40;
std::uint64_t id_of(int rank, std::int64_t event) {
  return static_cast<std::uint64_t>(rank + 1) << kEventBits | static_cast<std::uint64_t>(event + 1);
}

// What the threads of CUPTI put here, and what is made of it.
class Records {
 public:
  void take(std::uint8_t* buffer, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    CUpti_Activity* record = nullptr;
    CUptiResult result = cupti().next_record(buffer, bytes, &record);
    for (; result == CUPTI_SUCCESS; result = cupti().next_record(buffer, bytes, &record)) add(*record);
    // Anything but the end of the buffer: how many records are behind it, nobody knows.
    if (result != CUPTI_ERROR_MAX_LIMIT_REACHED) ++list_.lost;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    list_ = {};
    calls_.clear();
    name_numbers_.clear();
    ids_.clear();
  }

  DeviceWorkList joined() {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < list_.work.size(); ++i) {
      const auto id = ids_.find(calls_[i]);
      if (id == ids_.end()) continue;
      list_.work[i].rank = static_cast<std::int32_t>(id->second >> kEventBits) - 1;
      list_.work[i].event = static_cast<std::int64_t>(id->second & ((std::uint64_t{1} << kEventBits) - 1)) - 1;
    }
    std::ranges::stable_sort(list_.work, {}, &DeviceWork::begin_ns);
    calls_.clear();
    ids_.clear();
    name_numbers_.clear();
    return std::exchange(list_, {});
  }

 private:
  // The parts of the records that are read stand where they stood in older versions.
  void add(const CUpti_Activity& record) {
    const auto* const at = reinterpret_cast<const std::uint8_t*>(&record);
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& join = *reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(at);
        const std::uint32_t call = join.correlationId;  // the records are packed
        if (join.externalKind == kIdKind) ids_[call] = join.externalId;
        return;
      }
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      case CUPTI_ACTIVITY_KIND_KERNEL: {
        const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel9*>(at);
        add_work(DeviceWorkKind::kernel, kernel, readable_name(kernel.name), 0);
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy5*>(at);
        add_work(DeviceWorkKind::copy, copy, copy_name(copy.copyKind), copy.bytes);
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(at);
        add_work(DeviceWorkKind::copy, copy, copy_name(copy.copyKind), copy.bytes);
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(at);
        add_work(DeviceWorkKind::fill, fill, "fill", fill.bytes);
        return;
      }
      default: return;  // the calls themselves
    }
  }

  // A piece without times, or with one that no clock comes to, was not finished when the watch ended, or not measured.
  template <class Record>
  void add_work(DeviceWorkKind kind, const Record& record, std::string_view name, std::uint64_t bytes) {
    const std::uint64_t begin = record.start, end = record.end;
    if (begin == 0 || end < begin || end > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      ++list_.lost;
      return;
    }
    DeviceWork work{.kind = kind, .device = record.deviceId, .stream = record.streamId};
    work.begin_ns = static_cast<std::int64_t>(begin);
    work.end_ns = static_cast<std::int64_t>(end);
    work.bytes = static_cast<std::int64_t>(bytes);
    const auto [known, is_new] =
        name_numbers_.try_emplace(std::string(name), static_cast<std::int64_t>(list_.names.size()));
    if (is_new) list_.names.emplace_back(name);
    work.name = known->second;
    list_.work.push_back(work);
    const std::uint32_t call = record.correlationId;
    calls_.push_back(call);
  }

  std::mutex mutex_;
  DeviceWorkList list_;
  std::vector<std::uint32_t> calls_;  // of each piece, by which it was launched
  std::unordered_map<std::string, std::int64_t> name_numbers_;
  std::unordered_map<std::uint32_t, std::uint64_t> ids_;  // by call
};

// CUPTI's callbacks say nothing of whom they are for. Never destroyed, as its threads may come late.
Records& records() {
  static auto* const only = new Records;
  return *only;
}
std::atomic<bool> is_in_use = false;

constexpr std::size_t kBufferBytes = std::size_t{4} << 20U;
constexpr std::size_t kBufferAlignment = 8;  // that of records

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as it has room for
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t bytes) {
  if (bytes > 0) records().take(buffer, bytes);
  std::free(buffer);
}

std::uint64_t CUPTIAPI host_time() { return static_cast<std::uint64_t>(steady_nanoseconds()); }

class MarkedRanges final : public RangeSink {
 public:
  MarkedRanges(DeviceActivity& activity, int rank, RangeSink* also) : activity_(activity), rank_(rank), also_(also) {}

  void push(std::string_view name, std::int64_t event) override {
    if (also_ != nullptr) also_->push(name, event);
    is_marked_.push_back(event >= 0);
    if (event >= 0) activity_.begin_launch(rank_, event);
  }
  void pop() override {
    if (is_marked_.back()) activity_.end_launch();
    is_marked_.pop_back();
    if (also_ != nullptr) also_->pop();
  }

 private:
  DeviceActivity& activity_;
  int rank_;
  RangeSink* also_;
  std::vector<bool> is_marked_;  // of the ranges that are open
};

class CuptiActivity final : public DeviceActivity {
 public:
  CuptiActivity() {
    SHARDPROOF_CHECK(!is_in_use.exchange(true), state_error, "the GPUs of this process are being watched already");
    try {
      // Before anything is enabled, so that all times are those of one clock.
      check(cupti().register_timestamp(host_time), "cuptiActivityRegisterTimestampCallback");
      check(cupti().register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
      begin();  // says now what would be wrong later
      disable();
    } catch (...) {
      is_in_use = false;
      throw;
    }
  }
  ~CuptiActivity() override {
    disable();
    cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    records().clear();
    is_in_use = false;
  }
  CuptiActivity(const CuptiActivity&) = delete;
  CuptiActivity& operator=(const CuptiActivity&) = delete;

  void begin() override {
    cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    records().clear();
    lost_marks_ = 0;
    for (; enabled_ < kKinds.size(); ++enabled_) check(cupti().enable(kKinds[enabled_]), "cuptiActivityEnable");
  }

  DeviceWorkList end() override {
    check(cupti().flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
    std::size_t dropped = 0;
    check(cupti().dropped_records(nullptr, 0, &dropped), "cuptiActivityGetNumDroppedRecords");
    disable();
    DeviceWorkList list = records().joined();
    list.lost += static_cast<std::int64_t>(dropped) + lost_marks_;
    return list;
  }

  std::unique_ptr<RangeSink> ranges(int rank, RangeSink* also) override {
    return std::make_unique<MarkedRanges>(*this, rank, also);
  }

  void begin_launch(int rank, std::int64_t event) override {
    if (cupti().push_id(kIdKind, id_of(rank, event)) != CUPTI_SUCCESS) ++lost_marks_;
  }
  void end_launch() override {
    std::uint64_t last = 0;
    cupti().pop_id(kIdKind, &last);
  }

 private:
  void disable() {
    for (; enabled_ > 0; --enabled_) cupti().disable(kKinds[enabled_ - 1]);
  }

  std::size_t enabled_ = 0;
  std::atomic<std::int64_t> lost_marks_ = 0;
};

}  // namespace

std::unique_ptr<DeviceActivity> watch_device_activity() { return std::make_unique<CuptiActivity>(); }

bool device_activity_is_built() { return true; }

}  // namespace shardproof
