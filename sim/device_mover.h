// Moves what simulated ranks exchange through the copies of their device, whose memory the host need not reach. For
// devices that do everything in the order in which they are told: then nothing needs to be waited for.
#pragma once

#include "core/device.h"
#include "core/rendezvous.h"

namespace shardproof {

class DeviceMover final : public Mover {
 public:
  // The device must outlive it.
  explicit DeviceMover(Device& device) : device_(device) {}

  std::shared_ptr<Mark> mark_ready(int rank) override;
  std::shared_ptr<Mark> move(std::span<const Movement> movements,
                             std::span<const std::shared_ptr<Mark>> ready) override;
  void follow(int rank, Mark& moved) override;

 private:
  Device& device_;
};

}  // namespace shardproof
