#include "sim/device_mover.h"

namespace shardproof {

std::shared_ptr<Mover::Mark> DeviceMover::mark_ready(int) { return std::make_shared<Mark>(); }

std::shared_ptr<Mover::Mark> DeviceMover::move(std::span<const Movement> movements,
                                               std::span<const std::shared_ptr<Mark>>) {
  // Bytes are moved as elements of one byte.
  const auto bytes_at = [&](std::byte* data, std::size_t bytes) {
    const Shape shape{static_cast<std::int64_t>(bytes)};
    return Tensor(std::make_shared<Storage>(device_, data, bytes), kBool, shape, shape.contiguous_strides(), 0);
  };
  for (const Movement& movement : movements) {
    device_.copy(bytes_at(movement.target, movement.bytes),
                 bytes_at(const_cast<std::byte*>(movement.source), movement.bytes));
  }
  return std::make_shared<Mark>();
}

void DeviceMover::follow(int, Mark&) {}

}  // namespace shardproof
