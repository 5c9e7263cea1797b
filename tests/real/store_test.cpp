// The store of a run: its calls, what ranks that were started differently are told, and peers that mean harm or are
// broken, of which the ranks of the run must notice nothing.
#include "real/store.h"

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/random.h"
#include "real/peer_failure.h"
#include "real/store_server.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using std::chrono::milliseconds;
using test::thrown_by;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kPatience{20'000};  // of calls that succeed; only a broken store lets it pass
constexpr milliseconds kShort{300};        // of calls that must fail by time, on a busy machine, too

StoreHello hello(int rank, int world_size = 2) {
  return {.rank = static_cast<std::uint32_t>(rank),
          .world_size = static_cast<std::uint32_t>(world_size),
          .run = 7,
          .configuration = 42};
}

// A server on a free port of the loopback interface.
struct Running {
  explicit Running(int world_size = 2, StoreSettings settings = {})
      : server([&] {
          settings.world_size = world_size;
          settings.configuration = 42;
          settings.run = 7;
          return std::make_unique<StoreServer>(std::move(listen_on("127.0.0.1", 0).socket), settings);
        }()),
        address{"127.0.0.1", {server->port()}} {}
  Store store(int rank, int world_size = 2) const { return {address, hello(rank, world_size), kPatience}; }
  std::string refusal(const StoreHello& wrong, milliseconds patience = kPatience) const {
    const auto error = thrown_by([&] { Store(address, wrong, patience); });
    return error ? error->message : "accepted";
  }
  std::unique_ptr<StoreServer> server;
  StoreAddress address;
};

template <class Call>
std::string failure_of(const Call& call) {
  try {
    call();
  } catch (const PeerFailure& error) {
    return error.what();
  }
  return "succeeded";
}

// A peer that speaks whatever it likes.
class Stranger {
 public:
  explicit Stranger(const StoreAddress& address)
      : socket_(std::move(connect_to(address.host, address.ports.front(), Deadline(kPatience)).socket)) {}
  void say(std::string_view bytes) {
    send_all(socket_, std::as_bytes(std::span(bytes.data(), bytes.size())), Deadline(kPatience));
  }
  // What it gets until the server closes the connection.
  std::string hear_all() {
    std::string heard;
    char byte = 0;
    while (receive_all(socket_, std::as_writable_bytes(std::span(&byte, 1)), Deadline(kPatience)) == Transfer::done)
      heard += byte;
    return heard;
  }
  void end_of_words() { ::shutdown(socket_.get(), SHUT_WR); }

 private:
  Socket socket_;
};

TEST(Store, KeepsWhatOneRankSetsForTheOthers) {
  const Running running;
  Store first = running.store(0), second = running.store(1);
  EXPECT_EQ(second.get_if_set("key", kPatience), std::nullopt);
  first.set("key", std::string("va\0lue", 6), kPatience);
  EXPECT_EQ(second.get("key", kPatience), std::string("va\0lue", 6));
  second.set("key", "", kPatience);
  EXPECT_EQ(first.get("key", kPatience), "");
  EXPECT_EQ(first.get_if_set("key", kPatience), "");
  first.wait("key", kPatience);
}

TEST(Store, WaitsForAKeyThatIsSetLater) {
  const Running running;
  Store first = running.store(0), second = running.store(1);
  std::thread setter([&] {
    std::this_thread::sleep_for(milliseconds(20));
    first.set("later", "now", kPatience);
  });
  second.wait("later", kPatience);
  EXPECT_EQ(second.get("later", kPatience), "now");
  setter.join();
}

TEST(Store, AddsIntegers) {
  const Running running;
  Store first = running.store(0), second = running.store(1);
  EXPECT_EQ(first.add("counter", 5, kPatience), 5);
  EXPECT_EQ(second.add("counter", -7, kPatience), -2);
  EXPECT_EQ(second.get("counter", kPatience), "-2");
  first.set("counter", "words", kPatience);
  EXPECT_THAT(failure_of([&] { first.add("counter", 1, kPatience); }),
              HasSubstr(fmt::format("rank 0 of 2, store at {}: add 'counter': its value is no integer",
                                    running.address.text())));
  first.set("counter", "9223372036854775807", kPatience);
  EXPECT_THAT(failure_of([&] { first.add("counter", 1, kPatience); }), HasSubstr("does not fit 64 bits"));
  EXPECT_EQ(first.add("counter", 0, kPatience), std::numeric_limits<std::int64_t>::max());  // still usable
}

TEST(Store, HoldsABarrierUntilEveryRankHasCome) {
  constexpr int kRanks = 4;
  const Running running(kRanks);
  std::atomic<int> arrived = 0;
  std::vector<std::thread> ranks;
  std::atomic<int> early = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      Store store = running.store(rank, kRanks);
      for (int round = 1; round <= 3; ++round) {
        ++arrived;
        store.barrier("same name", kPatience);
        if (arrived < round * kRanks) ++early;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(early, 0);
}

TEST(Store, NamesTheKeyThatNobodySetAndTheRanksThatDidNotCome) {
  const Running running(4);
  Store store = running.store(1, 4);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(failure_of([&] { store.get("missing", kShort); }),
              HasSubstr("get 'missing': nobody set it within 0.3 s"));
  EXPECT_THAT(failure_of([&] { store.barrier("start", kShort); }),
              HasSubstr("barrier 'start': ranks 0, 2, 3 of 4 did not come within 0.3 s"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
  store.set("usable", "yes", kPatience);  // the connection is not lost by that
}

TEST(Store, EndsABarrierForAllWhenOneGivesUp) {
  const Running running(3);
  Store first = running.store(0, 3), second = running.store(1, 3);
  std::thread impatient([&] { failure_of([&] { second.barrier("start", milliseconds(400)); }); });
  EXPECT_THAT(failure_of([&] { first.barrier("start", kPatience); }),
              HasSubstr("barrier 'start': rank 2 of 3 did not come before rank 1 gave up"));
  impatient.join();
}

TEST(Store, TellsABarrierAtOnceThatARankHasLeft) {
  const Running running(3);
  Store first = running.store(0, 3);
  {
    Store third = running.store(2, 3);
  }
  EXPECT_THAT(failure_of([&] { first.barrier("end", kPatience); }),
              HasSubstr("barrier 'end': rank 2 has left; rank 1 has not come yet"));
  Store again = running.store(2, 3);
  EXPECT_THAT(failure_of([&] { first.barrier("end", kShort); }), HasSubstr("ranks 1, 2 of 3 did not come"));
}

TEST(Store, BoundsKeysAndValues) {
  StoreSettings settings;
  settings.most_bytes = 1000;
  const Running running(2, settings);
  Store store = running.store(0);
  const auto refused = [&](const std::string& key, std::size_t bytes) {
    const auto error = thrown_by([&] { store.set(key, std::string(bytes, 'x'), kPatience); });
    return error ? error->message : "accepted";
  };
  EXPECT_THAT(refused("", 1), HasSubstr("the key '' has 0 bytes; expected 1 to 256"));
  EXPECT_THAT(refused(std::string(257, 'k'), 1), HasSubstr("has 257 bytes; expected 1 to 256"));
  EXPECT_THAT(refused("k", (std::size_t{1} << 20) + 1), HasSubstr("has 1048577 bytes; expected at most 1048576"));
  EXPECT_THAT(refused("k", 1000), HasSubstr("the store is full: it keeps at most 1000 bytes"));
  EXPECT_EQ(refused("k", 999), "accepted");
  EXPECT_EQ(refused("k", 998), "accepted");  // in the place of the old value
  EXPECT_THAT(refused("l", 1), HasSubstr("the store is full"));
}

TEST(Store, CarriesTheLargestValue) {
  const Running running;
  Store first = running.store(0), second = running.store(1);
  std::string value(std::size_t{1} << 20, 'x');
  for (std::size_t i = 0; i < value.size(); i += 1000) value[i] = static_cast<char>(i / 1000);
  first.set("large", value, kPatience);
  EXPECT_EQ(second.get("large", kPatience), value);
}

// ---- ranks that were started differently

TEST(StoreHandshake, RefusesAnotherConfigurationInWordsOnBothSides) {
  const Running running;
  Store first = running.store(0);
  StoreHello other = hello(1);
  other.configuration = 43;
  const std::string objection =
      "rank 1 was started with another configuration than rank 0 (hash 000000000000002b, not 000000000000002a)";
  EXPECT_THAT(running.refusal(other), AllOf(HasSubstr("refuses this process: "), HasSubstr(objection)));
  EXPECT_THAT(failure_of([&] { first.barrier("start", kPatience); }), HasSubstr("rank 1 was refused: " + objection));
}

TEST(StoreHandshake, TellsABarrierThatWaitsAlready) {
  const Running running;
  Store first = running.store(0);
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(20));
    StoreHello other = hello(1);
    other.configuration = 43;
    running.refusal(other);
  });
  EXPECT_THAT(failure_of([&] { first.barrier("start", kPatience); }), HasSubstr("rank 1 was refused"));
  late.join();
}

TEST(StoreHandshake, RefusesAnotherWorldSize) {
  const Running running;
  EXPECT_THAT(running.refusal(hello(1, 3)), HasSubstr("rank 1 was started as one of 3 ranks, rank 0 as one of 2"));
  EXPECT_THAT(running.refusal(hello(2, 2)), HasSubstr("rank 2 does not lie among 2 ranks"));
  Store first = running.store(0), second = running.store(1);
  std::thread other([&] { second.barrier("nobody waits for rank 2", kPatience); });
  first.barrier("nobody waits for rank 2", kPatience);
  other.join();
}

TEST(StoreHandshake, RefusesASecondProcessOfARankButNotOneThatComesBack) {
  const Running running;
  std::optional<Store> first(running.store(0));
  EXPECT_THAT(running.refusal(hello(0)), HasSubstr("rank 0 is here already; each rank may be started once"));
  Store second = running.store(1);
  std::thread other([&] { second.barrier("goes on", kPatience); });
  first->barrier("goes on", kPatience);
  other.join();
  first.reset();
  EXPECT_THAT(failure_of([&] { second.barrier("end", kPatience); }), HasSubstr("rank 0 has left"));
  EXPECT_EQ(running.refusal(hello(0)), "accepted");
}

TEST(StoreHandshake, RefusesAnotherVersion) {
  const Running running;
  StoreHello newer = hello(1);
  newer.version = 9;
  EXPECT_THAT(running.refusal(newer),
              HasSubstr("this store speaks version 1 of its protocol, rank 1 speaks version 9"));
}

TEST(StoreHandshake, FindsItsOwnRunAmongSeveralPorts) {
  StoreSettings other;
  other.world_size = 2;
  other.run = 8;
  const StoreServer stranger(std::move(listen_on("127.0.0.1", 0).socket), other);
  const Running running;
  const StoreAddress both{"127.0.0.1", {stranger.port(), running.server->port()}};
  Store store(both, hello(1), kPatience);
  EXPECT_EQ(store.place(), running.address.text());
  EXPECT_THAT(failure_of([&] { Store({"127.0.0.1", {stranger.port()}}, hello(1), kShort); }),
              HasSubstr("this is the store of another run"));
}

// ---- addresses

TEST(StoreAddress, NamesAPortInUse) {
  const Running running;
  StoreSettings settings;
  const auto error = thrown_by([&] { StoreServer(running.address, settings); });
  EXPECT_EQ(error, test::thrown(ErrorKind::usage_error,
                                fmt::format("store: rank 0 cannot listen at 127.0.0.1 on port {} (Address already in "
                                            "use); expected a free port",
                                            running.server->port())));
}

TEST(StoreAddress, TakesTheFirstPortThatIsFree) {
  const Running running;
  const int free_port = port_of_listening(listen_on("127.0.0.1", 0).socket.get());
  const StoreServer second({"127.0.0.1", {running.server->port(), free_port}}, {});
  EXPECT_EQ(second.port(), free_port);
}

TEST(StoreAddress, NamesAHostThatIsNotHere) {
  const auto elsewhere = thrown_by([] { StoreServer({"192.0.2.1", {4711}}, {}); });
  ASSERT_TRUE(elsewhere);
  EXPECT_THAT(elsewhere->message, HasSubstr("192.0.2.1 is no address of this machine"));
  const auto unknown = thrown_by([] { StoreServer({"no host\n", {4711}}, {}); });
  ASSERT_TRUE(unknown);
  EXPECT_THAT(unknown->message, HasSubstr("host 'no host\\x0a' cannot be found"));
}

TEST(StoreAddress, IsNoListeningSocketIfItIsAnythingElse) {
  const auto error = thrown_by([] { StoreServer(Socket(), {}); });
  EXPECT_EQ(error, test::thrown(ErrorKind::usage_error, "descriptor -1 is no listening socket"));
}

TEST(StoreAddress, IsLookedForUntilTheDeadline) {
  const int port = port_of_listening(listen_on("127.0.0.1", 0).socket.get());
  EXPECT_THAT(failure_of([&] { Store({"127.0.0.1", {port}}, hello(1), kShort); }),
              HasSubstr(fmt::format("rank 1 of 2 found no store of rank 0 at 127.0.0.1:{} within 0.3 s; what was "
                                    "found: 127.0.0.1:{}: Connection refused",
                                    port, port)));
  std::optional<StoreServer> late;
  std::thread starter([&] {
    std::this_thread::sleep_for(milliseconds(50));
    StoreSettings settings{.world_size = 2, .configuration = 42, .run = 7};
    late.emplace(StoreAddress{"127.0.0.1", {port}}, settings);
  });
  Store store({"127.0.0.1", {port}}, hello(1), kPatience);
  starter.join();
  store.set("key", "value", kPatience);
}

// ---- a store that fails

TEST(StoreFailure, IsNoticedAtOnceWhenTheStoreVanishes) {
  Running running;
  Store store = running.store(1);
  std::thread end([&] {
    std::this_thread::sleep_for(milliseconds(30));
    running.server.reset();
  });
  EXPECT_THAT(failure_of([&] { store.barrier("start", kPatience); }),
              HasSubstr("barrier 'start': the store has vanished: rank 0 closed the connection"));
  end.join();
  EXPECT_THAT(failure_of([&] { store.set("key", "", kPatience); }), HasSubstr("the connection is closed since"));
}

// Answers every connection with the same bytes, as something that is no store of ours.
class FalseStore {
 public:
  explicit FalseStore(std::string answer) : listening_(std::move(listen_on("127.0.0.1", 0).socket)) {
    port_ = port_of_listening(listening_.get());
    thread_ = std::thread([this, answer = std::move(answer)] {
      while (!is_over_) {
        Socket socket(::accept(listening_.get(), nullptr, nullptr));
        if (!socket.is_open()) {
          std::this_thread::sleep_for(milliseconds(1));
          continue;
        }
        send_all(socket, std::as_bytes(std::span(answer.data(), answer.size())), Deadline(kPatience));
        connections_.push_back(std::move(socket));
      }
    });
  }
  ~FalseStore() {
    is_over_ = true;
    thread_.join();
  }
  StoreAddress address() const { return {"127.0.0.1", {port_}}; }

 private:
  Socket listening_;
  int port_ = 0;
  std::atomic<bool> is_over_ = false;
  std::vector<Socket> connections_;
  std::thread thread_;
};

TEST(StoreFailure, IsToldFromAStoreThatIsSilentOrNoStore) {
  const FalseStore silent(""), other("HTTP/1.1 400 Bad Request\r\n\r\n");
  EXPECT_THAT(failure_of([&] { Store(silent.address(), hello(1), kShort); }),
              HasSubstr("it was reached, but the other side was silent instead of greeting"));
  EXPECT_THAT(failure_of([&] { Store(other.address(), hello(1), kShort); }),
              HasSubstr("what answers there is no store of shardproof"));
  // Claims a text of four gigabytes.
  const FalseStore huge(std::string("\x01\0\0\0\0\0\0\0\0\xff\xff\xff\xff", 13));
  EXPECT_THAT(failure_of([&] { Store(huge.address(), hello(1), kShort); }), HasSubstr("is no store of shardproof"));
}

TEST(StoreFailure, IsNoticedWhenTheStoreStopsAnswering) {
  const FalseStore welcomes_only(StoreReply{}.encoded());
  Store store(welcomes_only.address(), hello(1), kPatience);
  EXPECT_THAT(failure_of([&] { store.get("key", kShort); }), HasSubstr("the store did not answer in time"));
  const FalseStore babbles(StoreReply{}.encoded() + std::string(13, '\xff'));
  Store other(babbles.address(), hello(1), kPatience);
  EXPECT_THAT(failure_of([&] { other.get("key", kShort); }), HasSubstr("the reply is malformed"));
}

// ---- peers that mean harm

// The two ranks of the run can still do all they want.
void expect_useful(const Running& running) {
  Store first = running.store(0), second = running.store(1);
  first.set("key", "value", kPatience);
  EXPECT_EQ(second.get("key", kPatience), "value");
  std::thread other([&] { second.barrier("barrier", kPatience); });
  first.barrier("barrier", kPatience);
  other.join();
}

TEST(HostilePeers, AreCutOffAtTheFirstWrongByte) {
  const Running running;
  for (const std::string& garbage : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("S?"), std::string(1000, '\0'),
                                     hello(1).encoded().replace(7, 1, "\r")}) {
    Stranger stranger(running.address);
    stranger.say(garbage);
    EXPECT_EQ(stranger.hear_all(), "");
  }
  expect_useful(running);
}

