// NCCL and the CUDA runtime as the product loads them. The real ones make unique ids and say that there is no GPU;
// without them, or with others, what needs them is refused in one line, and everything else runs.
#include "real/nccl_library.h"

#include <cstdlib>
#include <map>

#include <nccl.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real/cuda_library.h"
#include "real/cuda_threads.h"
#include "real/mpi_communicator.h"
#include "real/nccl_communicator.h"
#include "tests/app/program.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::ProgramRun;
using test::run_program;
using testing::AllOf;
using testing::HasSubstr;

using Words = std::vector<std::string>;

const Words kNowhere{"SHARDPROOF_NCCL_LIBRARY=/nowhere/libnccl.so.2",
                     "SHARDPROOF_CUDART_LIBRARY=/nowhere/libcudart.so.13"};

ProgramRun run_with(const Words& environment, Words arguments) {
  arguments.insert(arguments.end(), {"flux", "--case", "even", "--ulysses-degree", "2"});
  return run_program(arguments, {.environment = environment});
}

// The error of two ranks that need NCCL.
std::string refusal_over_nccl(const Words& environment) {
  const ProgramRun run =
      run_with(environment, {"launch", "-n", "2", "--", test::program_path(), "run", "--backend", "nccl"});
  EXPECT_EQ(run.status, 2) << run.output << run.error;
  return run.error;
}

TEST(NcclLibrary, IsNotNeededByWhatDoesNotUseIt) {
  EXPECT_EQ(run_program({"--version"}, {.environment = kNowhere}).status, 0);
  const ProgramRun verified = run_with(kNowhere, {"verify"});
  EXPECT_EQ(verified.status, 0) << verified.error;
  EXPECT_THAT(verified.output, HasSubstr("Everything that was run is verified"));
  if (!mpi_is_built()) return;
  const ProgramRun real =
      run_with(kNowhere, {"launch", "-n", "2", "--", test::program_path(), "run", "--backend", "mpi"});
  EXPECT_EQ(real.status, 0) << real.error;
  EXPECT_THAT(real.output, HasSubstr("ROUNDING-EQUIVALENT"));
}

TEST(NcclLibrary, IsNamedWithItsPlacesWhereItIsMissing) {
  EXPECT_THAT(refusal_over_nccl(kNowhere),
              AllOf(HasSubstr("NCCL cannot be loaded (/nowhere/libnccl.so.2: cannot open shared object file"),
                    HasSubstr("); tools/setup_nccl.sh fetches it, or say where it is with SHARDPROOF_NCCL_LIBRARY")));
  EXPECT_THAT(refusal_over_nccl({kNowhere[1]}),
              AllOf(HasSubstr("the CUDA runtime cannot be loaded (/nowhere/libcudart.so.13: cannot open shared object"),
                    HasSubstr("or say where it is with SHARDPROOF_CUDART_LIBRARY")));
}

TEST(NcclLibrary, IsRefusedIfItIsAnotherLibraryOrTooOld) {
  const std::string nccl = "SHARDPROOF_NCCL_LIBRARY=", cuda = "SHARDPROOF_CUDART_LIBRARY=";
  const std::string fake = SHARDPROOF_FAKE_NCCL_LIBRARY;
  EXPECT_THAT(refusal_over_nccl({nccl + "libm.so.6"}),
              HasSubstr("'libm.so.6' has no function ncclGetVersion; expected NCCL 2.28 or newer"));
  EXPECT_THAT(refusal_over_nccl({nccl + fake, "SHARDPROOF_FAKE_NCCL_VERSION=22706"}),
              HasSubstr("'" + fake + "' is NCCL 2.27.6; expected NCCL 2.28 or newer; SHARDPROOF_NCCL_LIBRARY may say"));
  EXPECT_THAT(refusal_over_nccl({cuda + "libm.so.6"}), HasSubstr("'libm.so.6' has no function cudaRuntimeGetVersion"));
  EXPECT_THAT(refusal_over_nccl({cuda + fake, "SHARDPROOF_FAKE_CUDART_VERSION=99010"}),
              HasSubstr("'" + fake + "' is the CUDA runtime 99.1; expected the CUDA runtime "));
}

