// One fiber by itself: turns, ends, exceptions and reuse of stacks.
// What it does wrong would show in every simulated rank, and be blamed on the code that runs there.
#include "sim/fiber.h"

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/crew.h"
#include "sim/fiber_stack.h"

namespace shardproof::sim {
namespace {

TEST(Fiber, TakesTurnsWithItsCaller) {
  std::vector<int> trace;
  std::unique_ptr<Fiber> fiber;
  fiber = std::make_unique<Fiber>([&] {
    trace.push_back(1);
    fiber->yield();
    trace.push_back(3);
    fiber->yield();
    trace.push_back(5);
  });
  EXPECT_TRUE(trace.empty());
  fiber->resume();
  trace.push_back(2);
  fiber->resume();
  trace.push_back(4);
  EXPECT_FALSE(fiber->ended());
  fiber->resume();
  EXPECT_TRUE(fiber->ended());
  EXPECT_THAT(trace, testing::ElementsAre(1, 2, 3, 4, 5));
}

TEST(Fiber, KeepsExceptionsApart) {
  std::vector<std::string> caught(2);
  std::vector<std::unique_ptr<Fiber>> fibers(2);
  for (std::size_t i = 0; i < 2; ++i) {
    fibers[i] = std::make_unique<Fiber>([&, i] {
      std::exception_ptr kept;
      try {
        throw std::runtime_error(std::to_string(i));
      } catch (...) {
        kept = std::current_exception();
      }
      fibers[i]->yield();
      try {
        std::rethrow_exception(kept);
      } catch (const std::runtime_error& error) {
        caught[i] = error.what();
      }
    });
  }
  for (int turn = 0; turn < 2; ++turn) {
    for (const auto& fiber : fibers) fiber->resume();
  }
  EXPECT_THAT(caught, testing::ElementsAre("0", "1"));
}

TEST(Fiber, ReusesStacks) {
  const FiberStack first = acquire_stack();
  EXPECT_EQ(first.bytes(), kFiberStackBytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.top) % 4096, 0U);
  *first.low = std::byte{42};
  release_stack(first);
  const FiberStack second = acquire_stack();
  EXPECT_EQ(second.low, first.low);
  EXPECT_EQ(*second.low, std::byte{42}) << "new pages of the system would be zero";
  release_stack(second);
}

TEST(Fiber, RunsManyOneAfterTheOther) {
  int ended = 0;
  for (int i = 0; i < 2000; ++i) {
    std::unique_ptr<Fiber> fiber;
    fiber = std::make_unique<Fiber>([&] {
      fiber->yield();
      ++ended;
    });
    fiber->resume();
    fiber->resume();
  }
  EXPECT_EQ(ended, 2000);
}

TEST(Crew, RunsEveryWorkerOnceARound) {
  for (const int workers : {1, 2, 5}) {
    std::vector<int> runs(static_cast<std::size_t>(workers));
    Crew crew(workers, [&](int worker) { ++runs[static_cast<std::size_t>(worker)]; });
    for (int round = 0; round < 200; ++round) {
      crew.run();
      ASSERT_THAT(runs, testing::Each(round + 1));
    }
  }
}

}  // namespace
}  // namespace shardproof::sim
