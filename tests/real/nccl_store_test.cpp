// What NCCL's ranks share, over the store of a run: two clients of one server.
// The unique id of NCCL has zero bytes in it, so values are bytes and not words.
#include "real/nccl_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real/store.h"
#include "real/store_server.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using namespace std::chrono_literals;

TEST(NcclStoreOfARun, HandsValuesFromRankToRank) {
  const StoreServer server({"127.0.0.1", {0}}, {.world_size = 2});
  const StoreAddress address{"127.0.0.1", {server.port()}};
  Store first(address, {.rank = 0, .world_size = 2}, 5s);
  Store second(address, {.rank = 1, .world_size = 2}, 5s);
  const auto from_first = nccl_store_in(first, 5s);
  const auto from_second = nccl_store_in(second, 5s);
  EXPECT_EQ(from_second->get("nccl/id", 0ms), std::nullopt);
  EXPECT_EQ(from_second->get("nccl/id", 20ms), std::nullopt);
  const std::string id("a\0b", 3);
  from_first->set("nccl/id", id);
  EXPECT_EQ(from_second->get("nccl/id", 5s), id);
  EXPECT_EQ(from_second->get("nccl/id", 0ms), id);
}

TEST(NcclStoreOfARun, SaysThatTheStoreIsGone) {
  auto server = std::make_unique<StoreServer>(StoreAddress{"127.0.0.1", {0}}, StoreSettings{});
  Store only({"127.0.0.1", {server->port()}}, {.world_size = 1}, 5s);
  const auto store = nccl_store_in(only, 5s);
  server.reset();
  EXPECT_TRUE(test::thrown_by([&] { (void)store->get("key", 0ms); }));
  EXPECT_TRUE(test::thrown_by([&] { (void)store->get("key", 10ms); }));
  EXPECT_TRUE(test::thrown_by([&] { store->set("key", "value"); }));
}

}  // namespace
}  // namespace shardproof
