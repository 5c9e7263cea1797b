// The part of NCCL that the product uses, between processes that share a fabric. Strict: members must agree about every
// call, calls that do not block must be polled before the stream is used, memory must be this rank's, and nothing may
// be done with a communicator that is in progress, aborted or destroyed. What is not implemented does not link.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>

#include <unistd.h>

#include "tests/fake_nccl/fabric_body.h"
#include "tests/fake_nccl/watch_hooks.h"

struct ncclComm {
  shardproof::fake_nccl::SharedCommunicator* shared = nullptr;
  int rank = 0;
  int size = 0;
  bool is_blocking = true;
  std::atomic<bool> is_aborted{false};
  const char* ended_by = nullptr;  // the call that ended it
  std::atomic<ncclResult_t> error{ncclSuccess};
  std::atomic<int> running{0};  // launches on a stream
  int polls = 0;                // answers "in progress" still to be given
  std::vector<std::function<void()>> unlaunched;
  bool is_finalized = false;
  std::uint64_t calls = 0;  // collective ones
  std::array<std::uint64_t, shardproof::fake_nccl::kMostRanks> sent{};
  std::array<std::uint64_t, shardproof::fake_nccl::kMostRanks> received{};
  // A split that is in progress: where its child is to stand.
  struct Split {
    std::uint64_t call = 0;
    int color = 0;
    ncclComm* child = nullptr;
  };
  std::optional<Split> split;
  bool is_connected = false;
};

namespace shardproof::fake_nccl {
namespace {

std::vector<std::unique_ptr<ncclComm>>& handles() {
  static auto* const all = new std::vector<std::unique_ptr<ncclComm>>;  // never freed: later uses are to be seen
  return *all;
}

std::atomic<int> launch_count{0};

std::size_t type_bytes(int type) {
  constexpr std::array<std::size_t, 12> kBytes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return kBytes.at(static_cast<std::size_t>(type));
}

std::size_t offset_of(const void* data) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(data) - shared_base());
}

// One call inside a launch, driven until it is done.
class Step {
 public:
  virtual ~Step() = default;
  // True once it is done. May be called again until then.
  virtual bool advance() = 0;
};

std::string terms_text(const Terms& terms) {
  return fmt::format("{} of {} elements of type {}, reduction {}, root {}", call_name(terms.call), terms.count,
                     terms.type, terms.reduction, terms.root);
}

bool agree(const Terms& a, const Terms& b) {
  return a.call == b.call && a.count == b.count && a.type == b.type && a.reduction == b.reduction && a.root == b.root;
}

class Collective final : public Step {
 public:
  Collective(ncclComm& comm, Terms terms, void* receive)
      : comm_(comm), terms_(terms), receive_(static_cast<std::byte*>(receive)), call_(comm.calls++) {}

  bool advance() override {
    if (stage_ == 0) state_terms();
    if (stage_ == 1 && everybody([](const Seat& seat) { return seat.stated.load(); })) read();
    if (stage_ == 2 && everybody([](const Seat& seat) { return seat.read.load(); })) {
      if (!result_.empty()) std::memcpy(receive_, result_.data(), result_.size());
      stage_ = 3;
    }
    return stage_ == 3;
  }

 private:
  Seat& seat(int rank) const { return comm_.shared->collectives[call_ % kSlots][static_cast<std::size_t>(rank)]; }
  template <class Number>
  bool everybody(Number number) const {
    for (int rank = 0; rank < comm_.size; ++rank) {
      if (number(seat(rank)) <= call_) return false;
    }
    return true;
  }

  void state_terms() {
    seat(comm_.rank).terms = terms_;
    seat(comm_.rank).stated = call_ + 1;
    ring_bell();
    stage_ = 1;
  }

  void read() {
    for (int rank = 0; rank < comm_.size; ++rank) {
      if (agree(seat(rank).terms, terms_)) continue;
      violate(call_name(terms_.call), "call {} is {} here, but {} on member {}", call_ + 1, terms_text(terms_),
              terms_text(seat(rank).terms), rank);
      comm_.error = ncclInvalidUsage;
      stage_ = 4;  // hangs, as the real one would
      return;
    }
    const std::size_t bytes = terms_.count * type_bytes(terms_.type);
    const auto sent_by = [&](int rank) { return shared_base() + seat(rank).terms.send; };
    if (terms_.call == Call::all_gather) {
      for (int rank = 0; rank < comm_.size; ++rank) result_.insert(result_.end(), sent_by(rank), sent_by(rank) + bytes);
    } else if (terms_.call == Call::broadcast) {
      result_.assign(sent_by(terms_.root), sent_by(terms_.root) + bytes);
    } else {
      add_up(sent_by);
    }
    seat(comm_.rank).read = call_ + 1;
    ring_bell();
    stage_ = 2;
  }

