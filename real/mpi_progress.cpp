#include "real/mpi_progress.h"

#include <atomic>
#include <utility>

#include <fmt/format.h>

namespace shardproof {
namespace {

std::atomic_ref<std::uint64_t> shared(std::uint64_t& number) { return std::atomic_ref<std::uint64_t>(number); }

std::string list_text(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 16;
  const std::span shown = std::span(ranks).first(std::min(ranks.size(), kMost));
  return fmt::format("rank{} {}{}", ranks.size() == 1 ? "" : "s", fmt::join(shown, ", "),
                     ranks.size() > kMost ? fmt::format(" and {} more", ranks.size() - kMost) : "");
}

}  // namespace

ProgressTable::ProgressTable(std::vector<ProgressSlot*> rows, int own) : rows_(std::move(rows)), own_(own) {}

std::optional<std::size_t> ProgressTable::enter(std::uint64_t group) {
  ProgressSlot* const row = rows_[static_cast<std::size_t>(own_)];
  for (std::size_t slot = 0; row != nullptr && slot < kSlots; ++slot) {
    if (shared(row[slot].group).load() != 0) continue;
    shared(row[slot].posted).store(0);
    shared(row[slot].group).store(group);
    return slot;
  }
  return std::nullopt;
}

void ProgressTable::leave(std::size_t slot) { shared(rows_[static_cast<std::size_t>(own_)][slot].group).store(0); }

void ProgressTable::note_posted(std::size_t slot, std::uint64_t posted) {
  shared(rows_[static_cast<std::size_t>(own_)][slot].posted).store(posted, std::memory_order_release);
}

ProgressTable::Standing ProgressTable::standing(int world_rank, std::uint64_t group, std::uint64_t posted) const {
  ProgressSlot* const row = rows_[static_cast<std::size_t>(world_rank)];
  if (row == nullptr) return Standing::is_unknown;
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    if (shared(row[slot].group).load() != group) continue;
    return shared(row[slot].posted).load(std::memory_order_acquire) >= posted ? Standing::has_posted
                                                                              : Standing::is_late;
  }
  return Standing::is_late;  // has not made the group yet, or has left it
}

std::string lateness_text(const ProgressTable& table, std::span<const int> members, int own, std::uint64_t group,
                          std::uint64_t posted) {
  std::vector<int> late, unknown;
  for (const int member : members) {
    if (member == own) continue;
    const ProgressTable::Standing standing = table.standing(member, group, posted);
    if (standing == ProgressTable::Standing::is_late) late.push_back(member);
    if (standing == ProgressTable::Standing::is_unknown) unknown.push_back(member);
  }
  std::string text;
  if (!late.empty()) text = fmt::format("late: {}", list_text(late));
  if (!unknown.empty()) {
    text += fmt::format("{}nothing is known of {} on other machines", text.empty() ? "" : "; ", list_text(unknown));
  }
  return text.empty() ? "every member has posted it, but it does not end" : text;
}

}  // namespace shardproof
