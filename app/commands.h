// What each subcommand does: options in, report and exit status out. Nothing is printed here, so that a caller decides
// where results go.
#pragma once

#include <string>
#include <vector>

#include "app/options.h"
#include "app/progress.h"
#include "core/error.h"
#include "reports/result.h"

namespace shardproof {

enum ExitStatus : int {
  kVerified = 0,
  kDifferenceFound = 1,
  kRequestIsWrong = 2,
  kInternalError = 3,
  kPeerFailed = 4,
};

struct CommandOutcome {
  Report report;
  int status = kVerified;
  std::vector<std::string> messages;  // why the status is 2; for standard error
  std::string plan_file = {};         // of plan: the text of --write-plan
  bool is_silent = false;             // of a real rank other than 0: nothing is printed or written
};

// Throws Error for what is wrong with the request.
CommandOutcome run_command(const Options& options, Progress& progress);

// The status of a program that ends with this error: a defect of ours or the user's request.
int status_of(ErrorKind kind);

}  // namespace shardproof
