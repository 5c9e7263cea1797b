// A folder that an exporter wrote from a real model: config.json, weights, and cases. A case NAME is NAME.json with
// NAME.inputs.safetensors beside it, and, where known, NAME.outputs.safetensors (keys "fp32.<output>", "fp64.<output>",
// "exact.<output>") and NAME.trace.safetensors (keys "NNNN:<module path>#<output index>", in call order).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/safetensors.h"
#include "core/weight_files.h"
#include "models/model_type.h"

namespace shardproof {

// One recorded module output.
struct TraceEntry {
  std::string key;     // as in the file
  std::string module;  // path; "" is the whole model
  int output = 0;
  int occurrence = 0;  // 0 for the first call of that module, 1 for the second, ..
};

class ExportDirectory {
 public:
  // Reads configuration, weight headers and the list of cases. Errors: file_error naming file and key; usage_error for
  // a
  // `_class_name` that no model here has.
  explicit ExportDirectory(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Json& config() const { return config_; }
  const ModelType& model() const { return *model_; }
  const WeightFiles& weights() const { return *weights_; }
  // Sorted; at least one.
  const std::vector<std::string>& case_names() const { return case_names_; }
  // The case with its tensors on `host`, in the types of the file. file_error if the description and the tensors
  // disagree.
  ModelCase load_case(std::string_view name, Device& host) const;
  // "fp32", "fp64" or "exact": the expected output on `host`, or no tensor if the export does not have it.
  Tensor expected_output(std::string_view case_name, std::string_view kind, std::string_view output,
                         Device& host) const;
  // The trace of a case in call order; empty if there is none.
  std::vector<TraceEntry> trace_entries(std::string_view case_name) const;
  // Null if there is none.
  const SafetensorsFile* trace_file(std::string_view case_name) const;

 private:
  const SafetensorsFile* optional_file(std::string_view case_name, std::string_view suffix) const;

  std::filesystem::path folder_;
  Json config_;
  const ModelType* model_ = nullptr;
  std::unique_ptr<WeightFiles> weights_;
  std::vector<std::string> case_names_;
  // Files are opened once, on first use.
  mutable std::vector<std::pair<std::string, std::unique_ptr<SafetensorsFile>>> files_;
};

}  // namespace shardproof
