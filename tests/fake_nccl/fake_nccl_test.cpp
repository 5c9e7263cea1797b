// The fake NCCL is strict: each rule that it knows is broken here by a rank on purpose, and must be named. A fake that
// overlooks one would let the product break it too.
#include <functional>
#include <ostream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <unistd.h>

#include "tests/fake_nccl/fabric.h"
#include "tests/fake_nccl/forked_ranks.h"

namespace shardproof::fake_nccl {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

// What a rank has at hand; two ranks share one unique id.
struct Rank {
  int number = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  void* device = nullptr;  // kBytes of device memory
};
constexpr std::size_t kBytes = 1024;

void settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  for (int i = 0; i < 2000 && state == ncclInProgress; ++i) {
    ncclCommGetAsyncError(comm, &state);
    usleep(100);
  }
}

ncclResult_t start(Rank& rank, int ranks) {
  ncclUniqueId id{};
  id.internal[0] = 1;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return ncclCommInitRankConfig(&rank.comm, ranks, id, rank.number, &config);
}

Rank started(int number, int ranks) {
  Rank rank{.number = number};
  cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking);
  cudaMalloc(&rank.device, kBytes);
  start(rank, ranks);
  settle(rank.comm);
  return rank;
}

struct Offence {
  const char* name;
  int ranks;
  const char* violation;
  std::function<void(Rank& rank)> commit;
};
void PrintTo(const Offence& offence, std::ostream* stream) { *stream << offence.name; }

class FakeNccl : public testing::TestWithParam<Offence> {};

TEST_P(FakeNccl, NamesTheOffence) {
  const Offence& offence = GetParam();
  make_fabric(offence.ranks);
  const auto ends = run_ranks(
      offence.ranks,
      [&](int number) {
        Rank rank = started(number, offence.ranks);
        offence.commit(rank);
      },
      std::chrono::seconds(10));
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
  EXPECT_THAT(violations(), Contains(HasSubstr(offence.violation)));
}

