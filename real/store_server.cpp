#include "real/store_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <list>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "real/store_message.h"

namespace shardproof {
namespace {

using Clock = std::chrono::steady_clock;

// "rank 2" or "ranks 2, 3", with a verb that fits.
std::string list_text(const std::set<int>& ranks, std::string_view verb = "", std::string_view plural_verb = "") {
  constexpr std::size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  std::size_t shown = 0;
  for (const int rank : ranks) {
    if (shown++ == kMost) {
      text += fmt::format(" and {} more", ranks.size() - kMost);
      break;
    }
    text += fmt::format("{}{}", shown == 1 ? " " : ", ", rank);
  }
  return text + std::string(ranks.size() == 1 ? verb : plural_verb);
}

std::optional<std::int64_t> integer_in(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

struct Peer {
  explicit Peer(Socket connected) : socket(std::move(connected)) {}
  Socket socket;
  std::string input;        // of the hello or request that is being received
  std::string output;       // what has not been sent yet
  std::optional<int> rank;  // after the handshake
  std::optional<StoreRequest::Header> header;
  std::optional<StoreRequest> waiting;  // a request that cannot be answered yet
  Clock::time_point end;                // of the handshake, or of the wait
  bool is_dismissed = false;            // closed once the output is sent
  bool is_gone = false;
};

}  // namespace

class StoreServer::Loop {
 public:
  Loop(Socket listening, const StoreSettings& settings)
      : listening_(std::move(listening)), settings_(settings), wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    SHARDPROOF_CHECK(wake_.is_open(), state_error, "store: no event descriptor: {}", error_text(errno));
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

 private:
  void run() {
    std::vector<pollfd> entries;
    for (;;) {
      entries.clear();
      entries.push_back({wake_.get(), POLLIN, 0});
      entries.push_back({listening_.get(), POLLIN, 0});
      for (const Peer& peer : peers_) entries.push_back({peer.socket.get(), events_of(peer), 0});
      if (::poll(entries.data(), entries.size(), next_timeout()) < 0 && errno != EINTR) return;
      if (entries[0].revents != 0) return send_what_is_left();
      std::size_t at = 2;
      for (Peer& peer : peers_) serve(peer, entries[at++].revents);
      look_at_the_time();
      remove_the_gone();
      if ((entries[1].revents & POLLIN) != 0) accept_all();
    }
  }

  // The last replies, such as those of a barrier after which rank 0 ends.
  void send_what_is_left() {
    constexpr std::chrono::milliseconds kPatience{500};
    const Deadline deadline(kPatience);
    for (const Peer& peer : peers_) {
      const std::span<const char> rest(peer.output.data(), peer.output.size());
      if (!rest.empty()) (void)send_all(peer.socket, std::as_bytes(rest), deadline);
    }
  }

  static short events_of(const Peer& peer) {
    int events = POLLRDHUP;
    if (!peer.output.empty()) {
      events |= POLLOUT;
    } else if (!peer.waiting && !peer.is_dismissed) {
      events |= POLLIN;
    }
    return static_cast<short>(events);
  }

  int next_timeout() const {
    constexpr std::int64_t kLongest = 60'000;
    std::int64_t wait = kLongest;
    for (const Peer& peer : peers_) {
      if (peer.rank && !peer.waiting) continue;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(peer.end - Clock::now()).count();
      wait = std::clamp<std::int64_t>(left, 0, wait);
    }
    return static_cast<int>(wait);
  }

  // ---- connections

