// Feeds mutated files to every reader: whatever a stranger's file holds, the answer is a value or one Error that names
// the file; never a crash, a hang, or another exception. A plain mutation loop, so that it runs with any compiler;
// meant to run under the address and undefined-behaviour sanitizers.
//
//   fuzz_files TARGET COUNT SEED [FILE]      COUNT mutations of the corpus; or FILE as it is, to repeat a finding
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/host_memory.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "models/export_directory.h"
#include "models/model_type.h"
#include "models/state.h"
#include "parallel/plan_json.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(SHARDPROOF_SOURCE_DIR) / "tests/data";

// One kind of file: its corpus, the name under which a mutation is stored, and what reads it.
struct Target {
  std::vector<fs::path> corpus;
  std::string file_name;
  std::function<void(const fs::path& folder)> read;
};

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// An export directory in which everything but the mutated file is sound.
void prepare_export(const fs::path& folder) {
  const fs::path sound = kData / "goldens/flux/uneven";
  for (const char* name : {"config.json", "base.json", "base.inputs.safetensors", "weights.safetensors"}) {
    fs::copy_file(sound / name, folder / name, fs::copy_options::overwrite_existing);
  }
}

void read_case(const fs::path& folder) {
  HostDevice host;
  const ExportDirectory directory(folder);
  for (const std::string& name : directory.case_names()) {
    directory.load_case(name, host);
    directory.trace_entries(name);
  }
}

void read_model(const fs::path& folder) {
  HostDevice host;
  const ExportDirectory directory(folder);
  const ModelContext context{&host, kFloat32, TablePrecision::float32};
  const std::unique_ptr<Module> declared = directory.model().create(directory.config(), context);
  load_state(*declared, directory.weights(), context);
}

void read_all_tensors(const fs::path& folder) {
  HostDevice host;
  const SafetensorsFile file(folder / "mutated.safetensors");
  for (const SafetensorsEntry& entry : file.entries()) {
    file.tensor(entry.name, host);
    file.tensor_view(entry.name, host);
  }
}

void read_plan(const fs::path& folder) {
  const PlanFile plan = read_plan_file(folder / "plan.json");
  const ModelType& flux = find_model_type("flux");
  const std::unique_ptr<Module> tree = flux.create(flux.hostile_config(), {});
  if (plan.cp) plan_problems(*tree, *plan.cp);
  if (plan_from_json(plan_to_json(plan)) != plan)
    fail(ErrorKind::internal_error, "a plan changed on its way through JSON");
}

void read_index(const fs::path& folder) {
  HostDevice host;
  const WeightFiles files(folder);
  for (const std::string& name : files.names()) files.tensor(name, host);
}

const std::map<std::string, Target>& targets() {
  static const std::map<std::string, Target> kTargets{
      {"safetensors",
       {{kData / "fuzz/small.safetensors", kData / "attention/uneven.safetensors"},
        "mutated.safetensors",
        read_all_tensors}},
      {"config", {{kData / "goldens/flux/uneven/config.json"}, "config.json", read_model}},
      {"case",
       {{kData / "goldens/flux/uneven/base.json", kData / "goldens/flux/tiny/controlnet.json"},
        "base.json",
        read_case}},
      {"plan", {{kData / "fuzz/flux_plan.json", kData / "fuzz/list_plan.json"}, "plan.json", read_plan}},
      {"index",
       {{kData / "fuzz/sharded/weights.safetensors.index.json"}, "weights.safetensors.index.json", read_index}},
  };
  return kTargets;
}

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

// True if the answer is one that a reader may give.
bool is_answered(const Target& target, const fs::path& folder, std::string& finding) {
  try {
    target.read(folder);
  } catch (const Error& error) {
    // A file_error names the mutated file, or the one beside it that no longer fits.
    const bool is_named = error.kind() != ErrorKind::file_error ||
                          std::string_view(error.what()).find(folder.string()) != std::string_view::npos;
    if (error.kind() == ErrorKind::internal_error || !is_named) finding = error.what();
  } catch (const std::exception& error) {
    finding = fmt::format("an exception of another type: {}", error.what());
  }
  return finding.empty();
}

// A fresh folder with the sound files that stand beside the mutated one.
fs::path prepared_folder(const std::string& name, const std::string& suffix) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("shardproof_fuzz_{}_{}", name, suffix);
  fs::remove_all(folder);
  fs::create_directories(folder);
  if (name == "config" || name == "case") prepare_export(folder);
  if (name == "index") fs::copy(kData / "fuzz/sharded", folder);
  return folder;
}

int fuzz(const Target& target, const std::string& name, std::int64_t count, std::uint64_t seed) {
  const fs::path folder = prepared_folder(name, std::to_string(seed));
  std::vector<std::string> corpus;
  for (const fs::path& path : target.corpus) corpus.push_back(bytes_of(path));
  const RandomStream random(seed, name);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto number = static_cast<std::uint64_t>(i);
    const std::string text = mutated(corpus[number % corpus.size()], random, number);
    std::ofstream(folder / target.file_name, std::ios::binary | std::ios::trunc) << text;
    std::string finding;
    if (is_answered(target, folder, finding)) continue;
    fmt::print(stderr, "{}, mutation {} of seed {}: {}\nthe file is kept: {}\n", name, i, seed, finding,
               (folder / target.file_name).string());
    return 1;
  }
  fs::remove_all(folder);
  fmt::print("{}: {} mutations answered\n", name, count);
  return 0;
}

int repeat(const Target& target, const std::string& name, const fs::path& file) {
  const fs::path folder = prepared_folder(name, "again");
  fs::copy_file(file, folder / target.file_name, fs::copy_options::overwrite_existing);
  std::string finding;
  if (is_answered(target, folder, finding)) return 0;
  fmt::print(stderr, "{}: {}\n", file.string(), finding);
  return 1;
}

int run(const std::vector<std::string>& words) {
  const auto found = words.size() >= 3 ? targets().find(words[0]) : targets().end();
  if (found == targets().end()) {
    fmt::print(stderr, "usage: fuzz_files safetensors|config|case|plan|index COUNT SEED [FILE]\n");
    return 2;
  }
  if (words.size() > 3) return repeat(found->second, words[0], words[3]);
  return fuzz(found->second, words[0], std::atoll(words[1].c_str()), std::strtoull(words[2].c_str(), nullptr, 10));
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) { return shardproof::run({words + 1, words + count}); }
