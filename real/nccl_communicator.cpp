// The operations of the communicator, each as the calls into NCCL that it is made of.
#include "real/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "core/device.h"
#include "core/error.h"
#include "real/nccl_context_body.h"
#include "real/nccl_library.h"

namespace shardproof {
namespace nccl {
namespace {

// The type under which NCCL moves elements; what it does not know moves as bytes.
struct ElementType {
  ncclDataType_t type = ncclUint8;
  std::size_t bytes = 1;
};

ElementType element_type(DType dtype) {
  constexpr std::array kKnown{std::pair(kFloat64, ncclFloat64), std::pair(kFloat32, ncclFloat32),
                              std::pair(kBFloat16, ncclBfloat16), std::pair(kFloat16, ncclFloat16),
                              std::pair(kInt64, ncclInt64)};
  const auto* const known = std::ranges::find(kKnown, dtype, [](const auto& pair) { return pair.first; });
  return known == kKnown.end() ? ElementType{} : ElementType{known->second, dtype.size()};
}

bool is_in_device_memory(const Tensor& tensor) {
  if (!tensor.defined() || tensor.bytes() == 0) return false;
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, tensor.data()) != cudaSuccess) {
    cudaGetLastError();  // not kept for the next call to report
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

// Calls of NCCL that are launched as one. A group that is left by an exception is ended as well, or the next one would
// stand inside it.
class CallGroup {
 public:
  CallGroup() { check_nccl(ncclGroupStart(), nullptr, "ncclGroupStart"); }
  ~CallGroup() {
    if (!is_ended_) ncclGroupEnd();
  }
  CallGroup(const CallGroup&) = delete;
  CallGroup& operator=(const CallGroup&) = delete;
  void end() {
    is_ended_ = true;
    check_nccl(ncclGroupEnd(), nullptr, "ncclGroupEnd");
  }

 private:
  bool is_ended_ = false;
};

// Enqueues one operation on the stream of its group.
class Posting {
 public:
  Posting(Context& context, const std::shared_ptr<Group>& group, Request request)
      : context_(context),
        group_(*group),
        is_direct_(is_in_device_memory(request.send) || is_in_device_memory(request.receive)),
        flight_(context.open(group, std::move(request))) {}

  std::shared_ptr<Flight> post() {
    try {
      enqueue();
    } catch (const std::exception& error) {
      context_.give_up(fmt::format("rank {}: {}: {}", context_.options.rank, request().text(), error.what()), {});
      flight_->is_done = true;
      throw;
    }
    return flight_;
  }

  bool is_direct() const { return is_direct_; }
  std::byte* received() const { return receive_; }

 private:
  const Request& request() const { return flight_->request; }
  cudaStream_t stream() const { return group_.stream; }
  int size() const { return static_cast<int>(group_.members.size()); }
  std::size_t elements(std::int64_t rows) const { return static_cast<std::size_t>(rows) * row_bytes_ / type_.bytes; }
  std::size_t bytes(std::int64_t rows) const { return static_cast<std::size_t>(rows) * row_bytes_; }

  std::byte* take_scratch(MemoryKind kind, std::size_t size) {
    flight_->scratch.push_back(context_.scratch.take(kind, size));
    return flight_->scratch.back()->data();
  }
  MemoryKind kind() const { return is_direct_ ? MemoryKind::device : MemoryKind::pinned; }

  void enqueue() {
    type_ = element_type(request().dtype);
    row_bytes_ = static_cast<std::size_t>(request().row_shape.numel()) * request().dtype.size();
    EventPool& events = flight_->span ? context_.timed_events : context_.events;
    flight_->begin = events.take();
    flight_->end = events.take();
    find_buffers();
    follow();
    check_cuda(cudaEventRecord(flight_->begin, stream()), "cudaEventRecord");
    context_.launch(group_, [this] { call_nccl(); });
    finish_on_stream();
    check_cuda(cudaEventRecord(flight_->end, stream()), "cudaEventRecord");
    flight_->is_launched = true;
    context_.last_flight = flight_;
  }

  // Device memory is used as it is, host memory through pinned buffers.
  void find_buffers() {
    const Tensor& send = request().send;
    const Tensor& receive = request().receive;
    if (is_direct_) {
      if (send.defined()) send_ = send.data();
      if (receive.defined()) receive_ = receive.data();
      return;
    }
    if (send.defined() && send.bytes() > 0) {
      send_ = take_scratch(MemoryKind::pinned, send.bytes());
      std::memcpy(send_, send.data(), send.bytes());
    }
    if (receive.defined() && receive.bytes() > 0) receive_ = take_scratch(MemoryKind::pinned, receive.bytes());
    if (request().operation == Operation::all_gather_numbers && !request().numbers.empty()) {
      const std::size_t own = request().numbers.size() * sizeof(std::int64_t);
      send_ = take_scratch(MemoryKind::pinned, own);
      std::memcpy(send_, request().numbers.data(), own);
      receive_ = take_scratch(MemoryKind::pinned, own * group_.members.size());
    }
    if (request().operation == Operation::barrier) {
      send_ = take_scratch(MemoryKind::pinned, sizeof(std::int32_t));
      std::memset(send_, 0, sizeof(std::int32_t));
    }
  }

  // The operation runs after what was computed before it, and after the operation that was posted before it in any
  // group: ranks post in one order, so NCCL's kernels can never wait for each other in a circle.
  void follow() {
    if (is_direct_) {
      const cudaEvent_t computed = flight_->begin;  // free until it is recorded on the group's own stream
      check_cuda(cudaEventRecord(computed, static_cast<cudaStream_t>(context_.options.compute_stream)),
                 "cudaEventRecord");
      check_cuda(cudaStreamWaitEvent(stream(), computed, 0), "cudaStreamWaitEvent");
    }
    const auto& last = context_.last_flight;
    if (last && !last->is_done && last->group.get() != &group_) {
      check_cuda(cudaStreamWaitEvent(stream(), last->end, 0), "cudaStreamWaitEvent");
    }
  }

  void call_nccl() {
    switch (request().operation) {
      case Operation::all_gather: return all_gather();
      case Operation::all_to_all: return all_to_all();
      case Operation::broadcast: return broadcast(request().root, send_, receive_, rows_of(request().receive));
      case Operation::scatter: return scatter();
      case Operation::exchange: return exchange();
      case Operation::barrier: return barrier();
      case Operation::all_gather_numbers: return all_gather_numbers();
      case Operation::split: fail(ErrorKind::internal_error, "split is no posted operation over NCCL");
    }
  }

  static std::int64_t rows_of(const Tensor& tensor) { return tensor.defined() ? tensor.size(0) : 0; }

  void copy_on_stream(std::byte* target, const std::byte* source, std::size_t count) {
    if (count == 0 || target == source) return;
    check_cuda(cudaMemcpyAsync(target, source, count, cudaMemcpyDefault, stream()), "cudaMemcpyAsync");
  }
  void send(const std::byte* from, std::int64_t rows, int peer) {
    if (elements(rows) == 0) return;
    check_nccl(ncclSend(from, elements(rows), type_.type, peer, group_.comm, stream()), group_.comm, "ncclSend");
  }
  void receive(std::byte* to, std::int64_t rows, int peer) {
    if (elements(rows) == 0) return;
    check_nccl(ncclRecv(to, elements(rows), type_.type, peer, group_.comm, stream()), group_.comm, "ncclRecv");
  }
  void broadcast(int root, const std::byte* from, std::byte* to, std::int64_t rows) {
    if (elements(rows) == 0) return;
    const void* const source = group_.rank == root ? from : to;
    check_nccl(ncclBroadcast(source, to, elements(rows), type_.type, root, group_.comm, stream()), group_.comm,
               "ncclBroadcast");
  }
  void gather(const std::byte* from, std::byte* to, std::int64_t rows) {
    if (elements(rows) == 0) return;
    check_nccl(ncclAllGather(from, to, elements(rows), type_.type, group_.comm, stream()), group_.comm,
               "ncclAllGather");
  }

  // Uneven rows: small ones padded to the longest, in one call; large ones as a broadcast from every member, without
  // moving pads. All members know all counts, so they choose alike.
  void all_gather() {
    const std::vector<std::int64_t>& rows = request().receive_rows;
    const auto [shortest, longest] = std::ranges::minmax(rows);
    if (shortest == longest) return gather(send_, receive_, longest);
    if (static_cast<std::int64_t>(bytes(longest)) * size() <= context_.options.padded_gather_bytes) {
      std::byte* const padded_send = take_scratch(kind(), bytes(longest));
      padded_ = take_scratch(kind(), bytes(longest) * group_.members.size());
      copy_on_stream(padded_send, send_, bytes(rows[static_cast<std::size_t>(group_.rank)]));
      return gather(padded_send, padded_, longest);
    }
    CallGroup calls;
    std::byte* piece = receive_;
    for (int member = 0; member < size(); ++member) {
      const std::int64_t count = rows[static_cast<std::size_t>(member)];
      broadcast(member, send_, piece, count);
      piece += bytes(count);
    }
    calls.end();
  }

  void all_to_all() {
    CallGroup calls;
    const std::byte* from = send_;
    std::byte* to = receive_;
    for (int member = 0; member < size(); ++member) {
      const std::int64_t sent = request().send_rows[static_cast<std::size_t>(member)];
      const std::int64_t received = request().receive_rows[static_cast<std::size_t>(member)];
      if (member == group_.rank) {
        own_ = {from, to, bytes(sent)};
      } else {
        send(from, sent, member);
        receive(to, received, member);
      }
      from += bytes(sent);
      to += bytes(received);
    }
    calls.end();
  }

  void scatter() {
    if (group_.rank != request().root) return receive(receive_, rows_of(request().receive), request().root);
    CallGroup calls;
    const std::byte* from = send_;
    for (int member = 0; member < size(); ++member) {
      const std::int64_t rows = request().send_rows[static_cast<std::size_t>(member)];
      if (member == group_.rank) {
        own_ = {from, receive_, bytes(rows)};
      } else {
        send(from, rows, member);
      }
      from += bytes(rows);
    }
    calls.end();
  }

  void exchange() {
    if (request().to == group_.rank) {
      own_ = {send_, receive_, bytes(rows_of(request().send))};
      return;
    }
    CallGroup calls;
    if (request().to >= 0) send(send_, rows_of(request().send), request().to);
    if (request().from >= 0) receive(receive_, rows_of(request().receive), request().from);
    calls.end();
  }

  void barrier() {
    check_nccl(ncclAllReduce(send_, send_, 1, ncclInt32, ncclSum, group_.comm, stream()), group_.comm, "ncclAllReduce");
  }
  void all_gather_numbers() {
    if (request().numbers.empty()) return;
    check_nccl(ncclAllGather(send_, receive_, request().numbers.size(), ncclInt64, group_.comm, stream()), group_.comm,
               "ncclAllGather");
  }

  // What a rank keeps for itself, and what stands among pads, is moved by copies on the group's stream.
  void finish_on_stream() {
    copy_on_stream(own_.to, own_.from, own_.bytes);
    if (padded_ == nullptr) return;
    const std::vector<std::int64_t>& rows = request().receive_rows;
    const std::size_t stride = bytes(*std::ranges::max_element(rows));
    std::byte* piece = receive_;
    for (std::size_t member = 0; member < rows.size(); ++member) {
      copy_on_stream(piece, padded_ + member * stride, bytes(rows[member]));
      piece += bytes(rows[member]);
    }
  }

  struct OwnPart {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
  };

  Context& context_;
  Group& group_;
  bool is_direct_;
  std::shared_ptr<Flight> flight_;
  ElementType type_;
  std::size_t row_bytes_ = 0;
  std::byte* send_ = nullptr;
  std::byte* receive_ = nullptr;
  std::byte* padded_ = nullptr;
  OwnPart own_;
};

class NcclWork final : public Work {
 public:
  explicit NcclWork(Posting& posting)
      : flight_(posting.post()), is_direct_(posting.is_direct()), received_(posting.received()) {}

  // What lives on the device is waited for by the device: its compute stream goes on after the operation. What the host
  // reads is waited for by the host.
  void wait() override {
    Context& context = flight_->group->context;
    const Request& request = flight_->request;
    if (is_direct_) {
      context.throw_if_failed();
      check_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(context.options.compute_stream), flight_->end, 0),
                 "cudaStreamWaitEvent");
      return;
    }
    context.wait_for(*flight_);
    if (request.receive.defined()) std::copy_n(received_, request.receive.bytes(), request.receive.data());
    if (request.operation == Operation::all_gather_numbers) {
      numbers_.resize(request.numbers.size() * flight_->group->members.size());
      std::copy_n(received_, numbers_.size() * sizeof(std::int64_t), reinterpret_cast<std::byte*>(numbers_.data()));
    }
  }
  std::span<const std::int64_t> numbers() const override { return numbers_; }
  std::shared_ptr<const DeviceSpan> device_span() const override { return flight_->span; }