// In a process of its own, since a library is loaded once.
TEST(CudaLibraryDeathTest, IsNamedByRanksOnOneGpu) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto end_with_refusal = [] {
    ::setenv("SHARDPROOF_CUDART_LIBRARY", "/nowhere/libcudart.so", 1);
    const auto error = test::thrown_by([] { run_cuda_ranks({}, {}); });
    fmt::print(stderr, "{}\n", error ? error->message : "none");
    std::exit(error && error->kind == ErrorKind::unsupported_error ? 5 : 1);
  };
  EXPECT_EXIT(end_with_refusal(), testing::ExitedWithCode(5), "the CUDA runtime cannot be loaded .*/nowhere/libcudart");
}

// The real library, through the functions that load it.
TEST(NcclLibrary, MakesUniqueIds) {
  require_nccl();
  int version = 0;
  ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_GE(version, NCCL_VERSION(2, 28, 0));
  EXPECT_EQ(nccl_version(), fmt::format("2.{}.{}", version / 100 % 100, version % 100));
  ncclUniqueId first{}, second{};
  ASSERT_EQ(ncclGetUniqueId(&first), ncclSuccess) << ncclGetLastError(nullptr);
  ASSERT_EQ(ncclGetUniqueId(&second), ncclSuccess);
  const std::string_view text(first.internal, sizeof(first.internal));
  EXPECT_NE(text.find_first_not_of('\0'), std::string_view::npos);
  EXPECT_NE(text, std::string_view(second.internal, sizeof(second.internal)));
  EXPECT_THAT(ncclGetErrorString(ncclInvalidArgument), testing::StartsWith("invalid argument"));
}

class MapStore final : public NcclStore {
 public:
  void set(std::string_view key, std::string_view value) override { values[std::string(key)] = value; }
  std::optional<std::string> get(std::string_view key, std::chrono::milliseconds) override {
    const auto found = values.find(std::string(key));
    return found == values.end() ? std::nullopt : std::optional(found->second);
  }
  std::map<std::string, std::string> values;
};

// The communicator's own start-up as far as it goes: with a GPU it connects one rank, without one it says so.
TEST(NcclLibrary, StartsASessionUpToTheGpu) {
  require_cuda();
  int devices = 0;
  const bool has_gpu = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  const auto store = std::make_shared<MapStore>();
  const auto error = test::thrown_by([&] { const NcclSession session({}, store); });
  EXPECT_EQ(store->values["nccl/id"].size(), sizeof(ncclUniqueId));
  ASSERT_EQ(error.has_value(), !has_gpu);
  if (has_gpu) return;
  EXPECT_EQ(error->kind, ErrorKind::unsupported_error);
  EXPECT_THAT(error->message, HasSubstr("NCCL needs a GPU: cudaGetDeviceCount: "));
  EXPECT_EQ(store->values["nccl/failed"], "rank 0: " + error->message);
}

// Ranks that fail alike end in any order, and with one of them the store.
class LostStore final : public NcclStore {
 public:
  void set(std::string_view, std::string_view) override { fail(ErrorKind::state_error, "the store is lost"); }
  std::optional<std::string> get(std::string_view, std::chrono::milliseconds) override { return std::nullopt; }
};

TEST(NcclLibraryDeathTest, IsNamedEvenIfNobodyCanBeTold) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto end_with_refusal = [] {
    ::setenv("SHARDPROOF_NCCL_LIBRARY", "/nowhere/libnccl.so", 1);
    const auto error = test::thrown_by([] { const NcclSession session({}, std::make_shared<LostStore>()); });
    fmt::print(stderr, "{}\n", error ? error->message : "none");
    std::exit(error && error->kind == ErrorKind::unsupported_error ? 5 : 1);
  };
  EXPECT_EXIT(end_with_refusal(), testing::ExitedWithCode(5), "NCCL cannot be loaded .*/nowhere/libnccl");
}

}  // namespace
}  // namespace shardproof
