#include "app/output_paths.h"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "real/launcher.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

struct Output {
  std::string_view option;
  fs::path path;
  bool is_replaced;  // false for a descriptor of this process: what is written is added to its file
};

// Those that are files, or will be: a device may be written to by everybody.
std::vector<Output> outputs_of(const Options& options) {
  std::vector<Output> outputs;
  const auto add = [&](std::string_view option, const std::optional<std::string>& path) {
    std::error_code problem;
    if (!path || (fs::exists(*path, problem) && !fs::is_regular_file(*path, problem))) return;
    outputs.push_back({option, *path, !own_descriptor(*path)});
  };
  add("--json", options.json);
  add("--junit", options.junit);
  add("--html", options.html);
  add("--trace", options.trace);
  add("--write-plan", options.write_plan);
  add("--write-fingerprints", options.write_fingerprints);
  return outputs;
}

// The one name of a file that need not be there yet; empty if there is none. A relative path of which nothing exists
// would stay as it is.
fs::path whole_path(const fs::path& path) {
  std::error_code problem;
  const fs::path absolute = fs::absolute(followed_links(path), problem);
  if (problem) return {};
  fs::path whole = fs::weakly_canonical(absolute, problem);
  return problem ? fs::path() : whole;
}

bool are_the_same(const fs::path& a, const fs::path& b) {
  std::error_code problem;
  if (fs::equivalent(a, b, problem)) return true;
  const fs::path whole = whole_path(a);
  return !whole.empty() && whole == whole_path(b);
}

// A file of the folder, or the file itself.
bool is_part_of(const fs::path& path, const fs::path& source) {
  std::error_code problem;
  if (!fs::is_directory(source, problem)) return are_the_same(path, source);
  const fs::path whole = fs::weakly_canonical(followed_links(path), problem);
  return !problem && fs::exists(whole, problem) && fs::equivalent(whole.parent_path(), source, problem);
}

}  // namespace

bool writes_outputs(const Options& options) {
  const bool is_one_of_several = options.backend == Backend::mpi || options.backend == Backend::nccl;
  return !is_one_of_several || launch_from_environment(options.launch).rank == 0;
}

void check_output_paths(const Options& options) {
  const std::vector<Output> outputs = outputs_of(options);
  if (outputs.empty() || !writes_outputs(options)) return;
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    const std::string shown = printable(output->path.string());
    for (auto other = outputs.begin(); other != output; ++other) {
      if (!output->is_replaced && !other->is_replaced) continue;
      SHARDPROOF_CHECK(!are_the_same(output->path, other->path), usage_error,
                       "{}: '{}' is the file of {}, too; expected another file", output->option, shown, other->option);
    }
    if (!output->is_replaced) continue;
    for (const auto& [file, name] : {std::pair("/dev/stdout", "standard output"), {"/dev/stderr", "standard error"}}) {
      std::error_code problem;
      SHARDPROOF_CHECK(!fs::equivalent(output->path, file, problem), usage_error,
                       "{}: '{}' is the file that {} goes to, and would replace it; expected another file, or {}",
                       output->option, shown, name, file);
    }
    if (options.command == Command::launch) continue;  // its sources are the words of another program
    for (const std::string& source : options.sources) {
      SHARDPROOF_CHECK(!is_part_of(output->path, source), usage_error,
                       "{}: '{}' would replace what is read from '{}'; expected another file", output->option, shown,
                       printable(source));
    }
    SHARDPROOF_CHECK(!are_the_same(output->path, options.plan), usage_error,
                     "{}: '{}' would replace the plan that is read from it; expected another file", output->option,
                     shown);
  }
}

}  // namespace shardproof
