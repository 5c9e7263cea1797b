#include "real/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <mpi.h>

#include "core/device.h"
#include "core/error.h"
#include "core/random.h"
#include "real/mpi_progress.h"
#include "real/peer_failure.h"
#include "real/socket.h"
#include "real/watchdog.h"

namespace shardproof {
namespace {

std::string status_text(int status) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check(int status, std::string_view call) {
  if (status == MPI_SUCCESS) [[likely]]
    return;
  fail(ErrorKind::collective_error, "{} failed: {}", call, status_text(status));
}

std::byte* bytes_of(const Tensor& tensor) { return tensor.defined() ? tensor.data() : nullptr; }
std::size_t size_of(const Tensor& tensor) { return tensor.defined() ? tensor.bytes() : 0; }

}  // namespace

// What all groups of a session share.
struct MpiState {
  MpiOptions options;
  std::unique_ptr<ProgressTable> progress = nullptr;
  MPI_Win window = MPI_WIN_NULL;  // of the table
  bool has_failed = false;        // a wait has been given up: what is in flight stays so
};

namespace {

// MPI's handle of a group with all that a message about it needs; freed when the last communicator and operation that
// use it are gone.
struct Group {
  std::shared_ptr<MpiState> state;
  MPI_Comm comm = MPI_COMM_NULL;
  bool is_owned = false;
  std::string name;
  std::vector<int> members;  // world ranks
  int rank = 0;
  std::uint64_t id = 0;  // the same on all members, and of no other group
  std::optional<std::size_t> slot = std::nullopt;
  std::uint64_t posted = 0;
  std::uint64_t splits = 0;

  Group() = default;
  ~Group() {
    if (slot) state->progress->leave(*slot);
    if (is_owned && !state->has_failed) MPI_Comm_free(&comm);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  std::size_t size() const { return members.size(); }
  int world_rank() const { return members[static_cast<std::size_t>(rank)]; }
  // The number of the operation, counted from 1.
  std::uint64_t note_posted() {
    ++posted;
    if (slot) state->progress->note_posted(*slot, posted);
    return posted;
  }
  [[noreturn]] void fail_late(std::string_view operation, std::uint64_t number) const {
    state->has_failed = true;
    fail_for_peer("rank {} in {}: {} (operation {} of the group) was not complete after {}; {}", rank, name, operation,
                  number, seconds_text(state->options.patience),
                  lateness_text(*state->progress, members, world_rank(), id, number));
  }
};

// What MPI reads and writes until an operation is complete.
struct Posted {
  Request request;
  std::vector<std::int64_t> numbers;
  std::vector<int> counts, offsets;
  std::vector<MPI_Request> pending;
};

// Waits until all are complete; false if that takes longer than the group's patience.
bool completes(std::vector<MPI_Request>& pending, const Group& group) {
  constexpr unsigned kRoundsBetweenYields = 64;
  const Deadline deadline(group.state->options.patience);
  for (unsigned round = 1;; ++round) {
    int is_complete = 0;
    const int status = MPI_Testall(static_cast<int>(pending.size()), pending.data(), &is_complete, MPI_STATUSES_IGNORE);
    if (status != MPI_SUCCESS) {
      group.state->has_failed = true;
      fail_for_peer("rank {} in {}: MPI_Testall failed: {}", group.rank, group.name, status_text(status));
    }
    if (is_complete != 0) return true;
    if (round % kRoundsBetweenYields != 0) continue;
    if (deadline.is_over()) return false;
    std::this_thread::yield();  // there may be more ranks than processors
  }
}

class MpiWork final : public Work {
 public:
  MpiWork(std::shared_ptr<Group> group, Request request)
      : group_(std::move(group)), posted_(std::make_unique<Posted>()) {
    posted_->request = std::move(request);
    start();
    number_ = group_->note_posted();
  }

  ~MpiWork() override {
    // An operation that nobody waited for still owns memory that MPI writes to; it has to end before that is freed, or
    // the memory is never freed.
    if (is_complete_) return;
    try {
      if (!group_->state->has_failed && completes(posted_->pending, *group_)) return;
    } catch (const Error&) {
      group_->state->has_failed = true;
    }
    (void)posted_.release();
  }

  void wait() override {
    if (!completes(posted_->pending, *group_)) group_->fail_late(posted_->request.text(), number_);
    is_complete_ = true;
  }
  std::span<const std::int64_t> numbers() const override { return posted_->numbers; }

