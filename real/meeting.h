// The ranks of a run meet before any of them starts MPI: rank 0 keeps a store, the others come to it, and whoever was
// started differently is refused in words. Where no program known to MPI started the ranks, the meeting also arranges
// that MPI will find its world. Under mpirun there is no place to meet unless one is named, and nothing happens.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "real/launcher.h"

namespace shardproof {

class MpiBootstrap;
class Store;
class StoreServer;

// What the ranks will talk over: only MPI is told where its world is.
enum class MeetingFor : std::uint8_t { mpi, others };

// To be made before MPI is initialised, and to live until it is finalised.
class Meeting {
 public:
  // Called by every rank; returns when all have come. `configuration` is a hash of what they must have in common.
  // PeerFailure if one does not come in time or does not belong; usage_error if there must be a meeting and nobody said
  // where.
  Meeting(const Launch& launch, std::uint64_t configuration, std::chrono::milliseconds patience,
          MeetingFor what = MeetingFor::mpi);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Nobody goes before all others are done; PeerFailure if one does not come or has vanished. Without a meeting
  // nothing.
  void end();
  // Before this process ends in the middle: removes what MPI keeps in files for it and the others.
  void remove_files() const;
  // Of rank 0 and the others; null without a meeting.
  Store* store() const { return store_.get(); }

 private:
  void open_store(const Launch& launch, std::uint64_t configuration);

  std::chrono::milliseconds patience_;
  std::unique_ptr<StoreServer> server_;  // on rank 0
  std::unique_ptr<Store> store_;
  std::unique_ptr<MpiBootstrap> bootstrap_;
};

// For a rank that ends because rank 0 could not finish its part: launchers end all ranks when the first one fails, and
// rank 0 is to say what happened first.
void let_rank_0_end_first();

}  // namespace shardproof
