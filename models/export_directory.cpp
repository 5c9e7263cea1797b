#include "models/export_directory.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"

namespace shardproof {
namespace {

constexpr std::string_view kConfigName = "config.json";

std::string shown(const std::filesystem::path& path) { return printable(path.native(), 1000); }

// Files that belong to weights or tools and describe no case.
bool is_case_description(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return path.extension() == ".json" && name != kConfigName && !name.ends_with(".index.json");
}

std::vector<std::string> names_in(const Json& list) {
  std::vector<std::string> names;
  for (const Json& item : list.items()) names.push_back(item.as_string());
  return names;
}

NestedNumbers numbers_from(const Json& json) {
  if (!json.is_array()) return {json.as_double()};
  std::vector<NestedNumbers> items;
  for (const Json& item : json.items()) items.push_back(numbers_from(item));
  return {items};
}

Value setting_from(const Json& json) {
  if (json.is_null()) return std::monostate{};
  if (json.is_bool()) return json.as_bool();
  if (json.is_integer()) return json.as_int();
  if (json.is_double()) return json.as_double();
  if (json.is_string()) return json.as_string();
  if (json.is_array()) return numbers_from(json);
  json.reject("none, a bool, a number, a string or a list of numbers");
}

// Takes tensors out of the inputs file and knows which are left.
class InputTensors {
 public:
  InputTensors(const SafetensorsFile& file, Device& host) : file_(file), host_(host) {
    for (const SafetensorsEntry& entry : file.entries()) left_.insert(entry.name);
  }
  Tensor take(const std::string& name) {
    left_.erase(name);
    return file_.tensor(name, host_);
  }
  void check_nothing_left() const {
    SHARDPROOF_CHECK(left_.empty(), file_error, "{}: tensor '{}' belongs to no argument of the case",
                     shown(file_.path()), left_.empty() ? "" : printable(*left_.begin()));
  }

 private:
  const SafetensorsFile& file_;
  Device& host_;
  std::set<std::string> left_;
};

TraceEntry trace_entry_from(const SafetensorsFile& file, const std::string& key) {
  const std::size_t colon = key.find(':');
  const std::size_t hash = key.rfind('#');
  TraceEntry entry{key, "", 0, 0};
  const bool has_parts = colon != std::string::npos && hash != std::string::npos && colon < hash;
  const char* end = key.data() + key.size();
  const auto parsed = has_parts ? std::from_chars(key.data() + hash + 1, end, entry.output) : std::from_chars_result{};
  SHARDPROOF_CHECK(has_parts && parsed.ec == std::errc{} && parsed.ptr == end && entry.output >= 0, file_error,
                   "{}: trace key '{}' is not of the form NNNN:<module path>#<output index>", shown(file.path()),
                   printable(key));
  entry.module = key.substr(colon + 1, hash - colon - 1);
  return entry;
}

const ModelType& model_named_by(const Json& name) {
  try {
    return find_model_type(name.as_string());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::file_error) throw;
    fail(error.kind(), "{}: {}", name.where(), error.what());
  }
}

}  // namespace

ExportDirectory::ExportDirectory(const std::filesystem::path& folder) : folder_(folder) {
  std::error_code status;
  SHARDPROOF_CHECK(std::filesystem::is_directory(folder, status), file_error,
                   "{}: not a folder; an export directory is expected", shown(folder));
  config_ = read_json_file(folder / kConfigName);
  model_ = &model_named_by(config_.at("_class_name"));
  weights_ = std::make_unique<WeightFiles>(folder);
  std::filesystem::directory_iterator entries(folder, status);
  for (; !status && entries != std::filesystem::directory_iterator(); entries.increment(status)) {
    if (is_case_description(entries->path())) case_names_.push_back(entries->path().stem().string());
  }
  SHARDPROOF_CHECK(!status, file_error, "{}: the folder cannot be read: {}", shown(folder), status.message());
  std::sort(case_names_.begin(), case_names_.end());
  SHARDPROOF_CHECK(!case_names_.empty(), file_error,
                   "{}: no case found; NAME.json with NAME.inputs.safetensors is expected", shown(folder));
}