 private:
  const Request& request() const { return posted_->request; }
  MPI_Comm comm() const { return group_->comm; }
  std::size_t most_bytes() const { return group_->state->options.most_message_bytes; }
  std::size_t row_bytes() const {
    return static_cast<std::size_t>(request().row_shape.numel()) * request().dtype.size();
  }

  void start() {
    switch (request().operation) {
      case Operation::all_gather: return start_all_gather();
      case Operation::all_to_all: return start_all_to_all();
      case Operation::broadcast: return start_broadcast();
      case Operation::scatter: return start_scatter();
      case Operation::exchange: return start_exchange();
      case Operation::barrier:
        return add("MPI_Ibarrier", [&](MPI_Request* pending) { return MPI_Ibarrier(comm(), pending); });
      case Operation::all_gather_numbers: return start_numbers();
      case Operation::split: fail(ErrorKind::internal_error, "split is no posted operation over MPI");
    }
  }

  template <class Call>
  void add(std::string_view name, const Call& call) {
    MPI_Request pending = MPI_REQUEST_NULL;
    check(call(&pending), name);
    posted_->pending.push_back(pending);
  }

  // Calls body(offset, count) for pieces that one message can have; once with nothing for no bytes.
  template <class Body>
  void in_pieces(std::size_t bytes, const Body& body) const {
    std::size_t offset = 0;
    do {
      const std::size_t count = std::min(bytes - offset, most_bytes());
      body(offset, static_cast<int>(count));
      offset += count;
    } while (offset < bytes);
  }

  // Messages between two processes do not overtake each other, so one tag serves all that go from member to member.
  static constexpr int kTag = 0;
  void send(const std::byte* bytes, std::size_t size, int to) {
    in_pieces(size, [&](std::size_t offset, int count) {
      add("MPI_Isend",
          [&](MPI_Request* pending) { return MPI_Isend(bytes + offset, count, MPI_BYTE, to, kTag, comm(), pending); });
    });
  }
  void receive(std::byte* bytes, std::size_t size, int from) {
    in_pieces(size, [&](std::size_t offset, int count) {
      add("MPI_Irecv", [&](MPI_Request* pending) {
        return MPI_Irecv(bytes + offset, count, MPI_BYTE, from, kTag, comm(), pending);
      });
    });
  }

  // Byte ranges of the members' rows.
  struct Parts {
    std::vector<std::size_t> sizes, offsets;
  };
  Parts parts_of(std::span<const std::int64_t> rows) const {
    Parts parts;
    std::size_t offset = 0;
    for (const std::int64_t count : rows) {
      parts.sizes.push_back(static_cast<std::size_t>(count) * row_bytes());
      parts.offsets.push_back(offset);
      offset += parts.sizes.back();
    }
    return parts;
  }

  // Sends every member its part and receives one from each; both sides know the sizes. What has no bytes is skipped.
  void exchange_parts(const Parts& sent, const Parts& received) {
    const std::byte* const source = bytes_of(request().send);
    std::byte* const target = bytes_of(request().receive);
    const std::size_t size = group_->size(), own = static_cast<std::size_t>(group_->rank);
    for (std::size_t step = 1; step < size; ++step) {
      const std::size_t from = (own + size - step) % size;
      if (received.sizes[from] == 0) continue;
      receive(target + received.offsets[from], received.sizes[from], static_cast<int>(from));
    }
    for (std::size_t step = 1; step < size; ++step) {
      const std::size_t to = (own + step) % size;
      if (sent.sizes[to] > 0) send(source + sent.offsets[to], sent.sizes[to], static_cast<int>(to));
    }
    if (received.sizes[own] > 0) {
      std::memcpy(target + received.offsets[own], source + sent.offsets[own], received.sizes[own]);
    }
  }

  void start_all_gather() {
    const Parts parts = parts_of(request().receive_rows);
    const std::size_t own = size_of(request().send);
    if (size_of(request().receive) > most_bytes()) {  // every member finds the same
      return exchange_parts({std::vector(group_->size(), own), std::vector<std::size_t>(group_->size(), 0)}, parts);
    }
    for (const std::size_t size : parts.sizes) posted_->counts.push_back(static_cast<int>(size));
    for (const std::size_t offset : parts.offsets) posted_->offsets.push_back(static_cast<int>(offset));
    add("MPI_Iallgatherv", [&](MPI_Request* pending) {
      return MPI_Iallgatherv(bytes_of(request().send), static_cast<int>(own), MPI_BYTE, bytes_of(request().receive),
                             posted_->counts.data(), posted_->offsets.data(), MPI_BYTE, comm(), pending);
    });
  }

