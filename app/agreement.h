// What all ranks of a run must have been given alike, and how they find out that they were not: as a hash for the
// handshake of their store, and setting by setting over their communicator.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/options.h"
#include "core/communicator.h"

namespace shardproof {

struct Setting {
  std::string name;  // "--dtype"
  std::string value;
};

// Version, sources and every option that changes what is computed.
std::vector<Setting> settings_of(const Options& options);
std::uint64_t hash_of(std::span<const Setting> settings);

// Collective. PeerFailure on every rank if one differs from rank 0: it names that rank, the setting and both values.
void check_agreement(Communicator& world, std::span<const Setting> settings);

}  // namespace shardproof
