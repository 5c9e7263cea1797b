// What this build is and has: version and features, for --version and for every report.
#pragma once

#include <string>
#include <vector>

namespace shardproof {

// "0.1.0".
std::string build_version();
// "device:cpu", "tier:rounding", ..
std::vector<std::string> build_features();
// Several lines: version, what is built in, what is not, compiler.
std::string version_text();

}  // namespace shardproof
