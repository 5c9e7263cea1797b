#include "sim/sim_communicator.h"

#include <utility>

namespace shardproof::sim {

SimCommunicator::SimCommunicator(std::shared_ptr<Rendezvous> rendezvous, const RendezvousGroup& group, int member)
    : Communicator(group.name, Members(rendezvous, &group.members), member),
      rendezvous_(std::move(rendezvous)),
      group_(group) {}

std::unique_ptr<Work> SimCommunicator::do_post(Request request) {
  return rendezvous_->post(group_, rank(), std::move(request));
}

std::unique_ptr<Communicator> SimCommunicator::do_split(int color, int key, std::string name) {
  const auto [group, member] = rendezvous_->split(group_, rank(), color, key, std::move(name));
  if (group == nullptr) return nullptr;
  return std::make_unique<SimCommunicator>(rendezvous_, *group, member);
}

}  // namespace shardproof::sim
