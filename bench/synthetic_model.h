// Export directories of models that nobody trained: a configuration of about a given size, seeded weights and one case.
// They stand in for large exports where only size matters, as for peak memory. A tensor is written before the next one
// is drawn, so that writing needs the memory of the largest tensor and not of the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace shardproof::bench {

inline constexpr double kSmallestGigabytes = 0.03;
inline constexpr double kLargestGigabytes = 200.0;
inline constexpr int kLargestTokens = 1 << 20;
inline constexpr int kLargestShards = 99;

struct SyntheticExport {
  std::filesystem::path folder;  // created; must not exist, or be an empty folder
  std::string class_name = "FluxTransformer2DModel";
  double gigabytes = 1.0;  // of weights in float32, 10^9 bytes
  int tokens = 64;         // of text and image together; a multiple of 4, of which a quarter is text
  int shards = 1;          // files that hold the weights; more than one: with an index
  std::uint64_t seed = 0;
};

// From the words of a command line: DIR and --class NAME, --gigabytes X, --tokens N, --shards N, --seed N in any order,
// the last of each counting. usage_error for anything else.
SyntheticExport synthetic_export_from(std::span<const std::string> words);

// Writes config.json, weights, and the case "synthetic" without expected outputs. Heads divide among 2, 4 and 8 ranks.
// Returns the bytes of all weights, which differ from what was asked for by less than one block of the model.
// usage_error for options that cannot be, file_error for a folder that cannot be written.
std::int64_t write_synthetic_export(const SyntheticExport& options);

// The name of a folder for an export that is removed at the end of the scope. Not created.
class TemporaryExport {
 public:
  explicit TemporaryExport(const std::string& program);
  ~TemporaryExport();
  TemporaryExport(const TemporaryExport&) = delete;
  TemporaryExport& operator=(const TemporaryExport&) = delete;
  std::string folder() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

}  // namespace shardproof::bench
