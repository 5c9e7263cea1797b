// What this build is and has: its version, what is built in, what is not. Shown by --version, and part of every report,
// so that a result says what could have been checked.
#pragma once

#include <string>
#include <vector>

namespace shardproof {

// "0.1.0".
std::string build_version();
// "device:cpu", "tier:rounding", ..
std::vector<std::string> build_features();
// Several lines: version, what is built in, what is not, compiler, libraries with their versions.
std::string version_text();

}  // namespace shardproof