  template <class SentBy>
  void add_up(SentBy sent_by) {
    std::vector<std::int32_t> sum(terms_.count);
    for (int rank = 0; rank < comm_.size; ++rank) {
      const auto* const values = reinterpret_cast<const std::int32_t*>(sent_by(rank));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    const auto* const bytes = reinterpret_cast<const std::byte*>(sum.data());
    result_.assign(bytes, bytes + sum.size() * sizeof(std::int32_t));
  }

  ncclComm& comm_;
  Terms terms_;
  std::byte* receive_;
  std::uint64_t call_;
  int stage_ = 0;
  std::vector<std::byte> result_;
};

// One end of a letter from one rank to another.
class Letter final : public Step {
 public:
  Letter(ncclComm& comm, Terms terms, int peer, void* receive)
      : comm_(comm), terms_(terms), peer_(peer), receive_(receive) {
    auto& count = terms.call == Call::send ? comm.sent : comm.received;
    number_ = count[static_cast<std::size_t>(peer)]++;
  }

  bool advance() override {
    if (has_failed_) return false;
    return terms_.call == Call::send ? advance_send() : advance_receive();
  }

 private:
  Seat& seat() const {
    const int from = terms_.call == Call::send ? comm_.rank : peer_;
    const int to = terms_.call == Call::send ? peer_ : comm_.rank;
    return comm_.shared->letters[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)][number_ % kSlots];
  }

  bool advance_send() {
    if (!is_stated_) {
      seat().terms = terms_;
      seat().stated = number_ + 1;
      is_stated_ = true;
      ring_bell();
    }
    return seat().read > number_;
  }

  bool advance_receive() {
    if (seat().stated <= number_) return false;
    const Terms& sent = seat().terms;
    if (sent.count != terms_.count || sent.type != terms_.type) {
      violate("ncclRecv", "{} elements of type {} are expected from member {}, which sends {} of type {}", terms_.count,
              terms_.type, peer_, sent.count, sent.type);
      comm_.error = ncclInvalidUsage;
      has_failed_ = true;
      return false;
    }
    std::memcpy(receive_, shared_base() + sent.send, terms_.count * type_bytes(terms_.type));
    seat().read = number_ + 1;
    ring_bell();
    return true;
  }

  ncclComm& comm_;
  Terms terms_;
  int peer_;
  void* receive_;
  std::uint64_t number_ = 0;
  bool is_stated_ = false;
  bool has_failed_ = false;
};

// ---- launches

using Steps = std::vector<std::shared_ptr<Step>>;

// What a stream does for one launch: misbehaves as asked, then drives all calls until they are done.
void run_launch(ncclComm& comm, const Steps& steps) {
  const Faults& faults = faults_of(own_rank());
  const int number = ++launch_count;
  const auto hang = [&] {
    while (!comm.is_aborted) wait_for_bell(shared().bell);
  };
  if (faults.delayed_launch == number) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(faults.delay_ms);
    while (std::chrono::steady_clock::now() < until && !comm.is_aborted) usleep(500);
  }
  if (faults.failing_launch == number) {
    comm.error = ncclRemoteError;
    hang();
  }
  if (faults.dropped_launch != 0 && number >= faults.dropped_launch) hang();
  std::vector<bool> is_done(steps.size());
  while (!comm.is_aborted) {
    const std::uint32_t heard = shared().bell;
    bool all = true;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!is_done[i]) is_done[i] = steps[i]->advance();
      all = all && is_done[i];
    }
    if (all) break;
    wait_for_bell(heard);
  }
  --comm.running;
}

