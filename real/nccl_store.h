// What ranks over NCCL share, kept in the store of the run (real/store.h).
// Apart from the communicator, so that its tests need no store over TCP.
#pragma once

#include <chrono>
#include <memory>

#include "real/nccl_communicator.h"

namespace shardproof {

class Store;

// Every call waits at most `patience` for the store itself. The store must outlive what is returned, and nobody else
// may use it while a session does.
std::shared_ptr<NcclStore> nccl_store_in(Store& store, std::chrono::milliseconds patience);

}  // namespace shardproof
