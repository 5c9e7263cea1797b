// The program `synthetic_export`: writes an export directory of a model that nobody trained, of about a given size.
// What it writes, `shardproof verify` reads; measurements of memory use it in place of a large real export.
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/peak_memory.h"
#include "bench/synthetic_model.h"
#include "core/error.h"

namespace shardproof::bench {
namespace {

constexpr const char* kUsage =
    "usage: synthetic_export DIR [--class NAME] [--gigabytes X] [--tokens N] [--shards N] [--seed N]\n"
    "  DIR          a new or an empty folder\n"
    "  --class      FluxTransformer2DModel (default)\n"
    "  --gigabytes  of weights in float32 (default 1)\n"
    "  --tokens     of text and image together, a multiple of 4 (default 64)\n"
    "  --shards     files that hold the weights (default 1)\n"
    "  --seed       of weights and inputs (default 0)\n";

int run(const std::vector<std::string>& words) {
  try {
    const SyntheticExport options = synthetic_export_from(words);
    const std::int64_t bytes = write_synthetic_export(options);
    fmt::print("{}: {} of weights\n", options.folder.string(), bytes_text(static_cast<std::size_t>(bytes)));
    return 0;
  } catch (const Error& error) {
    fmt::print(stderr, "synthetic_export: {}\n", error.what());
    if (error.kind() == ErrorKind::usage_error) fmt::print(stderr, "{}", kUsage);
    return error.kind() == ErrorKind::internal_error ? 3 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "synthetic_export: internal error: {}\n", error.what());
    return 3;
  }
}

}  // namespace
}  // namespace shardproof::bench

int main(int count, char** words) { return shardproof::bench::run({words + (count > 0 ? 1 : 0), words + count}); }
