// The context of a session over NCCL: starting up with a deadline, splitting, launching, waiting and closing.
// What goes wrong is said in words that name the operation; what the watchdog does about it is in nccl_watchdog.cpp.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "real/cuda_library.h"
#include "real/nccl_context_body.h"
#include "real/nccl_library.h"
#include "real/peer_failure.h"

namespace shardproof::nccl {
namespace {

constexpr std::chrono::microseconds kFirstPause{20};
constexpr std::chrono::microseconds kLongestPause{500};

// Waits a little longer each time, so that a long wait costs no processor.
class Pause {
 public:
  void wait() {
    std::this_thread::sleep_for(next_);
    next_ = std::min(next_ * 2, kLongestPause);
  }

 private:
  std::chrono::microseconds next_ = kFirstPause;
};

bool is_fine(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

// A power of two, so that few sizes serve all operations.
std::size_t size_class(std::size_t bytes) { return std::bit_ceil(std::max<std::size_t>(bytes, 256)); }

}  // namespace

void check_cuda(cudaError_t status, std::string_view call) {
  SHARDPROOF_CHECK(status == cudaSuccess, collective_error, "{} failed: {}", call, cudaGetErrorString(status));
}

void check_nccl(ncclResult_t result, ncclComm_t comm, std::string_view call) {
  SHARDPROOF_CHECK(is_fine(result), collective_error, "{} failed: {}: {}", call, ncclGetErrorString(result),
                   ncclGetLastError(comm));
}

ScratchPool::~ScratchPool() {
  for (const auto& [key, data] : free_) {
    if (key.first == MemoryKind::device) {
      cudaFree(data);
    } else {
      cudaFreeHost(data);
    }
  }
}

std::unique_ptr<Scratch> ScratchPool::take(MemoryKind kind, std::size_t bytes) {
  const std::pair key(kind, size_class(bytes));
  void* data = nullptr;
  if (const auto found = free_.find(key); found != free_.end()) {
    data = found->second;
    free_.erase(found);
  } else if (kind == MemoryKind::device) {
    check_cuda(cudaMalloc(&data, key.second), "cudaMalloc");
  } else {
    check_cuda(cudaMallocHost(&data, key.second), "cudaMallocHost");
  }
  return std::make_unique<Scratch>(*this, kind, key.second, data);
}

EventPool::~EventPool() {
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
}

cudaEvent_t EventPool::take() {
  cudaEvent_t event = nullptr;
  if (free_.empty()) {
    const unsigned int flags = use_ == EventUse::order ? cudaEventDisableTiming : cudaEventDefault;
    check_cuda(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  } else {
    event = free_.back();
    free_.pop_back();
  }
  return event;
}

ClockAnchor::ClockAnchor(EventPool& events) : pool(events), event(events.take()) {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  // The device recorded it at some moment between these two of the host; the closest pair tells the most, and has to be
  // the last, as the event keeps no other.
  constexpr int kTries = 8;
  std::int64_t closest = std::numeric_limits<std::int64_t>::max();
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const std::int64_t before = steady_nanoseconds();
    check_cuda(cudaEventRecord(event, stream), "cudaEventRecord");
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const std::int64_t between = steady_nanoseconds() - before;
    host_ns = before + between / 2;
    if (attempt > 2 && between <= closest) break;
    closest = std::min(closest, between);
  }
  cudaStreamDestroy(stream);
}

Group::Group(Context& owner, std::string group_key, std::vector<int> ranks, int own)
    : context(owner), key(std::move(group_key)), members(std::move(ranks)), rank(own) {
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  context.recorder.add_group(key, members);
}

Group::~Group() {
  context.close(*this);
  cudaStreamDestroy(stream);
}

Flight::Flight(std::shared_ptr<Group> of, Request what) : group(std::move(of)), request(std::move(what)) {}

Flight::~Flight() {
  EventPool& pool = span ? group->context.timed_events : group->context.events;
  if (begin != nullptr) pool.give(begin);
  if (end != nullptr) pool.give(end);
}

Context::Context(const NcclOptions& wanted, std::shared_ptr<NcclStore> store)
    : options(wanted), recorder(wanted.rank, wanted.world_size), store_(std::move(store)) {
  SHARDPROOF_CHECK(options.rank >= 0 && options.rank < options.world_size, usage_error,
                   "NCCL: rank {} does not lie in a world of {}", options.rank, options.world_size);
  SHARDPROOF_CHECK(options.timeout.count() > 0 && options.heartbeat.count() > 0, usage_error,
                   "NCCL: timeout {} ms and heartbeat {} ms must be positive", options.timeout.count(),
                   options.heartbeat.count());
  or_tell_others([] {
    require_nccl();
    require_cuda();
  });
  exchange_unique_id();
  or_tell_others([this] { choose_device(); });
}

// Where only this rank has no library or no device, the others wait for it. If they have ended for the same reason, and
// the store with them, this rank says its own all the same.
void Context::or_tell_others(const std::function<void()>& step) {
  try {
    step();
  } catch (const Error& error) {
    try {
      store_->set("nccl/failed", fmt::format("rank {}: {}", options.rank, error.what()));
    } catch (const Error&) {
    }
    throw;
  }
}

void Context::choose_device() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  SHARDPROOF_CHECK(status == cudaSuccess, unsupported_error, "NCCL needs a GPU: cudaGetDeviceCount: {}",
                   cudaGetErrorString(status));
  const char* const may_share = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (may_share != nullptr && std::string_view(may_share) == "1" && options.device >= 0) options.device %= devices;
  SHARDPROOF_CHECK(options.device >= 0 && options.device < devices, usage_error,
                   "NCCL: rank {} wants CUDA device {}, but the number of devices is {}; to let ranks share one, set "
                   "NCCL_MULTI_RANK_GPU_ENABLE=1",
                   options.rank, options.device, devices);
  check_cuda(cudaSetDevice(options.device), "cudaSetDevice");
}

Context::~Context() {
  {
    const std::lock_guard lock(mutex);
    is_stopping_ = true;
  }
  stop_signal_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  last_flight.reset();
  flights_.clear();
  world.reset();
}

void Context::exchange_unique_id() {
  if (options.rank == 0) {
    check_nccl(ncclGetUniqueId(&id_), nullptr, "ncclGetUniqueId");
    store_->set("nccl/id", std::string_view(id_.internal, sizeof(id_.internal)));
  } else {
    const std::optional<std::string> id = store_->get("nccl/id", options.timeout);
    if (!id) fail_for_peer("NCCL: rank 0 did not say its unique id within {} ms", options.timeout.count());
    SHARDPROOF_CHECK(id->size() == sizeof(id_.internal), collective_error,
                     "NCCL: the unique id in the store has {} bytes, expected {}", id->size(), sizeof(id_.internal));
    std::memcpy(id_.internal, id->data(), id->size());
  }
}

void Context::report_missing_ranks() {
  std::vector<LateRank> missing;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (store_->get(fmt::format("nccl/here/{}", rank), std::chrono::milliseconds(0))) continue;
    missing.push_back({.rank = rank, .reason = "has not started NCCL"});
  }
  std::string list;
  for (const LateRank& rank : missing) list += fmt::format("{}{}", list.empty() ? "rank " : ", ", rank.rank);
  give_up(fmt::format("rank {}: NCCL did not connect the {} ranks within {} ms; missing: {}", options.rank,
                      options.world_size, options.timeout.count(),
                      list.empty() ? "nobody, all ranks have started NCCL" : list),
          missing);
  throw_if_failed();
  fail(ErrorKind::internal_error, "NCCL: gave up without a reason");
}