  void accept_all() {
    for (;;) {
      Socket socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.is_open()) {
        // Without descriptors a pause is better than asking at once again.
        if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return;
      }
      const auto strangers = std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.rank; });
      if (static_cast<std::size_t>(strangers) >= settings_.most_strangers) {
        peers_.erase(std::find_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.rank; }));
      }
      peers_.emplace_back(std::move(socket)).end = Clock::now() + settings_.handshake_time;
    }
  }

  void serve(Peer& peer, short events) {
    if ((events & (POLLERR | POLLNVAL)) != 0) peer.is_gone = true;
    if (!peer.is_gone && (events & POLLOUT) != 0) send_output(peer);
    if (!peer.is_gone && (events & POLLIN) != 0) receive(peer);
    // Data that came before the end of a connection is not read while another request waits: its sender has given up.
    if ((events & POLLHUP) != 0 || ((events & POLLRDHUP) != 0 && (events & POLLIN) == 0)) peer.is_gone = true;
  }

  void send_output(Peer& peer) {
    const ssize_t count = ::send(peer.socket.get(), peer.output.data(), peer.output.size(), MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) peer.is_gone = true;
    if (count > 0) peer.output.erase(0, static_cast<std::size_t>(count));
    if (peer.output.empty() && peer.is_dismissed) peer.is_gone = true;
  }

  static std::size_t wanted_bytes(const Peer& peer) {
    if (!peer.rank) return StoreHello::kBytes;
    if (!peer.header) return StoreRequest::kHeaderBytes;
    return StoreRequest::kHeaderBytes + peer.header->key_bytes + peer.header->value_bytes;
  }

  // Never more than what belongs to the message that is being received.
  void receive(Peer& peer) {
    std::array<char, 65536> buffer;
    const std::size_t wanted = std::min(buffer.size(), wanted_bytes(peer) - peer.input.size());
    const ssize_t count = ::recv(peer.socket.get(), buffer.data(), wanted, 0);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) peer.is_gone = true;
    if (count <= 0) return;
    peer.input.append(buffer.data(), static_cast<std::size_t>(count));
    const std::size_t known = std::min(peer.input.size(), kStoreMagic.size());
    if (!peer.rank && peer.input.compare(0, known, kStoreMagic, 0, known) != 0) peer.is_gone = true;
    if (peer.is_gone || peer.input.size() < wanted_bytes(peer)) return;
    if (!peer.rank) return welcome(peer);
    if (!peer.header) {
      peer.header = StoreRequest::decoded_header(peer.input);
      if (!peer.header) return dismiss(peer, StoreAnswer::refused, "the request has an unknown call or a wrong length");
      return;  // its key has at least one byte
    }
    const std::string_view body = std::string_view(peer.input).substr(StoreRequest::kHeaderBytes);
    StoreRequest request{peer.header->call, std::string(body.substr(0, peer.header->key_bytes)),
                         std::string(body.substr(peer.header->key_bytes)), peer.header->delta, peer.header->patience};
    peer.input.clear();
    peer.header.reset();
    handle(peer, std::move(request));
  }

  static void reply(Peer& peer, const StoreReply& reply) { peer.output += reply.encoded(); }
  static void dismiss(Peer& peer, StoreAnswer answer, std::string text) {
    reply(peer, {answer, 0, std::move(text)});
    peer.is_dismissed = true;
  }

  void remove_the_gone() {
    std::set<int> left;
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      if (peer->is_gone && peer->rank) left.insert(*peer->rank);
      peer = peer->is_gone ? peers_.erase(peer) : std::next(peer);
    }
    if (left.empty()) return;
    for (const int rank : left) {
      present_.erase(rank);
      absent_[rank] = fmt::format("rank {} has left", rank);
    }
    fail_barriers();
  }

  // ---- the handshake

  void welcome(Peer& peer) {
    const StoreHello hello = StoreHello::decoded(peer.input).value();
    peer.input.clear();
    if (hello.version != kStoreVersion) {
      return dismiss(peer, StoreAnswer::refused,
                     fmt::format("this store speaks version {} of its protocol, rank {} speaks version {}",
                                 kStoreVersion, hello.rank, hello.version));
    }
    if (hello.run != settings_.run) return dismiss(peer, StoreAnswer::other_run, "this is the store of another run");
    const std::string objection = objection_to(hello);
    const int rank = static_cast<int>(hello.rank);
    if (!objection.empty()) {
      dismiss(peer, StoreAnswer::refused, objection);
      // A second process of a rank does not make the first one absent, and nobody waits for one that is none of ours.
      const bool is_waited_for = static_cast<std::int64_t>(hello.rank) < settings_.world_size;
      if (is_waited_for && !present_.contains(rank)) {
        absent_[rank] = fmt::format("rank {} was refused: {}", rank, objection);
        fail_barriers();
      }
      return;
    }
    peer.rank = rank;
    present_.insert(rank);
    absent_.erase(rank);
    reply(peer, {StoreAnswer::done, 0, {}});
  }

  std::string objection_to(const StoreHello& hello) const {
    if (static_cast<std::int64_t>(hello.world_size) != settings_.world_size) {
      return fmt::format("rank {} was started as one of {} ranks, rank 0 as one of {}", hello.rank, hello.world_size,
                         settings_.world_size);
    }
    if (hello.rank >= hello.world_size) {
      return fmt::format("rank {} does not lie among {} ranks", hello.rank, hello.world_size);
    }
    if (hello.configuration != settings_.configuration) {
      return fmt::format(
          "rank {} was started with another configuration than rank 0 (hash {:016x}, not {:016x}); expected the same "
          "program, sources and options on every rank",
          hello.rank, hello.configuration, settings_.configuration);
    }
    if (present_.contains(static_cast<int>(hello.rank))) {
      return fmt::format("rank {} is here already; each rank may be started once", hello.rank);
    }
    return {};
  }

  // ---- requests

  void handle(Peer& peer, StoreRequest request) {
    switch (request.call) {
      case StoreCall::set: return handle_set(peer, request);
      case StoreCall::add: return handle_add(peer, request);
      case StoreCall::get:
      case StoreCall::wait:
        if (values_.contains(request.key)) return answer_with_value(peer, request);
        return make_wait(peer, std::move(request));
      case StoreCall::barrier: make_wait(peer, std::move(request)); return look_at_barrier(peer.waiting->key);
    }
  }

  static void make_wait(Peer& peer, StoreRequest request) {
    peer.end = Clock::now() + request.patience;
    peer.waiting = std::move(request);
  }

  void answer_with_value(Peer& peer, const StoreRequest& request) {
    reply(peer, {StoreAnswer::done, 0, request.call == StoreCall::get ? values_.at(request.key) : std::string()});
  }

  // False, with the reply, if there is no place for it.
  bool keep(Peer& peer, const std::string& key, std::string value) {
    const auto old = values_.find(key);
    const std::size_t freed = old == values_.end() ? 0 : key.size() + old->second.size();
    const std::size_t total = bytes_ - freed + key.size() + value.size();
    if (total > settings_.most_bytes) {
      reply(peer, {StoreAnswer::refused, 0,
                   fmt::format("the store is full: it keeps at most {} bytes", settings_.most_bytes)});
      return false;
    }
    bytes_ = total;
    values_[key] = std::move(value);
    for (Peer& other : peers_) {
      if (!other.waiting || other.waiting->call == StoreCall::barrier || other.waiting->key != key) continue;
      answer_with_value(other, *other.waiting);
      other.waiting.reset();
    }
    return true;
  }

  void handle_set(Peer& peer, const StoreRequest& request) {
    if (keep(peer, request.key, request.value)) reply(peer, {StoreAnswer::done, 0, {}});
  }

  void handle_add(Peer& peer, const StoreRequest& request) {
    const auto found = values_.find(request.key);
    const std::optional<std::int64_t> old = found == values_.end() ? 0 : integer_in(found->second);
    std::int64_t sum = 0;
    if (!old || __builtin_add_overflow(*old, request.delta, &sum)) {
      const std::string why =
          old ? fmt::format("{} + {} does not fit 64 bits", *old, request.delta) : "its value is no integer";
      return reply(peer, {StoreAnswer::refused, 0, why});
    }
    if (keep(peer, request.key, std::to_string(sum))) reply(peer, {StoreAnswer::done, sum, {}});
  }

  // ---- barriers

  std::set<int> ranks_in(const std::string& barrier) const {
    std::set<int> ranks;
    for (const Peer& peer : peers_) {
      if (peer.waiting && peer.waiting->call == StoreCall::barrier && peer.waiting->key == barrier) {
        ranks.insert(*peer.rank);
      }
    }
    return ranks;
  }

  void answer_barrier(const std::string& barrier, const StoreReply& answer) {
    for (Peer& peer : peers_) {
      if (!peer.waiting || peer.waiting->call != StoreCall::barrier || peer.waiting->key != barrier) continue;
      reply(peer, answer);
      peer.waiting.reset();
    }
  }

  void look_at_barrier(const std::string& barrier) {
    const std::string name = barrier;  // the request that holds it is about to go
    if (ranks_in(name).size() == static_cast<std::size_t>(settings_.world_size)) {
      answer_barrier(name, {StoreAnswer::done, 0, {}});
    } else if (!absent_.empty()) {
      fail_barriers();
    }
  }

  // None can be complete while a rank cannot come.
  void fail_barriers() {
    std::string why;
    for (const auto& [rank, text] : absent_) why += (why.empty() ? "" : "; ") + text;
    why.resize(std::min<std::size_t>(why.size(), 2000));
    std::set<std::string> barriers;
    for (const Peer& peer : peers_) {
      if (peer.waiting && peer.waiting->call == StoreCall::barrier) barriers.insert(peer.waiting->key);
    }
    for (const std::string& barrier : barriers) {
      std::set<int> missing = missing_in(barrier);
      for (const auto& [rank, text] : absent_) missing.erase(rank);
      const std::string others =
          missing.empty() ? "" : fmt::format("; {} not come yet", list_text(missing, " has", " have"));
      answer_barrier(barrier, {StoreAnswer::refused, 0, why + others});
    }
  }

  std::set<int> missing_in(const std::string& barrier) const {
    const std::set<int> here = ranks_in(barrier);
    std::set<int> missing;
    for (int rank = 0; rank < settings_.world_size; ++rank) {
      if (!here.contains(rank)) missing.insert(rank);
    }
    return missing;
  }

  // Once one of them gives up, a barrier is over for all who wait: they learn for whom.
  void give_up(Peer& peer) {
    const StoreRequest request = *peer.waiting;
    const std::string missing =
        request.call != StoreCall::barrier
            ? "nobody set it"
            : fmt::format("{} of {} did not come", list_text(missing_in(request.key)), settings_.world_size);
    peer.waiting.reset();
    reply(peer, {StoreAnswer::timed_out, 0, missing});
    if (request.call != StoreCall::barrier) return;
    const std::string words = fmt::format("{} before rank {} gave up", missing, *peer.rank);
    answer_barrier(request.key, {StoreAnswer::refused, 0, words});
  }

  void look_at_the_time() {
    const Clock::time_point now = Clock::now();
    for (Peer& peer : peers_) {
      if (now < peer.end || (peer.rank && !peer.waiting)) continue;
      if (!peer.rank) {
        peer.is_gone = true;  // said no hello, or does not take what it was told
        continue;
      }
      give_up(peer);
    }
  }

  Socket listening_;
  StoreSettings settings_;
  Socket wake_;
  // Only the thread touches these.
  std::list<Peer> peers_;
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
  std::set<int> present_;
  std::map<int, std::string> absent_;  // ranks that were here or tried to come, and why they are not
  std::thread thread_;
};

Socket listening_socket(const StoreAddress& address) {
  std::string problems;
  for (const int port : address.ports) {
    SocketOrError listening = listen_on(address.host, port);
    if (listening.error == 0) return std::move(listening.socket);
    SHARDPROOF_CHECK(listening.error != EADDRNOTAVAIL, usage_error,
                     "store: {} is no address of this machine; expected the address of the machine of rank 0",
                     printable(address.host));
    problems += fmt::format("{}{} ({})", problems.empty() ? "" : ", ", port, error_text(listening.error));
  }
  fail(ErrorKind::usage_error, "store: rank 0 cannot listen at {} on port {}; expected a free port",
       printable(address.host), problems);
}

StoreServer::StoreServer(const StoreAddress& address, const StoreSettings& settings)
    : StoreServer(listening_socket(address), settings) {}

StoreServer::StoreServer(Socket listening, const StoreSettings& settings)
    : port_(port_of_listening(listening.get())), loop_(std::make_unique<Loop>(std::move(listening), settings)) {}

StoreServer::~StoreServer() = default;

}  // namespace shardproof
