// The export directories among the recorded data of the tests: what every device and every way of running a model has
// to agree with.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace shardproof::test {

inline std::filesystem::path recorded_data() {
  return std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "tests/data/goldens";
}

// "flux/tiny" and all others, sorted.
inline std::vector<std::string> recorded_exports() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(recorded_data())) {
    if (entry.path().filename() == "config.json")
      names.push_back(entry.path().parent_path().lexically_relative(recorded_data()).generic_string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace shardproof::test
