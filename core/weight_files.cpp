#include "core/weight_files.h"

#include <algorithm>
#include <system_error>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace shardproof {

namespace {

// A link that leads nowhere or in a circle is not there; nothing is thrown.
bool is_there(const std::filesystem::path& path) {
  std::error_code status;
  return std::filesystem::exists(path, status) && !status;
}

constexpr std::string_view kIndexEnding = ".safetensors.index.json";

// The file names in the folder that could be its weights, sorted.
std::vector<std::string> candidates(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  SHARDPROOF_CHECK(!error, file_error, "cannot read the folder '{}': {}", printable_path(folder), error.message());
  std::vector<std::string> names;
  for (; entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name == "weights.safetensors" || name == "diffusion_pytorch_model.safetensors" ||
        name.ends_with(kIndexEnding)) {
      names.push_back(name);
    }
  }
  SHARDPROOF_CHECK(!error, file_error, "cannot read the folder '{}': {}", printable_path(folder), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// The name of a shard as the index has it, or an error if it could lead out of the folder.
std::filesystem::path shard_name(const Json& json) {
  const std::string& name = json.as_string();
  const std::filesystem::path path(name);
  const bool leaves = std::any_of(path.begin(), path.end(), [](const auto& part) { return part == ".."; });
  if (name.empty() || name.find('\0') != std::string::npos || path.is_absolute() || leaves || !path.has_filename()) {
    json.reject("the name of a file inside the folder of the index");
  }
  return path.lexically_normal();
}

}  // namespace

WeightFiles::WeightFiles(const std::filesystem::path& folder) : folder_(folder) {
  const std::vector<std::string> names = candidates(folder);
  SHARDPROOF_CHECK(!names.empty(), file_error,
                   "'{}' holds no weights: expected weights.safetensors, diffusion_pytorch_model.safetensors or one "
                   "*.safetensors.index.json",
                   printable_path(folder));
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + printable(name);
  SHARDPROOF_CHECK(names.size() == 1, file_error, "'{}' holds several forms of the weights: {}; expected one",
                   printable_path(folder), list);
  if (names.front().ends_with(kIndexEnding)) {
    read_index(folder / names.front());
  } else {
    files_.push_back(std::make_unique<SafetensorsFile>(folder / names.front()));
    for (const SafetensorsEntry& entry : files_.back()->entries()) file_of_.emplace(entry.name, files_.back().get());
  }
}

void WeightFiles::read_index(const std::filesystem::path& index_path) {
  const Json index = read_json_file(index_path);
  const Json& weight_map = index.at("weight_map");
  std::map<std::filesystem::path, const SafetensorsFile*> opened;
  for (const JsonMember& member : weight_map.members()) {
    const std::filesystem::path name = shard_name(member.value);
    auto [shard, is_new] = opened.try_emplace(name, nullptr);
    if (is_new) {
      SHARDPROOF_CHECK(is_there(folder_ / name), file_error,
                       "{}: tensor '{}' is said to be in '{}', a file that does not exist", printable_path(index_path),
                       printable(member.key), printable_path(name));
      files_.push_back(std::make_unique<SafetensorsFile>(folder_ / name));
      shard->second = files_.back().get();
    }
    SHARDPROOF_CHECK(shard->second->find(member.key) != nullptr, file_error,
                     "{}: tensor '{}' is said to be in '{}', but that file does not hold it",
                     printable_path(index_path), printable(member.key), printable_path(name));
    file_of_.emplace(member.key, shard->second);
  }
  for (const auto& [name, file] : opened) {
    for (const SafetensorsEntry& entry : file->entries()) {
      const SafetensorsFile* const listed = find(entry.name);
      SHARDPROOF_CHECK(listed != nullptr, file_error, "{}: tensor '{}' of '{}' is not in the index",
                       printable_path(index_path), printable(entry.name), printable_path(name));
      SHARDPROOF_CHECK(listed == file, file_error, "{}: tensor '{}' is in both '{}' and '{}'",
                       printable_path(index_path), printable(entry.name),
                       printable_path(listed->path().lexically_relative(folder_)), printable_path(name));
    }
  }
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const SafetensorsFile* WeightFiles::find(std::string_view name) const {
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? nullptr : found->second;
}

const SafetensorsFile& WeightFiles::file_of(std::string_view name) const {
  const SafetensorsFile* const file = find(name);
  SHARDPROOF_CHECK(file != nullptr, file_error, "'{}': no tensor '{}' among the {} weights of this folder",
                   printable_path(folder_), printable(name), file_of_.size());
  return *file;
}

std::size_t WeightFiles::bytes_read() const {
  std::size_t sum = 0;
  for (const auto& file : files_) sum += file->bytes_read();
  return sum;
}

}  // namespace shardproof