void launch(ncclComm& comm, cudaStream_t handle, Steps steps) {
  CUstream_st& stream = stream_of(handle);
  ++stream.unlaunched;
  comm.unlaunched.push_back([&comm, &stream, steps = std::move(steps)] {
    --stream.unlaunched;
    ++comm.running;
    const WatchHooks* const watch = watch_hooks();
    std::uint32_t call = 0;
    // What does not block is launched by a thread of NCCL.
    if (watch != nullptr) call = comm.is_blocking ? watch->launched() : watch->launched_elsewhere();
    stream.add([&comm, &stream, steps, watch, call] {
      const std::uint64_t begin = watch == nullptr ? 0 : watch->now();
      run_launch(comm, steps);
      if (watch != nullptr) watch->ran_kernel(call, "ncclDevKernel_Fake", &stream, begin, watch->now());
    });
  });
  comm.polls = comm.is_blocking ? 0 : faults_of(own_rank()).polls_in_progress.load();
}

void start_unlaunched(ncclComm& comm) {
  for (const auto& start : comm.unlaunched) start();
  comm.unlaunched.clear();
}

// ---- groups of calls

struct QueuedCall {
  ncclComm* comm;
  cudaStream_t stream;
  std::shared_ptr<Step> step;
};
struct CallGroup {
  int depth = 0;
  std::vector<QueuedCall> calls;
};
CallGroup& call_group() {
  thread_local CallGroup group;
  return group;
}

ncclResult_t launch_queued() {
  std::vector<QueuedCall> calls = std::move(call_group().calls);
  call_group().calls.clear();
  ncclResult_t result = ncclSuccess;
  while (!calls.empty()) {
    ncclComm* const comm = calls.front().comm;
    const cudaStream_t stream = calls.front().stream;
    Steps steps;
    for (const QueuedCall& call : calls) {
      if (call.comm != comm) continue;
      if (call.stream != stream) violate("ncclGroupEnd", "a communicator has calls on two streams in one group");
      steps.push_back(call.step);
    }
    std::erase_if(calls, [comm](const QueuedCall& call) { return call.comm == comm; });
    launch(*comm, stream, std::move(steps));
    if (comm->is_blocking) {
      start_unlaunched(*comm);
    } else {
      result = ncclInProgress;
    }
  }
  return result;
}

// ---- communicators

bool check_alive(ncclComm_t comm, std::string_view call) {
  if (comm == nullptr) {
    violate(call, "no communicator");
    return false;
  }
  if (comm->ended_by != nullptr) {
    violate(call, "used after {}", comm->ended_by);
    return false;
  }
  return true;
}

bool is_in_progress(ncclComm& comm) { return !comm.is_connected || comm.split || !comm.unlaunched.empty(); }

bool check_ready(ncclComm_t comm, std::string_view call) {
  if (!check_alive(comm, call)) return false;
  if (is_in_progress(*comm) && call_group().depth == 0) {
    violate(call, "the communicator is still in progress");
    return false;
  }
  if (comm->is_finalized) {
    violate(call, "used after ncclCommFinalize");
    return false;
  }
  return true;
}

class TableLock {
 public:
  TableLock() {
    while (shared().table_lock.exchange(true)) usleep(10);
  }
  ~TableLock() { shared().table_lock = false; }
  TableLock(const TableLock&) = delete;
  TableLock& operator=(const TableLock&) = delete;
};

// Takes this rank's place in the communicator of that key.
bool join(ncclComm& comm, std::uint64_t key, int size, int rank, std::string_view call) {
  const TableLock lock;
  auto& table = shared().communicators;
  auto found = std::ranges::find(table, key, [](const auto& entry) { return entry.key.load(); });
  if (found == table.end()) found = std::ranges::find(table, 0U, [](const auto& entry) { return entry.key.load(); });
  if (found == table.end()) {
    violate(call, "more than {} communicators", kMostCommunicators);
    return false;
  }
  SharedCommunicator& entry = *found;
  if (entry.key == 0) {
    entry.size = size;
    entry.key = key;
  }
  if (entry.size != size || rank < 0 || rank >= size || entry.is_present[static_cast<std::size_t>(rank)]) {
    violate(call, "rank {} of {}, in a communicator of {} whose place is {}", rank, size, entry.size,
            rank >= 0 && rank < size && entry.is_present[static_cast<std::size_t>(rank)] ? "taken" : "free");
    return false;
  }
  entry.is_present[static_cast<std::size_t>(rank)] = true;
  ++entry.arrived;
  comm.shared = &entry;
  comm.size = size;
  comm.rank = rank;
  ring_bell();
  return true;
}

// The last to leave gives the place free.
void leave(ncclComm& comm, const char* call) {
  comm.ended_by = call;
  if (comm.shared == nullptr) return;
  const TableLock lock;
  if (++comm.shared->gone < comm.shared->size) return;
  comm.shared->~SharedCommunicator();
  new (comm.shared) SharedCommunicator;
}

