#include "real/nccl_store.h"

#include <mutex>

#include "real/peer_failure.h"
#include "real/store.h"

namespace shardproof {
namespace {

class StoreOfRun final : public NcclStore {
 public:
  StoreOfRun(Store& store, std::chrono::milliseconds patience) : store_(store), patience_(patience) {}

  void set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    store_.set(std::string(key), std::string(value), patience_);
  }

  std::optional<std::string> get(std::string_view key, std::chrono::milliseconds wait) override {
    const std::lock_guard lock(mutex_);
    if (wait.count() > 0) {
      try {
        return store_.get(std::string(key), wait);
      } catch (const PeerFailure&) {
        // Nobody has set it, or the store is gone: the next call tells.
      }
    }
    return store_.get_if_set(std::string(key), patience_);
  }

 private:
  std::mutex mutex_;
  Store& store_;
  std::chrono::milliseconds patience_;
};

}  // namespace

std::shared_ptr<NcclStore> nccl_store_in(Store& store, std::chrono::milliseconds patience) {
  return std::make_shared<StoreOfRun>(store, patience);
}

}  // namespace shardproof