// The same ranks without an offence: nothing is found.
TEST(FakeNcclWithoutOffence, FindsNothingWhereNothingIsWrong) {
  make_fabric(2);
  const auto ends = run_ranks(2, [](int number) {
    const Rank rank = started(number, 2);
    ncclAllGather(rank.device, rank.device, 4, ncclFloat32, rank.comm, rank.stream);
    settle(rank.comm);
    cudaStreamSynchronize(rank.stream);
    ncclCommFinalize(rank.comm);
    settle(rank.comm);
    ncclCommDestroy(rank.comm);
    cudaFree(rank.device);
    cudaStreamDestroy(rank.stream);
    check_everything_released();
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
  EXPECT_THAT(violations(), testing::IsEmpty());
}

void gather(Rank& rank, std::size_t count = 4, ncclDataType_t type = ncclFloat32) {
  ncclAllGather(rank.device, rank.device, count, type, rank.comm, rank.stream);
}

const std::vector<Offence>& offences() {
  static const std::vector<Offence> all{
      {"UseAfterAbort", 1, "ncclAllGather: used after ncclCommAbort",
       [](Rank& rank) {
         ncclCommAbort(rank.comm);
         gather(rank);
       }},
      {"UseAfterDestroy", 1, "ncclCommGetAsyncError: used after ncclCommDestroy",
       [](Rank& rank) {
         ncclCommFinalize(rank.comm);
         settle(rank.comm);
         ncclCommDestroy(rank.comm);
         ncclResult_t state = ncclSuccess;
         ncclCommGetAsyncError(rank.comm, &state);
       }},
      {"UseAfterFinalize", 1, "ncclAllGather: used after ncclCommFinalize",
       [](Rank& rank) {
         ncclCommFinalize(rank.comm);
         settle(rank.comm);
         gather(rank);
       }},
      {"DestroyWithoutFinalize", 1, "ncclCommDestroy: not finalised", [](Rank& rank) { ncclCommDestroy(rank.comm); }},
      {"NoCommunicator", 1, "ncclAllGather: no communicator",
       [](Rank& rank) { ncclAllGather(rank.device, rank.device, 1, ncclInt8, nullptr, rank.stream); }},
      {"UseWhileInProgress", 1, "ncclAllGather: the communicator is still in progress",
       [](Rank& rank) {
         gather(rank);
         gather(rank);
       }},
      {"EventBeforeTheLaunch", 1, "cudaEventRecord: the stream has NCCL calls that are still in progress",
       [](Rank& rank) {
         cudaEvent_t event = nullptr;
         cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
         gather(rank);
         cudaEventRecord(event, rank.stream);
       }},
      {"GroupWithoutABeginning", 1, "ncclGroupEnd: no group was started", [](Rank&) { ncclGroupEnd(); }},
      {"TwoStreamsInAGroup", 1, "ncclGroupEnd: a communicator has calls on two streams in one group",
       [](Rank& rank) {
         ncclGroupStart();
         gather(rank);
         ncclAllGather(rank.device, rank.device, 4, ncclFloat32, rank.comm, nullptr);
         ncclGroupEnd();
       }},
      {"PageableMemory", 1, "ncclAllGather: what is sent is no device or pinned memory of this rank",
       [](Rank& rank) {
         float on_stack = 0;
         ncclAllGather(&on_stack, rank.device, 1, ncclFloat32, rank.comm, rank.stream);
       }},
      {"BeyondTheBlock", 2, "ncclAllGather: what is received reaches 1024 bytes beyond its block of 1024",
       [](Rank& rank) { gather(rank, kBytes, ncclInt8); }},
      {"FreedMemory", 1, "what is sent is no device or pinned memory",
       [](Rank& rank) {
         cudaFree(rank.device);
         gather(rank);
       }},
      {"CopyOfPageableMemory", 1, "cudaMemcpyAsync: the source is no device or pinned memory of this rank",
       [](Rank& rank) {
         float on_stack = 0;
         cudaMemcpyAsync(rank.device, &on_stack, sizeof(on_stack), cudaMemcpyDefault, rank.stream);
       }},
      {"FreedTwice", 1, "cudaFree: no such block",
       [](Rank& rank) {
         cudaFree(rank.device);
         cudaFree(rank.device);
       }},
      {"DestroyedStream", 1, "cudaStreamWaitEvent: the stream was destroyed or never made",
       [](Rank& rank) {
         cudaEvent_t event = nullptr;
         cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
         cudaStreamDestroy(rank.stream);
         cudaStreamWaitEvent(rank.stream, event, 0);
       }},
      {"DestroyedEvent", 1, "cudaEventQuery: the event was destroyed or never made",
       [](Rank&) {
         cudaEvent_t event = nullptr;
         cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
         cudaEventDestroy(event);
         cudaEventQuery(event);
       }},
      {"SynchronisingStream", 1, "cudaStreamCreateWithFlags: a stream that waits for the default stream",
       [](Rank&) {
         cudaStream_t stream = nullptr;
         cudaStreamCreateWithFlags(&stream, cudaStreamDefault);
       }},
      {"ConfigurationOfZeros", 1, "ncclCommSplit: the configuration was not initialised",
       [](Rank& rank) {
         ncclConfig_t config{};
         ncclComm_t child = nullptr;
         ncclCommSplit(rank.comm, 0, 0, &child, &config);
       }},
      {"PlaceThatIsTaken", 1, "rank 0 of 1, in a communicator of 1 whose place is taken",
       [](Rank& rank) { start(rank, 1); }},
      {"OtherCounts", 2,
       "call 1 is ncclAllGather of 4 elements of type 7, reduction 0, root 0 here, but ncclAllGather of "
       "3 elements of type 7",
       [](Rank& rank) {
         gather(rank, rank.number == 0 ? 4 : 3);
         settle(rank.comm);
         usleep(30'000);
       }},
      {"OtherTypes", 2,
       "ncclAllGather of 4 elements of type 7, reduction 0, root 0 here, but ncclAllGather of 4 elements "
       "of type 6",
       [](Rank& rank) {
         gather(rank, 4, rank.number == 0 ? ncclFloat32 : ncclFloat16);
         settle(rank.comm);
         usleep(30'000);
       }},
      {"OtherRoots", 2,
       "ncclBroadcast of 4 elements of type 7, reduction 0, root 0 here, but ncclBroadcast of 4 elements "
       "of type 7, reduction 0, root 1",
       [](Rank& rank) {
         ncclBroadcast(rank.device, rank.device, 4, ncclFloat32, rank.number, rank.comm, rank.stream);
         settle(rank.comm);
         usleep(30'000);
       }},
      {"OtherCallThanASplit", 2, "ncclCommSplit: member 1 calls ncclAllGather instead",
       [](Rank& rank) {
         ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
         config.blocking = 0;
         ncclComm_t child = nullptr;
         if (rank.number == 0) ncclCommSplit(rank.comm, 0, 0, &child, &config);
         if (rank.number == 1) gather(rank);
         settle(rank.comm);
         usleep(30'000);
       }},
      {"LetterOfAnotherLength", 2, "ncclRecv: 4 elements of type 7 are expected from member 0, which sends 3 of type 7",
       [](Rank& rank) {
         if (rank.number == 0) ncclSend(rank.device, 3, ncclFloat32, 1, rank.comm, rank.stream);
         if (rank.number == 1) ncclRecv(rank.device, 4, ncclFloat32, 0, rank.comm, rank.stream);
         settle(rank.comm);
         usleep(30'000);
       }},
      {"LetterToItself", 2, "ncclSend: member 0 of 2 is no peer of member 0",
       [](Rank& rank) {
         if (rank.number == 0) ncclSend(rank.device, 3, ncclFloat32, 0, rank.comm, rank.stream);
       }},
      {"EmptyLetter", 2, "ncclSend: nothing, which both sides should leave out",
       [](Rank& rank) {
         if (rank.number == 0) ncclSend(rank.device, 0, ncclFloat32, 1, rank.comm, rank.stream);
       }},
      {"NothingReleased", 1, "never given back: 1 blocks of memory 1 streams 1 communicators",
       [](Rank&) { check_everything_released(); }},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(, FakeNccl, testing::ValuesIn(offences()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace shardproof::fake_nccl