  void start_all_to_all() { exchange_parts(parts_of(request().send_rows), parts_of(request().receive_rows)); }

  void start_broadcast() {
    std::byte* const target = bytes_of(request().receive);
    if (group_->rank == request().root) std::copy_n(bytes_of(request().send), request().send.bytes(), target);
    in_pieces(size_of(request().receive), [&](std::size_t offset, int count) {
      add("MPI_Ibcast", [&](MPI_Request* pending) {
        return MPI_Ibcast(target + offset, count, MPI_BYTE, request().root, comm(), pending);
      });
    });
  }

  void start_scatter() {
    const std::size_t received = size_of(request().receive);
    if (group_->rank != request().root) {
      if (received > 0) receive(bytes_of(request().receive), received, request().root);
      return;
    }
    const Parts parts = parts_of(request().send_rows);
    const std::byte* const source = bytes_of(request().send);
    for (std::size_t member = 0; member < group_->size(); ++member) {
      if (parts.sizes[member] == 0) continue;
      if (static_cast<int>(member) == group_->rank) {
        std::memcpy(bytes_of(request().receive), source + parts.offsets[member], received);
      } else {
        send(source + parts.offsets[member], parts.sizes[member], static_cast<int>(member));
      }
    }
  }

  void start_exchange() {
    if (request().from >= 0) receive(bytes_of(request().receive), size_of(request().receive), request().from);
    if (request().to >= 0) send(bytes_of(request().send), size_of(request().send), request().to);
  }

  void start_numbers() {
    const std::vector<std::int64_t>& own = request().numbers;
    posted_->numbers.resize(own.size() * group_->size());
    SHARDPROOF_CHECK(own.size() <= kMostNumbers, unsupported_error,
                     "{} numbers are gathered from each rank; at most {} are possible", own.size(), kMostNumbers);
    const int count = static_cast<int>(own.size());
    add("MPI_Iallgather", [&](MPI_Request* pending) {
      return MPI_Iallgather(own.data(), count, MPI_INT64_T, posted_->numbers.data(), count, MPI_INT64_T, comm(),
                            pending);
    });
  }
  static constexpr std::size_t kMostNumbers = 1 << 20;

  std::shared_ptr<Group> group_;
  std::unique_ptr<Posted> posted_;
  std::uint64_t number_ = 0;
  bool is_complete_ = false;
};

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(std::shared_ptr<Group> group)
      : Communicator(group->name, group->members, group->rank), group_(std::move(group)) {}

 private:
  std::unique_ptr<Work> do_post(Request request) override {
    if (request.receive.defined()) request.receive.device().poison(request.receive);
    return std::make_unique<MpiWork>(group_, std::move(request));
  }

  std::unique_ptr<Communicator> do_split(int color, int key, std::string name) override {
    wait_for_all("split '" + name + "'");  // MPI's split has no deadline
    MPI_Comm comm = MPI_COMM_NULL;
    check(MPI_Comm_split(group_->comm, color < 0 ? MPI_UNDEFINED : color, key, &comm), "MPI_Comm_split");
    const std::uint64_t split = ++group_->splits;
    if (comm == MPI_COMM_NULL) return nullptr;
    auto group = std::make_shared<Group>();
    group->state = group_->state;
    group->comm = comm;
    group->is_owned = true;
    group->name = std::move(name);
    group->id = stable_hash(fmt::format("{} {} {}", group_->id, split, color)) | 1U;
    int size = 0;
    check(MPI_Comm_rank(comm, &group->rank), "MPI_Comm_rank");
    check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    group->members.resize(static_cast<std::size_t>(size));
    const int own = world_rank();
    check(MPI_Allgather(&own, 1, MPI_INT, group->members.data(), 1, MPI_INT, comm), "MPI_Allgather");
    group->slot = group->state->progress->enter(group->id);
    return std::make_unique<MpiCommunicator>(std::move(group));
  }

  void wait_for_all(const std::string& what) {
    std::vector<MPI_Request> pending(1, MPI_REQUEST_NULL);
    check(MPI_Ibarrier(group_->comm, pending.data()), "MPI_Ibarrier");
    const std::uint64_t number = group_->note_posted();
    if (!completes(pending, *group_)) group_->fail_late(what, number);
  }

