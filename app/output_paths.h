// Who writes what the options name to be written, and whether that would destroy something: another output of the same
// run, or a file that it reads.
#pragma once

#include "app/options.h"

namespace shardproof {

// False for a rank that leaves writing to rank 0: the folders of that need not be there where this process runs.
// usage_error if what is said of its place among the ranks is wrong.
bool writes_outputs(const Options& options);

// usage_error naming the option and the file; nothing where nothing is written. Files are compared by what they are,
// not by how they are spelt.
void check_output_paths(const Options& options);

}  // namespace shardproof
