// The memory behind tensors. A Storage knows its device and counts the operations that are still filling it or still
// sending from it; the doors `ops` and `collectives` refuse to touch memory that is in flight. Storages may share bytes
// that nobody writes to: the one that is written to next gets a copy of its own first.
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

  // Replaces the contents by the bytes() bytes that begin at `data` within `source`, without moving them. False, and
  // nothing changed, where this kind of memory cannot. Nobody may be using either storage meanwhile.
  virtual bool share(Storage& source, std::byte* data);
  // To be called before bytes are changed: ends the sharing by a copy.
  virtual void unshare();

  // Posted operations that will still write to this memory. Reading it now is an error.
  std::atomic<int> receive_pending{0};
  // Posted operations that still read this memory. Writing to it now is an error.
  std::atomic<int> send_in_flight{0};

 protected:
  void set_data(std::byte* data) { data_ = data; }

 private:
  Device* device_;
  std::byte* data_;
  std::size_t bytes_;
};

inline bool Storage::share(Storage&, std::byte*) { return false; }
inline void Storage::unshare() {}

using StoragePointer = std::shared_ptr<Storage>;

}  // namespace shardproof
