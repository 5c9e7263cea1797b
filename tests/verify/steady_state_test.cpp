// A run takes all its memory for tensors during its first forward: the second one makes no call to the system's
// allocator for them, whatever the mode. The small allocations of the second forward (trees of values, requests,
// strings) are counted too, and bounded, since small models are bound by them.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/collectives.h"
#include "parallel/context_parallel.h"
#include "sim/simulation.h"
#include "verify/subject.h"

namespace {

std::atomic<std::int64_t> small_allocations{0};

}  // namespace

// The forms that this program uses; the others are built from them. Not inlined: the compiler takes a delete that it
// sees through for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  small_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* block = std::malloc(std::max<std::size_t>(bytes, 1))) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  small_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(std::max<std::size_t>(bytes, 1));
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, const std::nothrow_t&) noexcept { std::free(block); }

namespace shardproof {
namespace {

// A rank may make so many small allocations in one forward of flux/tiny; 107 to 350 are made.
constexpr std::int64_t kSmallAllocations = 600;

struct Setting {
  const char* name;
  std::optional<ContextParallelConfig> config;  // none: dense
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> kSettings{
      {"dense", std::nullopt},
      {"ulysses 4", ContextParallelConfig{.ulysses_degree = 4}},
      {"ring 4, allgather", ContextParallelConfig{.ring_degree = 4}},
      {"ring 4, alltoall", ContextParallelConfig{.ring_degree = 4, .rotate_method = "alltoall"}},
      {"unified 2 x 2", ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2}},
      {"ulysses 4, anything", ContextParallelConfig{.ulysses_degree = 4, .ulysses_anything = true}},
      {"ring 4, anything", ContextParallelConfig{.ring_degree = 4, .ring_anything = true}},
  };
  return kSettings;
}

struct Taken {
  std::int64_t blocks = 0;             // from the system, for tensors
  std::int64_t small_allocations = 0;  // of all ranks
};

class Meter {
 public:
  Meter(Subject& subject, Device& device) : subject_(subject), device_(dynamic_cast<HostDevice&>(device)) {}
  Taken read() const {
    auto& host = dynamic_cast<HostDevice&>(subject_.host());
    return {device_.pool().system_allocations() + host.pool().system_allocations(), small_allocations.load()};
  }

 private:
  Subject& subject_;
  HostDevice& device_;
};

Taken difference(const Taken& after, const Taken& before) {
  return {after.blocks - before.blocks, after.small_allocations - before.small_allocations};
}

// What the second of two forwards takes, on one rank or on all ranks of a configuration together.
Taken of_second_forward(Subject& subject, const ModelContext& context, const Setting& setting) {
  const Meter meter(subject, *context.device);
  const Arguments arguments = subject.prepare(subject.load_case("base"), context);
  if (!setting.config) {
    const std::unique_ptr<Module> tree = subject.make_tree(context);
    tree->call(arguments);
    const Taken before = meter.read();
    tree->call(arguments);
    return difference(meter.read(), before);
  }
  const ContextParallelPlan plan = *subject.model().plans(subject.config()).default_cp;
  Taken before, after;
  run_ranks({.world_size = 4}, [&](Communicator& world) {
    const auto state = std::make_shared<const ContextParallelState>(world, *setting.config);
    const std::unique_ptr<Module> tree = subject.make_tree(context);
    apply_context_parallel(*tree, state, plan);
    // One rank reads while the others wait: they start the next part only when it has posted the barrier, too.
    const auto read_alone = [&](Taken& taken) {
      collectives::barrier(world, "steady state: all are here");
      if (world.rank() == 0) taken = meter.read();
      collectives::barrier(world, "steady state: it was read");
    };
    tree->call(arguments);
    read_alone(before);
    tree->call(arguments);
    read_alone(after);
  });
  return difference(after, before);
}

enum class Where : std::uint8_t { cpu_float32, reference_float64 };

// A subject of its own for each setting, so that none finds what another has left in the pool.
void expect_steady(Where where) {
  const std::string golden = std::string(SHARDPROOF_SOURCE_DIR) + "/tests/data/goldens/flux/tiny";
  for (const Setting& setting : settings()) {
    Subject subject = Subject::open(golden, 0);
    const ModelContext context = where == Where::cpu_float32
                                     ? ModelContext{&subject.cpu_device(), kFloat32, TablePrecision::float32}
                                     : ModelContext{&subject.reference_device(), kFloat64, TablePrecision::float64};
    const Taken taken = of_second_forward(subject, context, setting);
    EXPECT_EQ(taken.blocks, 0) << setting.name;
    EXPECT_GT(Meter(subject, *context.device).read().blocks, 10) << setting.name << ": the first forward took none";
    const std::int64_t small = taken.small_allocations / (setting.config ? 4 : 1);
    EXPECT_LE(small, kSmallAllocations) << setting.name;
    fmt::print("{}: {} small allocations a rank in one forward\n", setting.name, small);
  }
}

TEST(SteadyState, TakesNoMemoryForTensorsOnTheCpuDeviceInFloat32) { expect_steady(Where::cpu_float32); }

TEST(SteadyState, TakesNoMemoryForTensorsOnTheReferenceDeviceInFloat64) { expect_steady(Where::reference_float64); }

}  // namespace
}  // namespace shardproof
