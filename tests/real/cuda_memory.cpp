#include "tests/real/cuda_memory.h"

#include <algorithm>
#include <vector>

#include <cuda_runtime_api.h>

#include "core/error.h"
#include "core/host_memory.h"

namespace shardproof::test {
namespace {

thread_local cudaStream_t stream_of_thread = nullptr;

void check(cudaError_t status, std::string_view call) {
  SHARDPROOF_CHECK(status == cudaSuccess, internal_error, "{}: {}", call, cudaGetErrorString(status));
}

std::byte* allocate(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
  return static_cast<std::byte*>(data);
}

// Freed in the order of the stream of the thread that made it.
class CudaStorage final : public Storage {
 public:
  CudaStorage(Device& device, std::size_t bytes) : Storage(device, allocate(bytes), bytes) {}
  ~CudaStorage() override {
    cudaStreamSynchronize(stream_);
    cudaFree(data());
  }

 private:
  cudaStream_t stream_ = stream_of_thread;
};

class CudaMemory final : public HostDevice {
 private:
  std::string_view do_name() const override { return "cuda memory"; }
  StoragePointer do_allocate(std::size_t bytes) override { return std::make_shared<CudaStorage>(*this, bytes); }

  // The same tensor in host memory.
  Tensor mirror(const Tensor& tensor) {
    do_synchronize();
    const StoragePointer host = HostDevice::do_allocate(tensor.storage()->bytes());
    check(cudaMemcpy(host->data(), tensor.storage()->data(), host->bytes(), cudaMemcpyDefault), "cudaMemcpy");
    return {host, tensor.dtype(), tensor.shape(), tensor.strides(), tensor.offset()};
  }
  void write_back(const Tensor& tensor, const Tensor& mirrored) {
    const Storage& host = *mirrored.storage();
    check(cudaMemcpy(tensor.storage()->data(), host.data(), host.bytes(), cudaMemcpyDefault), "cudaMemcpy");
  }

  void do_upload(const Tensor& dst, std::span<const std::byte> bytes) override {
    const Tensor host = mirror(dst);
    HostDevice::do_upload(host, bytes);
    write_back(dst, host);
  }
  void do_download(std::span<std::byte> bytes, const Tensor& src) override {
    HostDevice::do_download(bytes, mirror(src));
  }
  void do_copy(const Tensor& dst, const Tensor& src) override {
    const Tensor host = mirror(dst);
    HostDevice::do_copy(host, mirror(src));
    write_back(dst, host);
  }
  void do_fill(const Tensor& dst, double value) override {
    const Tensor host = mirror(dst);
    HostDevice::do_fill(host, value);
    write_back(dst, host);
  }
  void do_poison(const Tensor& dst) override {
    const Tensor host = mirror(dst);
    HostDevice::do_poison(host);
    write_back(dst, host);
  }
  void do_binary(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) override {
    if (dst.dtype() == kFloat64) return add<double>(op, dst, x, y);
    if (dst.dtype() == kFloat32) return add<float>(op, dst, x, y);
    HostDevice::do_binary(op, dst, x, y);
  }
  void do_synchronize() override { check(cudaStreamSynchronize(stream_of_thread), "cudaStreamSynchronize"); }

  template <class T>
  void add(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) {
    SHARDPROOF_CHECK(op == BinaryOp::add && dst.is_contiguous(), unsupported_error, "cuda memory: {} of {}",
                     op_name(op), dst.text());
    std::vector<T> left(static_cast<std::size_t>(dst.numel()));
    std::vector<T> right(left.size());
    do_download(std::as_writable_bytes(std::span(left)), x);
    do_download(std::as_writable_bytes(std::span(right)), y);
    for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
    do_upload(dst, std::as_bytes(std::span(left)));
  }
};

}  // namespace

void compute_on(void* stream) { stream_of_thread = static_cast<cudaStream_t>(stream); }
std::unique_ptr<Device> make_cuda_memory() { return std::make_unique<CudaMemory>(); }

}  // namespace shardproof::test
