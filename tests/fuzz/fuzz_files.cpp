// Feeds mutated files to every reader: whatever a stranger's file holds, the answer is a value or one Error that names
// the file and the place in it; never a crash, a hang, or another exception. A plain mutation loop, so that it runs
// with any compiler; meant to run under the address and undefined-behaviour sanitizers.
//
//   fuzz_files TARGET COUNT SEED [FILE]      COUNT mutations of the corpus; or FILE as it is, to repeat a finding
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/random.h"
#include "tests/fuzz/fuzz_targets.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

// A few random edits: bytes changed, removed, repeated or moved, and values of the kind that break parsers.
std::string mutated(std::string text, const RandomStream& random, std::uint64_t number) {
  static const std::vector<std::string> kTokens{"-1",
                                                "0",
                                                "18446744073709551616",
                                                "1e999",
                                                "null",
                                                "[]",
                                                "{}",
                                                "\"\"",
                                                "\xff",
                                                "\\ud800",
                                                "[[[[",
                                                "}",
                                                ",",
                                                ":",
                                                "9223372036854775807",
                                                "true",
                                                "\"__metadata__\""};
  std::uint64_t draw = number << 8U;
  const auto below = [&](std::size_t n) {
    return static_cast<std::size_t>(random.below(draw++, static_cast<std::int64_t>(n)));
  };
  const std::size_t edits = 1 + below(4);
  for (std::size_t i = 0; i < edits && !text.empty(); ++i) {
    const std::size_t at = below(text.size());
    const std::size_t length = 1 + below(16);
    switch (below(6)) {
      case 0: text[at] = static_cast<char>(below(256)); break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(below(text.size()), length)); break;
      case 3: text.insert(at, kTokens[below(kTokens.size())]); break;
      case 4: text.replace(at, length, kTokens[below(kTokens.size())]); break;
      default: text.resize(at); break;
    }
  }
  return text;
}

// A safetensors file of which only the header is mutated, and its length told rightly in most cases: what is read
// behind the first eight bytes is reached by few of the other mutations.
std::string mutated_header(const std::string& file, const RandomStream& random, std::uint64_t number) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const std::string header = mutated(file.substr(sizeof(length), length), random, number);
  const std::string data = file.substr(sizeof(length) + length);
  length = header.size();
  std::string result(sizeof(length), '\0');
  std::memcpy(result.data(), &length, sizeof(length));
  return result + header + data;
}

int fuzz(const FuzzTarget& target, const std::string& name, std::int64_t count, std::uint64_t seed) {
  const fs::path folder = prepared_folder(name, fmt::format("{}_{}", seed, ::getpid()));
  std::vector<std::string> corpus;
  for (const fs::path& path : target.corpus) corpus.push_back(bytes_of(path));
  const RandomStream random(seed, name);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::uint64_t>(i);
    const std::string& sound = corpus[number % corpus.size()];
    const bool only_header = name == "safetensors" && number / corpus.size() % 2 == 1;
    const std::string text = only_header ? mutated_header(sound, random, number) : mutated(sound, random, number);
    fs::remove(folder / target.file_name);  // some file systems wait for the disk when a file is overwritten
    std::ofstream(folder / target.file_name, std::ios::binary | std::ios::trunc) << text;
    const std::string finding = finding_about(target, folder);
    if (finding.empty()) continue;
    fmt::print(stderr, "{}, mutation {} of seed {}: {}\nthe file is kept: {}\n", name, i, seed, finding,
               (folder / target.file_name).string());
    return 1;
  }
  fs::remove_all(folder);
  fmt::print("{}: {} mutations answered\n", name, count);
  return 0;
}

int repeat(const FuzzTarget& target, const std::string& name, const fs::path& file) {
  const fs::path folder = prepared_folder(name, fmt::format("again_{}", ::getpid()));
  fs::copy_file(file, folder / target.file_name, fs::copy_options::overwrite_existing);
  const std::string finding = finding_about(target, folder);
  fs::remove_all(folder);
  if (finding.empty()) return 0;
  fmt::print(stderr, "{}: {}\n", file.string(), finding);
  return 1;
}

int run(const std::vector<std::string>& words) {
  const auto found = words.size() >= 3 ? fuzz_targets().find(words[0]) : fuzz_targets().end();
  if (found == fuzz_targets().end()) {
    fmt::print(stderr, "usage: fuzz_files safetensors|config|case|plan|index COUNT SEED [FILE]\n");
    return 2;
  }
  if (words.size() > 3) return repeat(found->second, words[0], words[3]);
  return fuzz(found->second, words[0], std::atoll(words[1].c_str()), std::strtoull(words[2].c_str(), nullptr, 10));
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) { return shardproof::run({words + 1, words + count}); }