const SafetensorsFile* ExportDirectory::optional_file(std::string_view case_name, std::string_view suffix) const {
  const std::string name = fmt::format("{}.{}.safetensors", case_name, suffix);
  for (const auto& [known, file] : files_) {
    if (known == name) return file.get();
  }
  std::unique_ptr<SafetensorsFile> file;
  // Anything of that name but nothing at all is opened, so that a file which cannot be read is said to be one.
  std::error_code status;
  const auto type = std::filesystem::symlink_status(folder_ / name, status).type();
  if (type != std::filesystem::file_type::not_found) file = std::make_unique<SafetensorsFile>(folder_ / name);
  files_.emplace_back(name, std::move(file));
  return files_.back().second.get();
}

ModelCase ExportDirectory::load_case(std::string_view name, Device& host) const {
  SHARDPROOF_CHECK(std::find(case_names_.begin(), case_names_.end(), name) != case_names_.end(), usage_error,
                   "{}: no case is named '{}'; known: {}", shown(folder_), printable(name),
                   printable(fmt::format("{}", fmt::join(case_names_, ", ")), 1000));
  const Json description = read_json_file(folder_ / fmt::format("{}.json", name));
  const SafetensorsFile inputs_file(folder_ / fmt::format("{}.inputs.safetensors", name));
  InputTensors inputs(inputs_file, host);
  ModelCase result{std::string(name), {}, names_in(description.at("outputs"))};
  if (result.outputs.empty()) description.at("outputs").reject("a list of at least one output");
  for (const std::string& argument : names_in(description.at("tensor_args")))
    result.arguments.set(argument, inputs.take(argument));
  if (const Json* lists = description.find("tensor_list_args")) {
    for (const JsonMember& member : lists->members()) {
      std::vector<Tensor> tensors;
      const std::int64_t count = member.value.as_int(0, 4096);
      for (std::int64_t i = 0; i < count; ++i) tensors.push_back(inputs.take(fmt::format("{}.{}", member.key, i)));
      result.arguments.set(member.key, std::move(tensors));
    }
  }
  if (const Json* none = description.find("none_args")) {
    for (const std::string& argument : names_in(*none)) result.arguments.set(argument, std::monostate{});
  }
  if (const Json* settings = description.find("args")) {
    for (const JsonMember& member : settings->members()) result.arguments.set(member.key, setting_from(member.value));
  }
  inputs.check_nothing_left();
  return result;
}

Tensor ExportDirectory::expected_output(std::string_view case_name, std::string_view kind, std::string_view output,
                                        Device& host) const {
  const SafetensorsFile* file = optional_file(case_name, "outputs");
  const std::string key = fmt::format("{}.{}", kind, output);
  return file == nullptr || file->find(key) == nullptr ? Tensor() : file->tensor(key, host);
}

const SafetensorsFile* ExportDirectory::trace_file(std::string_view case_name) const {
  return optional_file(case_name, "trace");
}

std::vector<TraceEntry> ExportDirectory::trace_entries(std::string_view case_name) const {
  const SafetensorsFile* file = trace_file(case_name);
  if (file == nullptr) return {};
  std::vector<std::string> keys;
  for (const SafetensorsEntry& entry : file->entries()) keys.push_back(entry.name);
  std::sort(keys.begin(), keys.end());  // keys begin with the number of the call, in fixed width
  std::map<std::pair<std::string, int>, int> calls;
  std::vector<TraceEntry> entries;
  for (const std::string& key : keys) {
    TraceEntry entry = trace_entry_from(*file, key);
    entry.occurrence = calls[{entry.module, entry.output}]++;
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace shardproof