void Context::connect() {
  store_->set(fmt::format("nccl/here/{}", options.rank), "here");
  std::vector<int> everybody(static_cast<std::size_t>(options.world_size));
  std::iota(everybody.begin(), everybody.end(), 0);
  world = std::make_shared<Group>(*this, "world", std::move(everybody), options.rank);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = world->key.c_str();
  {
    const std::lock_guard lock(mutex);
    groups_.push_back(world.get());
    check_nccl(ncclCommInitRankConfig(&world->comm, options.world_size, id_, options.rank, &config), world->comm,
               "ncclCommInitRankConfig");
  }
  await_ready(world->comm, "ncclCommInitRankConfig", [this] { report_missing_ranks(); });
  watchdog_ = std::thread([this] { watch_over(); });
}

std::shared_ptr<Group> Context::split(const std::shared_ptr<Group>& parent, int color, std::vector<int> members,
                                      int rank, const std::string& name, std::int64_t call) {
  Request request;
  request.operation = Operation::split;
  request.numbers = {color, rank};
  request.call = call;
  const std::shared_ptr<Flight> flight = open(parent, std::move(request));
  // Numbered, because a name may be used twice. Siblings share the key; they have no member in common.
  const std::string key = fmt::format("{}/{}#{}", parent->key, name.substr(name.rfind('/') + 1), ++parent->splits);
  std::shared_ptr<Group> group;
  if (color >= 0) group = std::make_shared<Group>(*this, key, std::move(members), rank);
  ncclComm_t nobody = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = key.c_str();
  ncclComm_t& comm = group ? group->comm : nobody;
  {
    const std::lock_guard lock(mutex);
    if (failure_) throw PeerFailure(*failure_);
    if (group) groups_.push_back(group.get());
    check_nccl(ncclCommSplit(parent->comm, group ? color : NCCL_SPLIT_NOCOLOR, rank, &comm, &config), parent->comm,
               "ncclCommSplit");
  }
  await_ready(parent->comm, "ncclCommSplit");
  if (group) await_ready(group->comm, "ncclCommSplit");
  finish(*flight);
  return group;
}

