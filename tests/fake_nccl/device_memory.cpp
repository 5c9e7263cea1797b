#include "tests/fake_nccl/device_memory.h"

#include <cuda_runtime_api.h>

#include "core/error.h"
#include "core/host_memory.h"

namespace shardproof::fake_nccl {
namespace {

std::byte* allocate(std::size_t bytes) {
  void* data = nullptr;
  SHARDPROOF_CHECK(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)) == cudaSuccess, internal_error,
                   "no {} bytes of device memory", bytes);
  return static_cast<std::byte*>(data);
}

class DeviceStorage final : public Storage {
 public:
  DeviceStorage(Device& device, std::size_t bytes) : Storage(device, allocate(bytes), bytes) {}
  ~DeviceStorage() override { cudaFree(data()); }
};

class DeviceMemory final : public HostDevice {
 private:
  std::string_view do_name() const override { return "device memory"; }
  StoragePointer do_allocate(std::size_t bytes) override { return std::make_shared<DeviceStorage>(*this, bytes); }
  void do_upload(const Tensor& dst, std::span<const std::byte> bytes) override {
    do_synchronize();
    HostDevice::do_upload(dst, bytes);
  }
  void do_download(std::span<std::byte> bytes, const Tensor& src) override {
    do_synchronize();
    HostDevice::do_download(bytes, src);
  }
  void do_copy(const Tensor& dst, const Tensor& src) override {
    do_synchronize();
    HostDevice::do_copy(dst, src);
  }
  void do_fill(const Tensor& dst, double value) override {
    do_synchronize();
    HostDevice::do_fill(dst, value);
  }
  void do_poison(const Tensor& dst) override {
    do_synchronize();
    HostDevice::do_poison(dst);
  }
  void do_synchronize() override {
    SHARDPROOF_CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess, internal_error, "cudaStreamSynchronize failed");
  }
};

}  // namespace

std::unique_ptr<Device> make_device_memory() { return std::make_unique<DeviceMemory>(); }

}  // namespace shardproof::fake_nccl