 private:
  std::shared_ptr<Flight> flight_;
  bool is_direct_;
  std::byte* received_;
  std::vector<std::int64_t> numbers_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::string name, std::shared_ptr<Group> group)
      : Communicator(std::move(name), group->members, group->rank), group_(std::move(group)) {}
  ~NcclCommunicator() override {
    group_->context.drain(*group_);
    group_->context.release_ended();
  }

 private:
  std::unique_ptr<Work> do_post(Request request) override {
    group_->context.release_ended();
    if (request.receive.defined()) request.receive.device().poison(request.receive);
    Posting posting(group_->context, group_, std::move(request));
    return std::make_unique<NcclWork>(posting);
  }

  std::unique_ptr<Communicator> do_split(int color, int key, std::string name) override {
    struct Choice {
      std::int64_t color, key, member;
    };
    Request request;
    request.operation = Operation::all_gather_numbers;
    request.purpose = "split: who joins";
    request.numbers = {color, key};
    const std::unique_ptr<Work> work = do_post(std::move(request));
    work->wait();
    std::vector<Choice> group;
    for (int member = 0; member < size(); ++member) {
      const std::span<const std::int64_t> theirs = work->numbers().subspan(static_cast<std::size_t>(member) * 2, 2);
      if (color >= 0 && theirs[0] == color) group.push_back({theirs[0], theirs[1], member});
    }
    std::ranges::stable_sort(group, {}, &Choice::key);
    const auto own = std::ranges::find(group, rank(), &Choice::member);
    std::vector<int> world_ranks;
    for (const Choice& choice : group) world_ranks.push_back(members()[static_cast<std::size_t>(choice.member)]);
    std::shared_ptr<Group> made = group_->context.split(group_, color, std::move(world_ranks),
                                                        static_cast<int>(own - group.begin()), name, calls());
    if (!made) return nullptr;
    return std::make_unique<NcclCommunicator>(std::move(name), std::move(made));
  }

  std::shared_ptr<Group> group_;
};

}  // namespace
}  // namespace nccl

NcclSession::NcclSession(const NcclOptions& options, std::shared_ptr<NcclStore> store)
    : context_(std::make_shared<nccl::Context>(options, std::move(store))) {
  context_->connect();
}
NcclSession::~NcclSession() = default;

std::unique_ptr<Communicator> NcclSession::world() const {
  return std::make_unique<nccl::NcclCommunicator>("world", context_->world);
}
void NcclSession::check() const { context_->throw_if_failed(); }
void NcclSession::abort(int status, const std::string& why) const {
  const NcclOptions& options = context_->options;
  context_->give_up(fmt::format("rank {}: {}", options.rank, why), {});
  // Rank 0 keeps the store: the others have to hear it before that is gone.
  if (options.rank == 0) std::this_thread::sleep_for(2 * options.heartbeat);
  std::_Exit(status);
}

bool nccl_is_built() { return true; }

std::string nccl_version() {
  require_nccl();
  int version = 0;
  nccl::check_nccl(ncclGetVersion(&version), nullptr, "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace shardproof
