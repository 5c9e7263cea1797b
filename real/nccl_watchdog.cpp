// The watchdog of a session over NCCL: looks at every open operation and at NCCL's asynchronous errors, tells the other
// ranks how far this one is, and gives up for all when something does not end in time.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "real/nccl_context_body.h"

namespace shardproof::nccl {
namespace {

constexpr std::chrono::milliseconds kNoWait{0};

// "7\nworld\t3\t...": the number of the beat, then the progress.
std::string_view progress_of(std::string_view beat) {
  const std::size_t end = beat.find('\n');
  return end == std::string_view::npos ? std::string_view() : beat.substr(end + 1);
}

std::string list_of(std::span<const LateRank> late) {
  if (late.empty()) return "every rank has made this call, so the transport is stuck";
  std::string text = "late: ";
  for (const LateRank& rank : late) {
    if (&rank != &late.front()) text += "; ";
    text += fmt::format("rank {} {}", rank.rank, rank.reason);
  }
  return text;
}

}  // namespace

void Context::watch_over() {
  cudaSetDevice(options.device);
  const auto period = std::clamp<std::chrono::milliseconds>(std::min(options.timeout / 50, options.heartbeat / 4),
                                                            std::chrono::milliseconds(1), std::chrono::seconds(1));
  Clock::time_point next_beat = Clock::now();
  while (true) {
    {
      std::unique_lock lock(mutex);
      if (stop_signal_.wait_for(lock, period, [this] { return is_stopping_; })) return;
    }
    look_at_flights();
    look_at_errors();
    if (Clock::now() < next_beat) continue;
    next_beat = Clock::now() + options.heartbeat;
    beat();
    if (const std::optional<std::string> elsewhere = failure_elsewhere()) give_up(*elsewhere, {});
  }
}

void Context::look_at_flights() {
  std::int64_t overdue = 0;
  std::vector<int> members;
  {
    const std::lock_guard lock(mutex);
    if (failure_) return;
    for (const auto& flight : flights_) {
      if (flight->is_done) continue;
      if (flight->is_launched && cudaEventQuery(flight->end) == cudaSuccess) {
        finish(*flight);
      } else if (flight->is_launched && cudaEventQuery(flight->begin) == cudaSuccess) {
        recorder.set_state(flight->sequence, FlightState::running);
      }
      if (overdue == 0 && !flight->is_done && Clock::now() > flight->deadline) {
        overdue = flight->sequence;
        members = flight->group->members;
      }
    }
  }
  if (overdue != 0) report_overdue(overdue, members);
}

void Context::look_at_errors() {
  std::string reason;
  {
    const std::lock_guard lock(mutex);
    if (failure_) return;
    for (const Group* group : groups_) {
      ncclResult_t state = ncclSuccess;
      if (group->comm == nullptr || ncclCommGetAsyncError(group->comm, &state) != ncclSuccess) continue;
      if (state == ncclSuccess || state == ncclInProgress) continue;
      reason = fmt::format("rank {}: NCCL reports an asynchronous error in group '{}': {}: {}", options.rank,
                           group->key, ncclGetErrorString(state), ncclGetLastError(group->comm));
      const auto open = std::ranges::find_if(
          flights_, [group](const auto& flight) { return flight->group.get() == group && !flight->is_done; });
      if (open != flights_.end()) reason += fmt::format("; during {}", (*open)->request.text());
      break;
    }
  }
  if (!reason.empty()) give_up(std::move(reason), {});
}

void Context::beat() {
  try {
    store_->set(fmt::format("nccl/beat/{}", options.rank), fmt::format("{}\n{}", ++beats_, recorder.progress()));
  } catch (const std::exception&) {
    // The others will notice that the beats stop.
  }
}

std::optional<std::string> Context::failure_elsewhere() {
  try {
    return store_->get("nccl/failed", kNoWait);
  } catch (const std::exception& error) {
    return fmt::format("the store of this run is lost: {}", error.what());
  }
}

std::vector<LateRank> Context::late_ranks(const FlightEntry& entry, std::span<const int> members) {
  const auto beat_of = [this](int rank) {
    try {
      return store_->get(fmt::format("nccl/beat/{}", rank), kNoWait).value_or(std::string());
    } catch (const std::exception&) {
      return std::string();
    }
  };
  std::vector<std::string> first;
  for (const int rank : members) first.push_back(beat_of(rank));
  // Others may have run out of time as well, and look for this rank's beats now.
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(options.heartbeat / 2);
    beat();
  }
  std::vector<LateRank> late;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] == options.rank) continue;
    const std::string now = beat_of(members[i]);
    const GroupProgress progress = progress_in(progress_of(now), entry.group);
    const bool is_silent = now.empty() || now == first[i];
    if (progress.call >= entry.call && !is_silent) continue;
    const std::string made =
        progress.call == 0
            ? std::string("no call in this group")
            : fmt::format("call {} of this group{}", progress.call,
                          progress.call >= entry.call ? std::string() : fmt::format(", {}", progress.text));
    late.push_back({.rank = members[i],
                    .reason = is_silent ? fmt::format("gives no sign of life; when it last did, it had made {}", made)
                                        : fmt::format("has last made {}", made)});
  }
  return late;
}

void Context::report_overdue(std::int64_t sequence, std::span<const int> members) {
  const FlightEntry entry = recorder.entry(sequence);
  const std::vector<LateRank> late = late_ranks(entry, members);
  if (const std::optional<std::string> elsewhere = failure_elsewhere()) return give_up(*elsewhere, late);
  give_up(fmt::format("rank {}: {}, call {} of group '{}', has not ended within {} ms; {}", options.rank, entry.text,
                      entry.call, entry.group, options.timeout.count(), list_of(late)),
          late);
}

void Context::give_up(std::string reason, std::span<const LateRank> late) {
  {
    const std::lock_guard lock(mutex);
    if (failure_) return;
    recorder.fail_open();
    std::string record;
    if (!options.flight_record.empty()) {
      try {
        write_file_atomically(options.flight_record, recorder.record(reason, late).dump(1) + "\n");
        record = fmt::format("; flight record: {}", options.flight_record.string());
      } catch (const std::exception& error) {
        record = fmt::format("; no flight record: {}", error.what());
      }
    }
    failure_ = reason + record;
    for (Group* const group : groups_) {
      if (group->comm != nullptr) ncclCommAbort(group->comm);
      group->comm = nullptr;
    }
  }
  try {
    if (!store_->get("nccl/failed", kNoWait)) store_->set("nccl/failed", reason);
  } catch (const std::exception&) {
    // The others have deadlines of their own.
  }
}

}  // namespace shardproof::nccl
