// Lets MPI form one world of processes that were started by a program it does not know: torchrun, `shardproof launch`,
// a person in several terminals. Open MPI 4 asks a process manager for its rank, and for a place to exchange addresses,
// through the old PMI interface, which it loads from a library that an environment variable names. That library is ours
// (real/pmi_library.cpp) and answers from a store that rank 0 keeps.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "real/launcher.h"
#include "real/run_folder.h"
#include "real/store.h"

namespace shardproof {

class StoreServer;

// To be made before MPI is initialised, and to live until it is finalised.
class MpiBootstrap {
 public:
  // Called by all ranks; `store` is the one in which they met. Sets variables in the environment of this process.
  // PeerFailure if a rank does not take part; file_error if the library is missing. The store must outlive it.
  MpiBootstrap(const Launch& launch, Store& store, std::chrono::milliseconds patience);
  // Waits a little until the others are through with MPI, too: they still need its files.
  ~MpiBootstrap();
  MpiBootstrap(const MpiBootstrap&) = delete;
  MpiBootstrap& operator=(const MpiBootstrap&) = delete;

  // What MPI keeps in files goes with its folder, also where MPI does not come to its own end.
  void remove_files() const;

 private:
  Store& store_;
  std::chrono::milliseconds patience_;
  std::optional<RunFolder> folder_;
  std::unique_ptr<StoreServer> server_;  // on rank 0
};

}  // namespace shardproof
