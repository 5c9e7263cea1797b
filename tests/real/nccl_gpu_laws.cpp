// The laws of a Communicator over the real NCCL, on GPUs: every process of `shardproof launch` runs this program, which
// loads NCCL as the product does, or is linked with it.
// Several ranks may share a GPU. Where there is none it has still exchanged NCCL's own unique id over the store of the
// run; it says so, says what NCCL's start then needs, and ends with the status of a skipped test.
#include <cstdio>
#include <exception>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "core/error.h"
#include "real/cuda_library.h"
#include "real/launcher.h"
#include "real/meeting.h"
#include "real/nccl_communicator.h"
#include "real/nccl_store.h"
#include "reference/eigen_device.h"
#include "tests/real/cuda_memory.h"
#include "tests/support/communicator_conformance.h"

namespace shardproof::test {
namespace {

using namespace std::chrono_literals;

constexpr int kSkipped = 77;

// Keeps what passes through it of the unique id.
class SeenStore final : public NcclStore {
 public:
  explicit SeenStore(std::shared_ptr<NcclStore> inner) : inner_(std::move(inner)) {}
  void set(std::string_view key, std::string_view value) override {
    inner_->set(key, value);
    note(key, value);
  }
  std::optional<std::string> get(std::string_view key, std::chrono::milliseconds wait) override {
    const std::optional<std::string> value = inner_->get(key, wait);
    if (value) note(key, *value);
    return value;
  }
  const std::string& id() const { return id_; }

 private:
  void note(std::string_view key, std::string_view value) {
    if (key == "nccl/id") id_ = value;
  }
  std::shared_ptr<NcclStore> inner_;
  std::string id_;
};

void check_laws(Communicator& world, const ConformanceTools& tools, std::string_view memory) {
  const RankRunner runner = [&](int, const std::function<void(Communicator & world)>& body) { body(world); };
  for (const CommunicatorLaw& law : communicator_laws()) {
    try {
      check_communicator_law(law, world.size(), runner, tools);
    } catch (const std::exception& error) {
      fail(ErrorKind::internal_error, "law {} is broken with tensors in {}: {}", law.name, memory, error.what());
    }
  }
  if (world.rank() == 0) {
    fmt::print("{} laws hold on {} ranks over NCCL {}, {}\n", communicator_laws().size(), world.size(), nccl_version(),
               memory);
  }
}

void keep_laws(const NcclSession& session) {
  const auto world = session.world();
  const std::unique_ptr<Device> float64 = make_reference_device(kFloat64);
  const std::unique_ptr<Device> float32 = make_reference_device(kFloat32);
  ConformanceTools tools;
  tools.device = float64.get();
  tools.summing = {{float64.get(), kFloat64}, {float32.get(), kFloat32}};
  check_laws(*world, tools, "host memory");
  const std::unique_ptr<Device> on_device = make_cuda_memory();
  tools.device = on_device.get();
  tools.summing = {{on_device.get(), kFloat64}, {on_device.get(), kFloat32}};
  check_laws(*world, tools, "device memory");
  session.check();
}

int run() {
  const Launch launch = launch_from_environment();
  Meeting meeting(launch, 0, 30s, MeetingFor::others);
  SHARDPROOF_CHECK(meeting.store() != nullptr, usage_error, "start this program with shardproof launch");
  require_cuda();
  int devices = 0;
  const bool has_gpu = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  const auto store = std::make_shared<SeenStore>(nccl_store_in(*meeting.store(), 10s));
  std::string reason;
  try {
    const NcclSession session(
        {.rank = launch.rank, .world_size = launch.world_size, .device = launch.local_rank, .timeout = 120s}, store);
    keep_laws(session);
  } catch (const Error& error) {
    if (has_gpu || error.kind() != ErrorKind::unsupported_error) throw;
    reason = error.what();
  }
  SHARDPROOF_CHECK(store->id().size() == 128 && store->id().find_first_not_of('\0') != std::string::npos,
                   internal_error, "the unique id has {} bytes", store->id().size());
  if (!reason.empty() && launch.rank == 0) {
    fmt::print(
        "NcclCommunicator on GPUs: Skipped\nSKIPPED: {} ranks exchanged the unique id of NCCL {}; beyond it {}\n",
        launch.world_size, nccl_version(), reason);
    std::fflush(stdout);
  }
  meeting.end();  // nobody ends, by which the launcher would end all, before that is said
  return reason.empty() ? 0 : kSkipped;
}

}  // namespace
}  // namespace shardproof::test

int main() {
  try {
    return shardproof::test::run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
