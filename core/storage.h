// The memory behind tensors. A Storage knows its device and counts the operations that are still filling it or still
// sending from it; the doors `ops` and `collectives` refuse to touch memory that is in flight.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace shardproof {

class Device;

class Storage {
 public:
  Storage(Device& device, std::byte* data, std::size_t bytes) : device_(&device), data_(data), bytes_(bytes) {}
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device& device() const { return *device_; }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // Posted operations that will still write to this memory. Reading it now is an error.
  std::atomic<int> receive_pending{0};
  // Posted operations that still read this memory. Writing to it now is an error.
  std::atomic<int> send_in_flight{0};

 private:
  Device* device_;
  std::byte* data_;
  std::size_t bytes_;
};

using StoragePointer = std::shared_ptr<Storage>;

}  // namespace shardproof