  std::shared_ptr<Group> group_;
};

std::unique_ptr<Watchdog> watch(const MpiOptions& options, std::string_view call) {
  if (!options.when_it_hangs) return nullptr;
  return std::make_unique<Watchdog>(
      options.start_patience,
      [hangs = options.when_it_hangs, text = fmt::format("{} did not return within {}: not every rank "
                                                         "has started, or one has failed",
                                                         call, seconds_text(options.start_patience))] { hangs(text); });
}

// Memory that the ranks of this machine share, with one row each.
std::unique_ptr<ProgressTable> shared_progress(MPI_Win& window) {
  int world_rank = 0, world_size = 1, local_rank = 0, local_size = 1;
  MPI_Comm machine = MPI_COMM_NULL;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &world_size), "MPI_Comm_size");
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank, MPI_INFO_NULL, &machine),
        "MPI_Comm_split_type");
  check(MPI_Comm_rank(machine, &local_rank), "MPI_Comm_rank");
  check(MPI_Comm_size(machine, &local_size), "MPI_Comm_size");
  std::vector<int> locals(static_cast<std::size_t>(local_size));
  check(MPI_Allgather(&world_rank, 1, MPI_INT, locals.data(), 1, MPI_INT, machine), "MPI_Allgather");
  constexpr std::size_t kRowBytes = ProgressTable::kSlots * sizeof(ProgressSlot);
  void* own = nullptr;
  check(MPI_Win_allocate_shared(kRowBytes, 1, MPI_INFO_NULL, machine, &own, &window), "MPI_Win_allocate_shared");
  std::memset(own, 0, kRowBytes);
  std::vector<ProgressSlot*> rows(static_cast<std::size_t>(world_size), nullptr);
  for (int local = 0; local < local_size; ++local) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* row = nullptr;
    check(MPI_Win_shared_query(window, local, &bytes, &unit, &row), "MPI_Win_shared_query");
    rows[static_cast<std::size_t>(locals[static_cast<std::size_t>(local)])] = static_cast<ProgressSlot*>(row);
  }
  check(MPI_Barrier(machine), "MPI_Barrier");  // every row is zero before any is read
  check(MPI_Comm_free(&machine), "MPI_Comm_free");
  return std::make_unique<ProgressTable>(std::move(rows), world_rank);
}

}  // namespace

MpiSession::MpiSession(const MpiOptions& options) : state_(std::make_shared<MpiState>(MpiState{.options = options})) {
  SHARDPROOF_CHECK(options.most_message_bytes >= 1 && options.most_message_bytes <= std::numeric_limits<int>::max(),
                   usage_error, "{} bytes in one MPI message are not possible; expected 1 to {}",
                   options.most_message_bytes, std::numeric_limits<int>::max());
  int was_initialised = 0;
  MPI_Initialized(&was_initialised);
  SHARDPROOF_CHECK(was_initialised == 0, state_error,
                   "MPI was initialised before in this process; it can be only once");
  const std::unique_ptr<Watchdog> watchdog = watch(options, "MPI_Init_thread");
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  SHARDPROOF_CHECK(provided >= MPI_THREAD_FUNNELED, unsupported_error,
                   "this MPI offers thread level {} only; {} is needed", provided,
                   static_cast<int>(MPI_THREAD_FUNNELED));  // of an enumeration since Open MPI 5
  // Failures come back as statuses, so that they can be said in words.
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  state_->progress = shared_progress(state_->window);
}

MpiSession::~MpiSession() {
  if (state_->has_failed) return;  // others do not come to the end
  const std::unique_ptr<Watchdog> watchdog = watch(state_->options, "MPI_Finalize");
  MPI_Win_free(&state_->window);
  MPI_Finalize();
}

std::unique_ptr<Communicator> MpiSession::world() const {
  auto group = std::make_shared<Group>();
  group->state = state_;
  group->comm = MPI_COMM_WORLD;
  group->name = "world";
  group->id = 1;
  int size = 1;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &group->rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  group->members.resize(static_cast<std::size_t>(size));
  std::iota(group->members.begin(), group->members.end(), 0);
  group->slot = state_->progress->enter(group->id);
  return std::make_unique<MpiCommunicator>(std::move(group));
}

void MpiSession::abort(int status) const {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

bool mpi_is_built() { return true; }

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string all(text.data(), static_cast<std::size_t>(length));
  return all.substr(0, all.find(','));
}

}  // namespace shardproof
