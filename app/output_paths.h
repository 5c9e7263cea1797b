// Whether what the options name to be written would destroy something: another output of the same run, or a file that
// it reads.
#pragma once

#include "app/options.h"

namespace shardproof {

// usage_error naming the option and the file. Files are compared by what they are, not by how they are spelt.
void check_output_paths(const Options& options);

}  // namespace shardproof
