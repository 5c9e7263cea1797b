#include "tests/fake_nccl/shared_store.h"

#include <algorithm>
#include <cstring>

#include <unistd.h>

#include "core/error.h"
#include "tests/fake_nccl/fabric_body.h"

namespace shardproof::fake_nccl {
namespace {

class StoreLock {
 public:
  StoreLock() {
    SHARDPROOF_CHECK(!shared().is_store_lost, collective_error, "the store is gone");
    while (shared().store_lock.exchange(true)) usleep(10);
  }
  ~StoreLock() { shared().store_lock = false; }
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;
};

// The entry of that key, or a free one.
StoredText& entry_of(std::string_view key) {
  for (StoredText& entry : shared().store) {
    if (entry.key.front() == '\0' || key == entry.key.data()) return entry;
  }
  fail(ErrorKind::internal_error, "the store of the fabric is full");
}

}  // namespace

void SharedStore::set(std::string_view key, std::string_view value) {
  const StoreLock lock;
  StoredText& entry = entry_of(key);
  SHARDPROOF_CHECK(key.size() < entry.key.size() && value.size() <= entry.value.size(), internal_error,
                   "the store of the fabric takes no {} bytes under '{}'", value.size(), key);
  std::memcpy(entry.key.data(), key.data(), key.size());
  std::memcpy(entry.value.data(), value.data(), value.size());
  entry.bytes = value.size();
  entry.is_set = true;
}

std::optional<std::string> SharedStore::get(std::string_view key, std::chrono::milliseconds wait) {
  const auto deadline = std::chrono::steady_clock::now() + wait;
  while (true) {
    {
      const StoreLock lock;
      const StoredText& entry = entry_of(key);
      if (entry.is_set) return std::string(entry.value.data(), entry.bytes);
    }
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    usleep(500);
  }
}

void lose_store() { shared().is_store_lost = true; }

}  // namespace shardproof::fake_nccl
