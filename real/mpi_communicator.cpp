#include "real/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <vector>

#include <mpi.h>

#include "core/device.h"
#include "core/error.h"

namespace shardproof {
namespace {

void check(int status, std::string_view call) {
  if (status == MPI_SUCCESS) [[likely]]
    return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  fail(ErrorKind::collective_error, "{} failed: {}", call,
       std::string_view(text.data(), static_cast<std::size_t>(length)));
}

int small_count(std::int64_t rows) {
  SHARDPROOF_CHECK(rows <= std::numeric_limits<int>::max(), unsupported_error,
                   "{} rows in one MPI operation; at most {} are possible", rows, std::numeric_limits<int>::max());
  return static_cast<int>(rows);
}

// A row of a tensor as one datatype; freed with its operation.
class RowType {
 public:
  explicit RowType(std::size_t bytes) {
    check(MPI_Type_contiguous(small_count(static_cast<std::int64_t>(bytes)), MPI_BYTE, &type_), "MPI_Type_contiguous");
    check(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~RowType() { MPI_Type_free(&type_); }
  RowType(const RowType&) = delete;
  RowType& operator=(const RowType&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

// Counts and displacements in rows.
struct Layout {
  std::vector<int> counts;
  std::vector<int> offsets;
  explicit Layout(std::span<const std::int64_t> rows) {
    std::int64_t offset = 0;
    for (const std::int64_t count : rows) {
      counts.push_back(small_count(count));
      offsets.push_back(small_count(offset));
      offset += count;
    }
  }
};

std::byte* bytes_of(const Tensor& tensor) { return tensor.defined() ? tensor.data() : nullptr; }
int rows_of(const Tensor& tensor) { return tensor.defined() ? small_count(tensor.size(0)) : 0; }

// The communicator handle, freed when the last group and operation that use it are gone.
class Handle {
 public:
  Handle(MPI_Comm comm, bool is_owned) : comm_(comm), is_owned_(is_owned) {}
  ~Handle() {
    if (is_owned_) MPI_Comm_free(&comm_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_;
  bool is_owned_;
};

// What a posted operation needs until it is complete: the request's tensors, counts, datatype and MPI's requests.
class MpiWork final : public Work {
 public:
  MpiWork(std::shared_ptr<Handle> handle, Request request, int rank, int size)
      : handle_(std::move(handle)), request_(std::move(request)), rank_(rank), size_(size) {
    const Shape& row = request_.row_shape;
    if (request_.send.defined() || request_.receive.defined()) {
      row_type_ = std::make_unique<RowType>(static_cast<std::size_t>(row.numel()) * request_.dtype.size());
    }
    start();
  }

  ~MpiWork() override {
    // An operation that nobody waited for still owns buffers that MPI writes to; it has to end before they are freed.
    if (!is_complete_) MPI_Waitall(static_cast<int>(pending_.size()), pending_.data(), MPI_STATUSES_IGNORE);
  }

  void wait() override {
    check(MPI_Waitall(static_cast<int>(pending_.size()), pending_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    is_complete_ = true;
  }
  std::span<const std::int64_t> numbers() const override { return numbers_; }

 private:
  MPI_Request* add_pending() { return &pending_.emplace_back(MPI_REQUEST_NULL); }
  MPI_Comm comm() const { return handle_->get(); }

  void start() {
    pending_.reserve(2);
    switch (request_.operation) {
      case Operation::all_gather: return start_all_gather();
      case Operation::all_to_all: return start_all_to_all();
      case Operation::broadcast: return start_broadcast();
      case Operation::scatter: return start_scatter();
      case Operation::exchange: return start_exchange();
      case Operation::barrier: return check(MPI_Ibarrier(comm(), add_pending()), "MPI_Ibarrier");
      case Operation::all_gather_numbers: return start_numbers();
      case Operation::split: fail(ErrorKind::internal_error, "split is no posted operation over MPI");
    }
  }

  void start_all_gather() {
    receive_ = std::make_unique<Layout>(request_.receive_rows);
    check(MPI_Iallgatherv(bytes_of(request_.send), rows_of(request_.send), row_type_->get(), bytes_of(request_.receive),
                          receive_->counts.data(), receive_->offsets.data(), row_type_->get(), comm(), add_pending()),
          "MPI_Iallgatherv");
  }
  void start_all_to_all() {
    send_ = std::make_unique<Layout>(request_.send_rows);
    receive_ = std::make_unique<Layout>(request_.receive_rows);
    check(MPI_Ialltoallv(bytes_of(request_.send), send_->counts.data(), send_->offsets.data(), row_type_->get(),
                         bytes_of(request_.receive), receive_->counts.data(), receive_->offsets.data(),
                         row_type_->get(), comm(), add_pending()),
          "MPI_Ialltoallv");
  }
  void start_broadcast() {
    if (rank_ == request_.root) std::copy_n(bytes_of(request_.send), request_.send.bytes(), bytes_of(request_.receive));
    check(MPI_Ibcast(bytes_of(request_.receive), rows_of(request_.receive), row_type_->get(), request_.root, comm(),
                     add_pending()),
          "MPI_Ibcast");
  }
  void start_scatter() {
    if (rank_ == request_.root) send_ = std::make_unique<Layout>(request_.send_rows);
    check(MPI_Iscatterv(bytes_of(request_.send), send_ ? send_->counts.data() : nullptr,
                        send_ ? send_->offsets.data() : nullptr, row_type_->get(), bytes_of(request_.receive),
                        rows_of(request_.receive), row_type_->get(), request_.root, comm(), add_pending()),
          "MPI_Iscatterv");
  }
  // Messages between two processes do not overtake each other, so one tag serves all exchanges of a group.
  void start_exchange() {
    constexpr int kTag = 0;
    if (request_.from >= 0) {
      check(MPI_Irecv(bytes_of(request_.receive), rows_of(request_.receive), row_type_->get(), request_.from, kTag,
                      comm(), add_pending()),
            "MPI_Irecv");
    }
    if (request_.to >= 0) {
      check(MPI_Isend(bytes_of(request_.send), rows_of(request_.send), row_type_->get(), request_.to, kTag, comm(),
                      add_pending()),
            "MPI_Isend");
    }
  }
  void start_numbers() {
    numbers_.resize(request_.numbers.size() * static_cast<std::size_t>(size_));
    const int count = small_count(static_cast<std::int64_t>(request_.numbers.size()));
    check(MPI_Iallgather(request_.numbers.data(), count, MPI_INT64_T, numbers_.data(), count, MPI_INT64_T, comm(),
                         add_pending()),
          "MPI_Iallgather");
  }

  std::shared_ptr<Handle> handle_;
  Request request_;
  int rank_;
  int size_;
  std::unique_ptr<RowType> row_type_;
  std::unique_ptr<Layout> send_;
  std::unique_ptr<Layout> receive_;
  std::vector<std::int64_t> numbers_;
  std::vector<MPI_Request> pending_;
  bool is_complete_ = false;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::string name, std::vector<int> members, int rank, std::shared_ptr<Handle> handle)
      : Communicator(std::move(name), std::move(members), rank), handle_(std::move(handle)) {}

 private:
  std::unique_ptr<Work> do_post(Request request) override {
    if (request.receive.defined()) request.receive.device().poison(request.receive);
    return std::make_unique<MpiWork>(handle_, std::move(request), rank(), size());
  }

  std::unique_ptr<Communicator> do_split(int color, int key, std::string name) override {
    MPI_Comm comm = MPI_COMM_NULL;
    check(MPI_Comm_split(handle_->get(), color < 0 ? MPI_UNDEFINED : color, key, &comm), "MPI_Comm_split");
    if (comm == MPI_COMM_NULL) return nullptr;
    auto handle = std::make_shared<Handle>(comm, true);
    int new_rank = 0, new_size = 0;
    check(MPI_Comm_rank(comm, &new_rank), "MPI_Comm_rank");
    check(MPI_Comm_size(comm, &new_size), "MPI_Comm_size");
    std::vector<int> group(static_cast<std::size_t>(new_size));
    const int own = world_rank();
    check(MPI_Allgather(&own, 1, MPI_INT, group.data(), 1, MPI_INT, comm), "MPI_Allgather");
    return std::make_unique<MpiCommunicator>(std::move(name), std::move(group), new_rank, std::move(handle));
  }

  std::shared_ptr<Handle> handle_;
};

}  // namespace

MpiSession::MpiSession() {
  int was_initialised = 0;
  MPI_Initialized(&was_initialised);
  SHARDPROOF_CHECK(was_initialised == 0, state_error,
                   "MPI was initialised before in this process; it can be only once");
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  SHARDPROOF_CHECK(provided >= MPI_THREAD_FUNNELED, unsupported_error,
                   "this MPI offers thread level {} only; {} is needed", provided, MPI_THREAD_FUNNELED);
  // Failures come back as statuses, so that they can be said in words.
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

MpiSession::~MpiSession() { MPI_Finalize(); }

std::unique_ptr<Communicator> MpiSession::world() const {
  int rank = 0, size = 1;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<MpiCommunicator>("world", std::move(members), rank,
                                           std::make_shared<Handle>(MPI_COMM_WORLD, false));
}

void MpiSession::abort(int status) const {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

bool mpi_is_built() { return true; }

}  // namespace shardproof