void Context::await_ready(const ncclComm_t& comm, std::string_view call, const std::function<void()>& too_late) {
  const Clock::time_point deadline = Clock::now() + options.timeout;
  Clock::time_point next_look = Clock::now();
  Pause pause;
  while (true) {
    {
      const std::lock_guard lock(mutex);
      if (failure_) throw PeerFailure(*failure_);
      ncclResult_t state = ncclInternalError;
      check_nccl(ncclCommGetAsyncError(comm, &state), comm, "ncclCommGetAsyncError");
      check_nccl(state, comm, call);
      if (state == ncclSuccess) return;
    }
    if (too_late && Clock::now() > deadline) too_late();
    pause.wait();
    if (too_late && Clock::now() > next_look) {  // the watchdog, which looks there, is not running yet
      next_look = Clock::now() + options.heartbeat;
      if (const std::optional<std::string> elsewhere = failure_elsewhere()) give_up(*elsewhere, {});
    }
  }
}

std::shared_ptr<Flight> Context::open(const std::shared_ptr<Group>& group, Request request) {
  throw_if_failed();
  auto flight = std::make_shared<Flight>(group, std::move(request));
  flight->sequence = recorder.post(group->key, flight->request);
  flight->deadline = Clock::now() + options.timeout;
  const OperationRecorder* const recorded_by = OperationRecorder::current();
  if (recorded_by != nullptr && recorded_by->keeps_events()) {
    flight->span = std::make_shared<DeviceSpan>();
    flight->anchor = recent_anchor();
  }
  const std::lock_guard lock(mutex);
  flights_.push_back(flight);
  return flight;
}

void Context::launch(Group& group, const std::function<void()>& enqueue) {
  {
    const std::lock_guard lock(mutex);
    if (failure_) throw PeerFailure(*failure_);
    enqueue();
  }
  await_ready(group.comm, "ncclGroupEnd");
}