TEST(HostilePeers, AreDroppedWhenTheyAreSilentOrSayHalfAHello) {
  StoreSettings settings;
  settings.handshake_time = milliseconds(50);
  const Running running(2, settings);
  for (const std::size_t bytes : {0U, 5U, 20U, 35U}) {
    Stranger stranger(running.address);
    stranger.say(hello(1).encoded().substr(0, bytes));
    EXPECT_EQ(stranger.hear_all(), "") << bytes;
  }
  Stranger gone(running.address);
  gone.say(hello(1).encoded().substr(0, 20));
  gone.end_of_words();
  EXPECT_EQ(gone.hear_all(), "");
  expect_useful(running);
}

TEST(HostilePeers, DoNotHoldUpTheRanks) {
  const Running running;
  Stranger silent(running.address), slow(running.address);
  slow.say(hello(1).encoded().substr(0, 9));
  expect_useful(running);
}

TEST(HostilePeers, MayBeSlowIfTheySayTheRightThing) {
  const Running running;
  Stranger slow(running.address);
  const std::string request =
      StoreRequest{.call = StoreCall::set, .key = "slow", .value = "peer", .patience = kPatience}.encoded();
  for (const char byte : hello(1).encoded() + request) {
    slow.say({&byte, 1});
    if (byte == 'S' || byte == 's') std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ(running.store(0).get("slow", kPatience), "peer");
}

TEST(HostilePeers, CannotSayMoreThanTheirLengthsAllow) {
  const Running running;
  const auto answer_to = [&](std::string request) {
    Stranger stranger(running.address);
    stranger.say(hello(1).encoded());
    stranger.say(request);
    const std::string heard = stranger.hear_all().substr(StoreReply::kHeaderBytes);
    return heard.size() < StoreReply::kHeaderBytes ? heard : heard.substr(StoreReply::kHeaderBytes);
  };
  const std::string refused = "the request has an unknown call or a wrong length";
  const std::string good = StoreRequest{.call = StoreCall::set, .key = "key", .value = "value"}.encoded();
  const std::string header = good.substr(0, StoreRequest::kHeaderBytes);
  EXPECT_EQ(answer_to(std::string(header).replace(5, 4, "\xff\xff\xff\xff")), refused);    // value
  EXPECT_EQ(answer_to(std::string(header).replace(1, 4, "\xff\xff\xff\x7f")), refused);    // key
  EXPECT_EQ(answer_to(std::string(header).replace(1, 4, std::string(4, '\0'))), refused);  // no key
  EXPECT_EQ(answer_to(std::string(header).replace(0, 1, "\x09")), refused);                // call
  EXPECT_EQ(answer_to(std::string(header).replace(0, 1, std::string(1, '\0'))), refused);
  EXPECT_EQ(answer_to(std::string(header).replace(0, 1, "\x02")), refused);  // a get that brings a value
  expect_useful(running);
}

// Sessions of a rank with some bytes changed, left out or doubled. Which ones follows from the number of the session.
TEST(HostilePeers, CannotHarmWithAnyBytes) {
  const Running running;
  const std::string session = hello(1).encoded() +
                              StoreRequest{.call = StoreCall::set, .key = "k", .value = "v"}.encoded() +
                              StoreRequest{.call = StoreCall::add, .key = "n", .value = {}, .delta = 3}.encoded() +
                              StoreRequest{.call = StoreCall::get, .key = "k", .value = {}}.encoded() +
                              StoreRequest{.call = StoreCall::barrier, .key = "b", .value = {}}.encoded();
  for (std::uint64_t i = 0; i < 300; ++i) {
    const RandomStream random(i, "session");
    const auto place = [&](std::uint64_t index, const std::string& text) {
      return static_cast<std::size_t>(random.below(index, static_cast<std::int64_t>(text.size())));
    };
    std::string bytes = session;
    bytes[place(0, bytes)] ^= static_cast<char>(1U << static_cast<unsigned>(random.below(1, 8)));
    if (i % 3 == 1) bytes.erase(place(2, bytes), 1 + place(3, bytes) % 8);
    if (i % 3 == 2) bytes.insert(place(4, bytes), bytes.substr(place(5, bytes), 9));
    Stranger stranger(running.address);
    stranger.say(bytes);
    stranger.end_of_words();
    EXPECT_LT(stranger.hear_all().size(), 1000U) << i;
  }
  expect_useful(running);
}

TEST(HostilePeers, AreNotKeptInNumbers) {
  StoreSettings settings;
  settings.most_strangers = 4;
  const Running running(2, settings);
  std::vector<Stranger> crowd;
  for (int i = 0; i < 40; ++i) crowd.emplace_back(running.address);
  EXPECT_EQ(crowd.front().hear_all(), "");  // made place
  expect_useful(running);
}

TEST(HostilePeers, MayAskWithoutReadingTheReplies) {
  const Running running;
  Store first = running.store(0);
  first.set("large", std::string(std::size_t{1} << 20, 'x'), kPatience);
  {
    Stranger deaf(running.address);
    deaf.say(hello(1).encoded());
    const std::string request = StoreRequest{.call = StoreCall::get, .key = "large", .value = {}}.encoded();
    for (int i = 0; i < 100; ++i) deaf.say(request);
    first.set("other", "1", kPatience);
  }
  EXPECT_EQ(first.get("other", kPatience), "1");
}

}  // namespace
}  // namespace shardproof