ncclComm* new_handle(bool is_blocking) {
  handles().push_back(std::make_unique<ncclComm>());
  handles().back()->is_blocking = is_blocking;
  return handles().back().get();
}

bool check_config(const ncclConfig_t* config, std::string_view call) {
  const ncclConfig_t expected = NCCL_CONFIG_INITIALIZER;
  if (config->size == expected.size && config->magic == expected.magic && config->version == expected.version) {
    return true;
  }
  violate(call, "the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
  return false;
}

// Ends a split once all members have said their colour and key: the child joins the communicator of its colour.
void advance_split(ncclComm& comm) {
  auto& seats = comm.shared->collectives[comm.split->call % kSlots];
  std::vector<std::pair<int, int>> group;  // key, rank
  for (int rank = 0; rank < comm.size; ++rank) {
    const Seat& seat = seats[static_cast<std::size_t>(rank)];
    if (seat.stated <= comm.split->call) return;
    if (seat.terms.call != Call::split) {
      violate("ncclCommSplit", "member {} calls {} instead", rank, call_name(seat.terms.call));
      comm.error = ncclInvalidUsage;
      return;
    }
    if (seat.terms.color == comm.split->color) group.emplace_back(seat.terms.key, rank);
  }
  std::ranges::sort(group);
  if (comm.split->child != nullptr) {
    const auto own = std::ranges::find(group, comm.rank, &std::pair<int, int>::second);
    // Odd, as all keys are, and another for every call and colour.
    const std::uint64_t key = comm.shared->key * 0x9E3779B97F4A7C15U + comm.split->call * 2048 +
                              static_cast<std::uint64_t>(comm.split->color) * 2;
    join(*comm.split->child, key, static_cast<int>(group.size()), static_cast<int>(own - group.begin()),
         "ncclCommSplit");
  }
  seats[static_cast<std::size_t>(comm.rank)].read = comm.split->call + 1;
  comm.split.reset();
}

ncclResult_t poll(ncclComm& comm) {
  if (comm.error != ncclSuccess) return comm.error;
  if (comm.shared == nullptr || comm.polls-- > 0) return ncclInProgress;
  if (!comm.is_connected) {
    if (shared().faults[0].never_connects != 0 || comm.shared->arrived < comm.size) return ncclInProgress;
    comm.is_connected = true;
  }
  if (comm.split) advance_split(comm);
  if (comm.error != ncclSuccess) return comm.error;
  if (comm.split) return ncclInProgress;
  start_unlaunched(comm);
  if (comm.is_finalized && comm.running > 0) return ncclInProgress;
  return ncclSuccess;
}

ncclResult_t queue(ncclComm_t comm, cudaStream_t stream, std::shared_ptr<Step> step) {
  call_group().calls.push_back({comm, stream, std::move(step)});
  return call_group().depth > 0 ? ncclSuccess : launch_queued();
}

ncclResult_t collective(Terms terms, const void* send, void* receive, std::size_t receive_bytes, ncclComm_t comm,
                        cudaStream_t stream) {
  const std::string_view call = call_name(terms.call);
  if (!check_ready(comm, call)) return ncclInvalidUsage;
  const bool reads = terms.call != Call::broadcast || comm->rank == terms.root;
  const bool is_legal = (!reads || check_memory(send, terms.count * type_bytes(terms.type), call, "what is sent")) &&
                        check_memory(receive, receive_bytes, call, "what is received");
  if (!is_legal) return ncclInvalidArgument;
  terms.send = reads ? offset_of(send) : 0;
  return queue(comm, stream, std::make_shared<Collective>(*comm, terms, receive));
}

ncclResult_t letter(Call call, const void* send, void* receive, std::size_t count, ncclDataType_t type, int peer,
                    ncclComm_t comm, cudaStream_t stream) {
  const std::string_view name = call_name(call);
  if (!check_ready(comm, name)) return ncclInvalidUsage;
  if (peer < 0 || peer >= comm->size || peer == comm->rank) {
    violate(name, "member {} of {} is no peer of member {}", peer, comm->size, comm->rank);
    return ncclInvalidArgument;
  }
  if (count == 0) violate(name, "nothing, which both sides should leave out");
  const void* const data = call == Call::send ? send : receive;
  if (!check_memory(data, count * type_bytes(type), name, "the memory")) return ncclInvalidArgument;
  const Terms terms{.call = call, .count = count, .type = type, .send = call == Call::send ? offset_of(send) : 0};
  return queue(comm, stream, std::make_shared<Letter>(*comm, terms, peer, receive));
}

}  // namespace