std::shared_ptr<const ClockAnchor> Context::recent_anchor() {
  constexpr std::int64_t kRecent = 2'000'000'000;
  if (!anchor_ || steady_nanoseconds() - anchor_->host_ns > kRecent) {
    anchor_ = std::make_shared<ClockAnchor>(timed_events);
  }
  return anchor_;
}

void Context::finish(Flight& flight) {
  if (flight.span && flight.end != nullptr && !flight.is_done) {
    float to_begin_ms = 0.0F, duration_ms = 0.0F;
    const bool is_known = cudaEventElapsedTime(&to_begin_ms, flight.anchor->event, flight.begin) == cudaSuccess &&
                          cudaEventElapsedTime(&duration_ms, flight.begin, flight.end) == cudaSuccess;
    if (is_known) {
      const std::int64_t begin = flight.anchor->host_ns + std::llround(static_cast<double>(to_begin_ms) * 1e6);
      flight.span->begin_ns = begin;
      flight.span->end_ns = begin + std::llround(static_cast<double>(duration_ms) * 1e6);
    }
  }
  recorder.set_state(flight.sequence, FlightState::complete);
  flight.is_done = true;
}

void Context::wait_for(Flight& flight) {
  Pause pause;
  while (!flight.is_done) {
    const cudaError_t status = cudaEventQuery(flight.end);
    // In this order: an abort ends what was running, so the event counts only if nobody had given up after it came.
    throw_if_failed();
    if (status == cudaSuccess) return finish(flight);
    SHARDPROOF_CHECK(status == cudaErrorNotReady, collective_error, "{}: cudaEventQuery failed: {}",
                     flight.request.text(), cudaGetErrorString(status));
    pause.wait();
  }
}

void Context::drain(const Group& group) noexcept {
  std::vector<std::shared_ptr<Flight>> open;
  {
    const std::lock_guard lock(mutex);
    std::ranges::copy_if(flights_, std::back_inserter(open),
                         [&](const auto& flight) { return flight->group.get() == &group; });
  }
  for (const auto& flight : open) {
    try {
      if (flight->is_launched) wait_for(*flight);
    } catch (const std::exception&) {
      // The failure is told to whoever calls next.
    }
    flight->is_done = true;
  }
  if (last_flight && last_flight->group.get() == &group) last_flight.reset();
}

void Context::release_ended() {
  std::vector<std::shared_ptr<Flight>> ended;
  const std::lock_guard lock(mutex);
  for (const auto& flight : flights_) {
    const bool is_watched = flight->span && flight->is_launched && !flight->is_done;
    if (is_watched && !failure_ && cudaEventQuery(flight->end) == cudaSuccess) finish(*flight);
  }
  const auto first = std::ranges::stable_partition(flights_, [](const auto& flight) { return !flight->is_done; });
  ended.assign(first.begin(), first.end());
  flights_.erase(first.begin(), first.end());
}

void Context::throw_if_failed() const {
  const std::lock_guard lock(mutex);
  if (failure_) throw PeerFailure(*failure_);
}

void Context::close(Group& group) noexcept {
  const Clock::time_point deadline = Clock::now() + options.timeout;
  bool is_quiet = false;
  Pause pause;
  {
    const std::lock_guard lock(mutex);
    std::erase(groups_, &group);
    if (group.comm == nullptr) return;
    if (!failure_) is_quiet = is_fine(ncclCommFinalize(group.comm));
  }
  ncclResult_t state = ncclInProgress;
  while (is_quiet && state == ncclInProgress) {
    is_quiet = ncclCommGetAsyncError(group.comm, &state) == ncclSuccess && is_fine(state) && Clock::now() < deadline;
    if (state == ncclInProgress) pause.wait();
  }
  if (is_quiet) {
    ncclCommDestroy(group.comm);
  } else {
    ncclCommAbort(group.comm);
  }
  group.comm = nullptr;
}

}  // namespace shardproof::nccl
