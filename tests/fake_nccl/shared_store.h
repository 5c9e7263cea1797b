// A store in the memory of the fabric, for sessions of ranks that were forked: what a store over TCP is for real ones.
// It can be made to vanish, as a store does when the process that keeps it ends.
#pragma once

#include "real/nccl_communicator.h"

namespace shardproof::fake_nccl {

class SharedStore final : public NcclStore {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> get(std::string_view key, std::chrono::milliseconds wait) override;
};

// From now on every call of every rank throws.
void lose_store();

}  // namespace shardproof::fake_nccl
