// The command line that repeats one result of verify, so that a message ends with what its reader would have to find
// out: how to see it again.
#pragma once

#include <optional>
#include <string>

#include "app/options.h"
#include "models/model_size.h"
#include "parallel/config.h"
#include "reports/result.h"

namespace shardproof {

// One line for a shell. `size` and the seed of a result that was shrunk take the place of the options' own.
std::string repeat_command(const Options& options, const VerificationResult& result, const ParallelConfig& config,
                           const std::optional<ModelSize>& size);

// A word as a shell takes it: as it is, or in single quotes.
std::string shell_word(const std::string& word);

}  // namespace shardproof
