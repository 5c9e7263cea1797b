// The entry that libFuzzer calls with inputs of its own making, for the kind of file SHARDPROOF_FUZZ_KIND. Built with
// clang only (SHARDPROOF_LIBFUZZER); answers are judged as in the mutation loop.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include <fmt/format.h>

#include "tests/fuzz/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path kFolder =
      shardproof::prepared_folder(SHARDPROOF_FUZZ_KIND, fmt::format("libfuzzer_{}", ::getpid()));
  static const shardproof::FuzzTarget& kTarget = shardproof::fuzz_targets().at(SHARDPROOF_FUZZ_KIND);
  std::ofstream(kFolder / kTarget.file_name, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const std::string finding = shardproof::finding_about(kTarget, kFolder);
  if (finding.empty()) return 0;
  fmt::print(stderr, "{}: {}\n", SHARDPROOF_FUZZ_KIND, finding);
  std::abort();
}
