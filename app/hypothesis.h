// The part of verify that says which known mistake a difference looks like: it finds the table of fingerprints beside
// the program, and compares the subject's model with it.
#pragma once

#include "app/progress.h"
#include "app/request.h"

namespace shardproof {

// Where fingerprints.json is expected, see program_folder.h.
std::filesystem::path fingerprint_table_path();

// Sets the report's hypothesis, if any of its results is a difference and the fingerprints of the model under the plans
// in effect are those of a known mistake. A table that is missing, damaged or made from other code is a note, never an
// error.
void look_for_known_mistakes(RunRequest& request, const Options& options, Progress& progress, Report& report);

}  // namespace shardproof
