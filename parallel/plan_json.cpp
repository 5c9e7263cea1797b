#include "parallel/plan_json.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "core/error.h"

namespace shardproof {
namespace {

constexpr int kMaxDims = kMaxRank;

std::optional<int> optional_dims(const Json& json) {
  const Json* dims = json.find("expected_dims");
  if (dims == nullptr || dims->is_null()) return std::nullopt;
  return static_cast<int>(dims->as_int(1, kMaxDims));
}

ContextParallelInput input_from(const Json& json) {
  json.check_keys({"split_dim", "expected_dims", "split_output", "on_mismatch"});
  ContextParallelInput input;
  input.split_dim = static_cast<int>(json.at("split_dim").as_int(-kMaxDims, kMaxDims - 1));
  input.expected_dims = optional_dims(json);
  if (const Json* split_output = json.find("split_output")) input.split_output = split_output->as_bool();
  if (const Json* mismatch = json.find("on_mismatch")) {
    if (mismatch->as_string() != "skip" && mismatch->as_string() != "error") mismatch->reject("\"skip\" or \"error\"");
    input.on_mismatch = mismatch->as_string() == "error" ? OnMismatch::error : OnMismatch::skip;
  }
  return input;
}

ContextParallelOutput output_from(const Json& json) {
  json.check_keys({"gather_dim", "expected_dims"});
  return {static_cast<int>(json.at("gather_dim").as_int(-kMaxDims, kMaxDims - 1)), optional_dims(json)};
}

SplitKey split_key_from(const std::string& text, const Json& value) {
  const bool digits =
      !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits) return text;
  int index = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (status != std::errc{} || end != text.data() + text.size())
    value.reject("under an output index that is a small number");
  return index;
}

SplitEntry split_entry_from(const Json& json) {
  if (!json.is_array()) return input_from(json);
  std::vector<ContextParallelInput> inputs;
  for (const Json& item : json.items()) inputs.push_back(input_from(item));
  return inputs;
}

ModuleEntry module_entry_from(const Json& json) {
  if (json.is_array()) {
    std::vector<ContextParallelOutput> outputs;
    for (const Json& item : json.items()) outputs.push_back(output_from(item));
    return GatherEntry(outputs);
  }
  if (!json.is_object()) json.reject("an object or a list of gather entries");
  if (json.find("gather_dim") != nullptr) return GatherEntry(output_from(json));
  SplitEntries entries;
  for (const JsonMember& member : json.members()) {
    entries.emplace_back(split_key_from(member.key, member.value), split_entry_from(member.value));
  }
  return entries;
}

TensorParallelEntry packed_from(const Json& json) {
  if (json.size() != 1) json.reject("an object with exactly one of \"packed_colwise\" and \"packed_rowwise\"");
  json.check_keys({"packed_colwise", "packed_rowwise"});
  const JsonMember& member = json.members().front();
  TensorParallelEntry entry;
  entry.style =
      member.key == "packed_colwise" ? TensorParallelStyle::packed_colwise : TensorParallelStyle::packed_rowwise;
  if (member.value.is_null()) return entry;
  entry.blocks.emplace();
  for (const Json& block : member.value.items()) entry.blocks->push_back(block.as_int(1, std::int64_t{1} << 40));
  if (entry.blocks->empty()) member.value.reject("a list of at least one block");
  return entry;
}

TensorParallelEntry style_from(const Json& json) {
  if (json.is_object()) return packed_from(json);
  if (json.is_string()) {
    for (const auto style :
         {TensorParallelStyle::colwise, TensorParallelStyle::rowwise, TensorParallelStyle::replicated_input_rowwise}) {
      if (json.as_string() == style_name(style)) return {style};
    }
  }
  json.reject(
      "a style: \"colwise\", \"rowwise\", {\"packed_colwise\": blocks}, {\"packed_rowwise\": blocks} or "
      "\"replicated_input_rowwise\"");
}

Json dims_to_json(const std::optional<int>& dims) { return dims ? Json(*dims) : Json(); }

Json to_json(const ContextParallelInput& input) {
  Json json = Json::object();
  json.set("split_dim", input.split_dim);
  json.set("expected_dims", dims_to_json(input.expected_dims));
  json.set("split_output", input.split_output);
  if (input.on_mismatch == OnMismatch::error) json.set("on_mismatch", "error");
  return json;
}

Json to_json(const ContextParallelOutput& output) {
  Json json = Json::object();
  json.set("gather_dim", output.gather_dim);
  json.set("expected_dims", dims_to_json(output.expected_dims));
  return json;
}

template <class T>
Json to_json(const std::variant<T, std::vector<T>>& entry) {
  if (const T* one = std::get_if<T>(&entry)) return to_json(*one);
  Json list = Json::array();
  for (const T& item : std::get<std::vector<T>>(entry)) list.append(to_json(item));
  return list;
}

Json to_json(const ModuleEntry& entry) {
  if (const auto* gather = std::get_if<GatherEntry>(&entry)) return to_json(*gather);
  Json json = Json::object();
  for (const auto& [key, split] : std::get<SplitEntries>(entry)) json.set(split_key_text(key), to_json(split));
  return json;
}

Json to_json(const TensorParallelEntry& entry) {
  const bool packed =
      entry.style == TensorParallelStyle::packed_colwise || entry.style == TensorParallelStyle::packed_rowwise;
  if (!packed) return Json(style_name(entry.style));
  Json blocks;
  if (entry.blocks) {
    blocks = Json::array();
    for (const std::int64_t block : *entry.blocks) blocks.append(block);
  }
  Json json = Json::object();
  json.set(style_name(entry.style), blocks);
  return json;
}

}  // namespace

ContextParallelPlan context_parallel_plan_from_json(const Json& json) {
  ContextParallelPlan plan;
  for (const JsonMember& member : json.members())
    plan.entries.emplace_back(member.key, module_entry_from(member.value));
  return plan;
}

TensorParallelPlan tensor_parallel_plan_from_json(const Json& json) {
  TensorParallelPlan plan;
  for (const JsonMember& member : json.members()) plan.entries.emplace_back(member.key, style_from(member.value));
  return plan;
}

PlanFile plan_from_json(const Json& json) {
  json.check_keys({"model", "cp", "tp"});
  PlanFile plan;
  plan.model = json.at("model").as_string();
  if (const Json* cp = json.find("cp")) plan.cp = context_parallel_plan_from_json(*cp);
  if (const Json* tp = json.find("tp")) plan.tp = tensor_parallel_plan_from_json(*tp);
  return plan;
}

PlanFile read_plan_file(const std::filesystem::path& path) { return plan_from_json(read_json_file(path)); }

Json plan_to_json(const ContextParallelPlan& plan) {
  Json json = Json::object();
  for (const auto& [id, entry] : plan.entries) json.set(id, to_json(entry));
  return json;
}

Json plan_to_json(const TensorParallelPlan& plan) {
  Json json = Json::object();
  for (const auto& [glob, entry] : plan.entries) json.set(glob, to_json(entry));
  return json;
}

Json plan_to_json(const PlanFile& plan) {
  Json json = Json::object();
  json.set("model", plan.model);
  if (plan.cp) json.set("cp", plan_to_json(*plan.cp));
  if (plan.tp) json.set("tp", plan_to_json(*plan.tp));
  return json;
}

}  // namespace shardproof