int launches() { return launch_count; }

std::string communicators_left() {
  const auto left = std::ranges::count_if(handles(), [](const auto& comm) { return comm->ended_by == nullptr; });
  return left == 0 ? std::string() : fmt::format(" {} communicators", left);
}

}  // namespace shardproof::fake_nccl

using namespace shardproof::fake_nccl;

extern "C" {

// Where it is loaded it may pretend to be of another version.
ncclResult_t ncclGetVersion(int* version) {
  const char* const told = std::getenv("SHARDPROOF_FAKE_NCCL_VERSION");
  *version = told == nullptr ? NCCL_VERSION_CODE : std::atoi(told);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<std::uint64_t> next{0};
  const std::uint64_t key = (static_cast<std::uint64_t>(getpid()) << 32U) + ++next * 2 + 1;
  *id = {};
  std::memcpy(id->internal, &key, sizeof(key));
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) { return "said by the fake"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  constexpr std::string_view kCall = "ncclCommInitRankConfig";
  if (!check_config(config, kCall)) return ncclInvalidArgument;
  std::uint64_t key = 0;
  std::memcpy(&key, id.internal, sizeof(key));
  *comm = new_handle(config->blocking != 0);
  if (!join(**comm, key, size, rank, kCall)) return ncclInvalidUsage;
  (*comm)->polls = faults_of(own_rank()).polls_in_progress;
  if (!(*comm)->is_blocking) return ncclInProgress;
  while (poll(**comm) == ncclInProgress) usleep(100);
  return (*comm)->error;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  constexpr std::string_view kCall = "ncclCommSplit";
  if (!check_ready(comm, kCall) || !check_config(config, kCall)) return ncclInvalidUsage;
  if (comm->is_blocking || config->blocking != 0) violate(kCall, "only the form that does not block is implemented");
  *child = color == NCCL_SPLIT_NOCOLOR ? nullptr : new_handle(false);
  if (color < NCCL_SPLIT_NOCOLOR) violate(kCall, "colour {}", color);
  Seat& seat = comm->shared->collectives[comm->calls % kSlots][static_cast<std::size_t>(comm->rank)];
  seat.terms = {.call = Call::split, .color = color, .key = key};
  seat.stated = comm->calls + 1;
  comm->split = {.call = comm->calls++, .color = color, .child = *child};
  comm->polls = faults_of(own_rank()).polls_in_progress;
  ring_bell();
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (!check_alive(comm, "ncclCommGetAsyncError")) return ncclInvalidArgument;
  *error = poll(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!check_ready(comm, "ncclCommFinalize")) return ncclInvalidUsage;
  comm->is_finalized = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!check_alive(comm, "ncclCommDestroy")) return ncclInvalidArgument;
  if (!comm->is_finalized || comm->running > 0) violate("ncclCommDestroy", "not finalised, or calls are running");
  leave(*comm, "ncclCommDestroy");
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!check_alive(comm, "ncclCommAbort")) return ncclInvalidArgument;
  comm->is_aborted = true;
  ring_bell();
  while (comm->running > 0) usleep(100);
  leave(*comm, "ncclCommAbort");
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++call_group().depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (call_group().depth == 0) {
    violate("ncclGroupEnd", "no group was started");
    return ncclInvalidUsage;
  }
  return --call_group().depth > 0 ? ncclSuccess : launch_queued();
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  const std::size_t members = comm == nullptr ? 0 : static_cast<std::size_t>(comm->size);
  return collective({.call = Call::all_gather, .count = count, .type = type}, send, receive,
                    count * type_bytes(type) * members, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective({.call = Call::broadcast, .count = count, .type = type, .root = root}, send, receive,
                    count * type_bytes(type), comm, stream);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                           ncclComm_t comm, cudaStream_t stream) {
  if (type != ncclInt32 || reduction != ncclSum) violate("ncclAllReduce", "only sums of int32 are implemented");
  return collective({.call = Call::all_reduce, .count = count, .type = type, .reduction = reduction}, send, receive,
                    count * type_bytes(type), comm, stream);
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return letter(Call::send, data, nullptr, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return letter(Call::receive, nullptr, data, count, type, peer, comm, stream);
}

}  // extern "C"
