// The communicator of a simulated rank: a thin face of the rendezvous.
// All matching and checking is there, so that other carriers of ranks in one process get it too.
#pragma once

#include <memory>
#include <string>

#include "core/communicator.h"
#include "core/rendezvous.h"

namespace shardproof::sim {

class SimCommunicator final : public Communicator {
 public:
  SimCommunicator(std::shared_ptr<Rendezvous> rendezvous, const RendezvousGroup& group, int member);

 private:
  std::unique_ptr<Work> do_post(Request request) override;
  std::unique_ptr<Communicator> do_split(int color, int key, std::string name) override;

  std::shared_ptr<Rendezvous> rendezvous_;  // shared, so that a communicator kept after the run can say so
  const RendezvousGroup& group_;
};

}  // namespace shardproof::sim
