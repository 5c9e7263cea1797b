// Where the time of a traced run went, class of operation by class of operation: the table at its end. Made of a trace,
// so that a trace file gives the same table again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "reports/text_table.h"

namespace shardproof {

struct RunTrace;

// A kernel, copy or fill of a device, by its name. Over all ranks and steps.
struct ProfileKernel {
  std::string name;
  std::string kind;  // "kernel", "copy" or "fill"
  std::int64_t count = 0;
  double time_us = 0.0;
  double p50_us = 0.0;
  double share = 0.0;  // of the time of the device in all steps
};

// One class: a computation, or an operation of communication in one group. Over all ranks and steps.
struct ProfileRow {
  std::string operation;
  std::string group;  // its key; of a computation: empty
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  // of a computation: read and written; of a communication: S of the bandwidth formulas
  double p50_us = 0.0;     // of a communication: from post to completion; on the device: its work there
  double p95_us = 0.0;
  // All bytes through all time, nothing if that is none; of a computation: the speed of memory.
  std::optional<double> algorithm_gb_s = std::nullopt;
  std::optional<double> bus_gb_s = std::nullopt;  // of a communication
  double exposed_us = 0.0;  // of a communication: of all ranks and steps, how long ranks stood in its wait; on the
                            // device: how long it ran while nothing else did
  double share = 0.0;       // of the time of all steps: computing, or posting and waiting; on the device: working
};

struct Profile {
  std::vector<std::pair<std::string, std::string>> about;  // of the trace
  int ranks = 0;
  std::int64_t steps = 0;  // of each rank
  double step_p50_us = 0.0;
  double step_p95_us = 0.0;
  // True if the work of the devices was watched: all but the steps' own times are then times of the devices, and shares
  // are of their time, in each step from the first work to the end of the last.
  bool is_on_device = false;
  double exposed_share = 0.0;          // of the time of all steps: waits; on the device: communication alone
  double unaccounted_share = 0.0;      // between operations; on the device: idle
  std::vector<ProfileRow> rows;        // the largest share first
  std::vector<ProfileKernel> kernels;  // likewise; empty if nobody watched
  std::int64_t device_work_lost = 0;   // pieces that are missing there
};

// file_error naming the trace's file if it has no steps.
Profile profile_of(const RunTrace& trace);

// The parts of it for people: both tables (the longest of the kernels, none if nobody watched), and the words around
// them.
TextTable operation_table(const Profile& profile);
TextTable kernel_table(const Profile& profile);
struct ProfileWords {
  std::string steps;
  std::string shares;
  std::vector<std::string> left_out;  // of the kernels
};
ProfileWords profile_words(const Profile& profile);

// All of it for the terminal; and for programs.
std::string profile_text(const Profile& profile, TextTable::Colour colour);
Json profile_json(const Profile& profile);

}  // namespace shardproof
