// The program that the build runs before it compiles the zoo: reads the listed sources, writes their copies with the
// switches of all faults, and leaves a copy untouched that stays the same, so that it is not compiled again.
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "tests/zoo/fault.h"
#include "tests/zoo/generator.h"

namespace shardproof::zoo {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write_if_changed(const std::filesystem::path& path, const std::string& text) {
  if (std::filesystem::exists(path) && text_of(path) == text) return;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream stream(path, std::ios::binary);
  stream << text;
  SHARDPROOF_CHECK(static_cast<bool>(stream.flush()), file_error, "{}: cannot be written", path.string());
}

void generate(const std::filesystem::path& sources, const std::filesystem::path& target,
              const std::vector<std::string_view>& files) {
  check_files_are_listed(all_faults(), files);
  for (const std::string_view file : files) {
    SHARDPROOF_CHECK(std::filesystem::exists(sources / file), file_error, "{}: no such file",
                     (sources / file).string());
    write_if_changed(target / file, with_switches(file, text_of(sources / file), all_faults()));
  }
}

}  // namespace
}  // namespace shardproof::zoo

int main(int count, char** words) {
  try {
    const std::vector<std::string_view> all(words, words + count);
    SHARDPROOF_CHECK(all.size() > 3, usage_error, "usage: {} SOURCES TARGET FILE..", all.front());
    shardproof::zoo::generate(all[1], all[2], {all.begin() + 3, all.end()});
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "the zoo cannot be made: {}\n", error.what());
    return 1;
  }
}
