// HostDevice: tensors in host memory and their movement (strided, broadcasting, converting copies), without arithmetic.
// Coordinates live on one as it is; the reference device and the fast CPU device derive from it and add arithmetic.
// Movement works for every registered element type, conversion and fill for the six plain ones.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "core/block_pool.h"
#include "core/device.h"

namespace shardproof {

class HostDevice : public Device {
 public:
  HostDevice() : pool_(std::make_shared<BlockPool>()) {}

  // Where this device's memory comes from; its tensors keep it alive.
  BlockPool& pool() const { return *pool_; }

 protected:
  std::string_view do_name() const override { return "host"; }
  bool do_supports(DType) const override { return true; }
  StoragePointer do_allocate(std::size_t bytes) override;
  void do_upload(const Tensor& dst, std::span<const std::byte> bytes) override;
  void do_download(std::span<std::byte> bytes, const Tensor& src) override;
  void do_copy(const Tensor& dst, const Tensor& src) override;
  void do_fill(const Tensor& dst, double value) override;
  void do_poison(const Tensor& dst) override;
  void do_gather_rows(const Tensor& dst, const Tensor& table, const Tensor& index) override;
  void do_synchronize() override {}
  // Arithmetic: unsupported_error.
  void do_unary(UnaryOp op, const Tensor& dst, const Tensor& x) override;
  void do_binary(BinaryOp op, const Tensor& dst, const Tensor& x, const Tensor& y) override;
  void do_matmul(const Tensor& dst, const Tensor& x, const Tensor& weight, const Tensor& bias) override;
  void do_reduce(ReduceOp op, const Tensor& dst, const Tensor& x) override;
  void do_attention(const AttentionOutput& dst, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                    double scale) override;

 private:
  std::shared_ptr<BlockPool> pool_;
};

}  // namespace shardproof
