#include "real/cuda_threads.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/error.h"
#include "core/rendezvous.h"
#include "real/cuda_library.h"
#include "real/device_activity.h"

namespace shardproof {
namespace {

void check(cudaError_t status, std::string_view call) {
  SHARDPROOF_CHECK(status == cudaSuccess, internal_error, "{} failed: {}", call, cudaGetErrorString(status));
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

struct StreamPair {
  Stream compute;
  Stream copies;
};

// Events that serve again and again; any thread takes and gives them.
class Events {
 public:
  Events() = default;
  ~Events() {
    for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  cudaEvent_t take() {
    const std::lock_guard lock(mutex_);
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    } else {
      event = free_.back();
      free_.pop_back();
    }
    return event;
  }
  void give(cudaEvent_t event) {
    const std::lock_guard lock(mutex_);
    free_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

// Events that have been recorded. The pool outlives it, as marks may be kept by works that nobody waited for.
class EventMark final : public Mover::Mark {
 public:
  explicit EventMark(std::shared_ptr<Events> pool) : pool_(std::move(pool)) {}
  ~EventMark() override {
    for (const cudaEvent_t event : events_) pool_->give(event);
  }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  void record(cudaStream_t stream) {
    events_.push_back(pool_->take());
    check(cudaEventRecord(events_.back(), stream), "cudaEventRecord");
  }
  void make_wait(cudaStream_t stream) const {
    for (const cudaEvent_t event : events_) check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
  }

 private:
  std::shared_ptr<Events> pool_;
  std::vector<cudaEvent_t> events_;
};

// Copies on the stream of the rank that receives, behind what all members computed before they posted.
class CudaMover final : public Mover {
 public:
  CudaMover(std::span<const StreamPair> streams, DeviceActivity* activity) : streams_(streams), activity_(activity) {}

  std::shared_ptr<Mark> mark_ready(int rank) override {
    auto mark = std::make_shared<EventMark>(events_);
    mark->record(streams_[static_cast<std::size_t>(rank)].compute.get());
    return mark;
  }

  std::shared_ptr<Mark> move(std::span<const Movement> movements,
                             std::span<const std::shared_ptr<Mark>> ready) override {
    auto moved = std::make_shared<EventMark>(events_);
    std::optional<int> receiver;
    const auto end_receiver = [&] {
      if (receiver) moved->record(streams_[static_cast<std::size_t>(*receiver)].copies.get());
    };
    // The movements of a receiver stand together.
    for (const Movement& movement : movements) {
      const cudaStream_t stream = streams_[static_cast<std::size_t>(movement.to)].copies.get();
      if (receiver != movement.to) {
        end_receiver();
        receiver = movement.to;
        for (const auto& mark : ready) static_cast<const EventMark&>(*mark).make_wait(stream);
      }
      const LaunchMark launched(activity_, movement.to, movement.event);  // by whichever thread settles
      check(cudaMemcpyAsync(movement.target, movement.source, movement.bytes, cudaMemcpyDefault, stream),
            "cudaMemcpyAsync");
    }
    end_receiver();
    return moved;
  }

  void follow(int rank, Mark& moved) override {
    static_cast<EventMark&>(moved).make_wait(streams_[static_cast<std::size_t>(rank)].compute.get());
  }

 private:
  std::span<const StreamPair> streams_;
  DeviceActivity* activity_;
  std::shared_ptr<Events> events_ = std::make_shared<Events>();
};

bool is_in_device_memory(const Tensor& tensor) {
  if (!tensor.defined() || tensor.bytes() == 0) return true;
  cudaPointerAttributes attributes{};
  const cudaError_t status = cudaPointerGetAttributes(&attributes, tensor.data());
  if (status != cudaSuccess) cudaGetLastError();  // not kept for the next call to report
  return status == cudaSuccess && (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged);
}

class CudaThreadCommunicator final : public Communicator {
 public:
  CudaThreadCommunicator(std::shared_ptr<Rendezvous> rendezvous, const RendezvousGroup& group, int member)
      : Communicator(group.name, Members(rendezvous, &group.members), member),
        rendezvous_(std::move(rendezvous)),
        group_(group) {}

 private:
  std::unique_ptr<Work> do_post(Request request) override {
    for (const Tensor& tensor : {request.send, request.receive}) {
      SHARDPROOF_CHECK(is_in_device_memory(tensor), unsupported_error,
                       "{} in {}: {} does not lie in device memory, which ranks on one GPU need", request.text(),
                       name(), tensor.text());
    }
    return rendezvous_->post(group_, rank(), std::move(request));
  }

  std::unique_ptr<Communicator> do_split(int color, int key, std::string name) override {
    const auto [group, member] = rendezvous_->split(group_, rank(), color, key, std::move(name));
    if (group == nullptr) return nullptr;
    return std::make_unique<CudaThreadCommunicator>(rendezvous_, *group, member);
  }

  std::shared_ptr<Rendezvous> rendezvous_;
  const RendezvousGroup& group_;
};

// Ends a rank when the run is given up. No std::exception, so that bodies that catch those do not swallow it.
struct Cancelled {};

class Crew;
struct Running {
  const Crew* crew = nullptr;
  int rank = -1;
};
thread_local Running running;

// The threads of the ranks. The last of them to wait or to end settles what was posted, alone.
class Crew final : public Carrier {
 public:
  Crew(const CudaThreadsOptions& options, const CudaRank& body)
      : options_(options),
        body_(body),
        streams_(static_cast<std::size_t>(options.world_size)),
        mover_(streams_, options.activity),
        rendezvous_(
            std::make_shared<Rendezvous>(RendezvousOptions{.world_size = options.world_size, .mover = &mover_}, *this)),
        may_run_(streams_.size(), true),
        failures_(streams_.size()),
        runnable_(options.world_size) {}

  void run() {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < options_.world_size; ++rank) threads.emplace_back([this, rank] { live(rank); });
    for (std::thread& thread : threads) thread.join();
    for (const StreamPair& pair : streams_) {
      pair.compute.synchronize();
      pair.copies.synchronize();
    }
    rendezvous_->close();
    rethrow();
  }

  void block(int rank) override {
    if (options_.mode == CudaThreadsMode::serial) synchronize(rank);
    std::unique_lock lock(mutex_);
    stop_running(rank);
    await_turn(lock, rank);
  }
  void wake(int rank) override {
    may_run_[static_cast<std::size_t>(rank)] = true;
    ++runnable_;
  }
  int calling_rank() const override { return running.crew == this ? running.rank : -1; }

 private:
  void synchronize(int rank) const {
    const StreamPair& own = streams_[static_cast<std::size_t>(rank)];
    own.compute.synchronize();
    own.copies.synchronize();
  }

  // In serial mode the first rank that may run.
  bool has_turn(int rank) const {
    const auto own = static_cast<std::size_t>(rank);
    if (!may_run_[own]) return false;
    return options_.mode == CudaThreadsMode::concurrent ||
           std::find(may_run_.begin(), may_run_.end(), true) - may_run_.begin() == rank;
  }

  void await_turn(std::unique_lock<std::mutex>& lock, int rank) {
    changed_.wait(lock, [&] { return is_cancelled_ || has_turn(rank); });
    if (!is_cancelled_) return;
    lock.unlock();
    // Others may still be copying from what this rank is about to free.
    for (const StreamPair& pair : streams_) pair.copies.synchronize();
    throw Cancelled{};
  }

  void stop_running(int rank) {
    may_run_[static_cast<std::size_t>(rank)] = false;
    if (--runnable_ == 0 && !is_cancelled_) {
      try {
        rendezvous_->settle();
      } catch (...) {
        settling_failure_ = std::current_exception();
        is_cancelled_ = true;
      }
    }
    changed_.notify_all();
  }

  void live(int rank) {
    running = {.crew = this, .rank = rank};
    try {
      check(cudaSetDevice(options_.device), "cudaSetDevice");
      {
        std::unique_lock lock(mutex_);
        await_turn(lock, rank);
      }
      CudaThreadCommunicator world(rendezvous_, rendezvous_->world(), rank);
      body_(world, streams_[static_cast<std::size_t>(rank)].compute.get());
      rendezvous_->finish(rank);
      if (options_.mode == CudaThreadsMode::serial) synchronize(rank);
    } catch (const Cancelled&) {
      // Another rank says why.
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failures_[static_cast<std::size_t>(rank)] = std::current_exception();
      is_cancelled_ = true;
    }
    running = {};
    const std::lock_guard lock(mutex_);
    stop_running(rank);
  }

  void rethrow() const {
    for (std::size_t rank = 0; rank < failures_.size(); ++rank) {
      if (!failures_[rank]) continue;
      try {
        std::rethrow_exception(failures_[rank]);
      } catch (const Refusal& refusal) {
        refuse(refusal.kind(), "rank {}: {}", rank, refusal.what());
      } catch (const Error& error) {
        fail(error.kind(), "rank {}: {}", rank, error.what());
      } catch (const std::exception& error) {
        fail(ErrorKind::internal_error, "rank {}: {}", rank, error.what());
      }
    }
    if (settling_failure_) std::rethrow_exception(settling_failure_);
  }

  CudaThreadsOptions options_;
  const CudaRank& body_;
  std::vector<StreamPair> streams_;
  CudaMover mover_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> may_run_;  // this and all below: guarded by mutex_
  std::vector<std::exception_ptr> failures_;
  std::exception_ptr settling_failure_;
  int runnable_;
  bool is_cancelled_ = false;
};

}  // namespace

void run_cuda_ranks(const CudaThreadsOptions& options, const CudaRank& body) {
  constexpr int kMostRanks = 256;
  SHARDPROOF_CHECK(options.world_size >= 1 && options.world_size <= kMostRanks, config_error,
                   "{} ranks on one GPU; expected 1 to {}", options.world_size, kMostRanks);
  require_cuda();
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  SHARDPROOF_CHECK(status == cudaSuccess, unsupported_error, "ranks on one GPU need a GPU: cudaGetDeviceCount: {}",
                   cudaGetErrorString(status));
  SHARDPROOF_CHECK(options.device >= 0 && options.device < devices, config_error,
                   "CUDA device {} is wanted, but there are {}", options.device, devices);
  check(cudaSetDevice(options.device), "cudaSetDevice");
  Crew(options, body).run();
}

bool cuda_threads_are_built() { return true; }

}  // namespace shardproof
