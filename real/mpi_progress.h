// How far each rank of this machine has come: per group the number of operations that it has posted, in memory that the
// ranks share. Written with one store per operation; read only to say who is late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace shardproof {

// One slot of a rank's row in the shared memory.
struct ProgressSlot {
  std::uint64_t group;   // 0 if the slot is free
  std::uint64_t posted;  // operations
};

class ProgressTable {
 public:
  static constexpr std::size_t kSlots = 256;  // groups of a rank that are followed at a time

  // `rows` has one entry per rank of the world: its slots, or nothing if it is on another machine. `own` is this
  // rank's.
  ProgressTable(std::vector<ProgressSlot*> rows, int own);

  // A slot for a group; nothing if there are too many groups.
  std::optional<std::size_t> enter(std::uint64_t group);
  void leave(std::size_t slot);
  void note_posted(std::size_t slot, std::uint64_t posted);

  enum class Standing : std::uint8_t { has_posted, is_late, is_unknown };
  Standing standing(int world_rank, std::uint64_t group, std::uint64_t posted) const;

 private:
  std::vector<ProgressSlot*> rows_;
  int own_;
};

// "late: ranks 2, 3": of the members of a group (world ranks), those that have posted fewer operations; says so if
// every one has, and whom nothing is known of.
std::string lateness_text(const ProgressTable& table, std::span<const int> members, int own, std::uint64_t group,
                          std::uint64_t posted);

}  // namespace shardproof
