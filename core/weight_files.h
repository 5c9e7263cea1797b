// The weights of one model in a folder: either one safetensors file (weights.safetensors or
// diffusion_pytorch_model.safetensors) or several that an index (*.safetensors.index.json) lists. Index and files must
// agree completely; every disagreement is one file_error.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors.h"

namespace shardproof {

class WeightFiles {
 public:
  // Throws file_error if the folder holds none of the forms or several, if a listed file is missing, malformed or
  // outside the folder, or if index and files do not name the same tensors.
  explicit WeightFiles(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  // Sorted.
  std::vector<std::string> names() const;
  // The file that holds the tensor, or nullptr.
  const SafetensorsFile* find(std::string_view name) const;
  // The same; throws file_error if there is none.
  const SafetensorsFile& file_of(std::string_view name) const;
  std::size_t file_count() const { return files_.size(); }

  // As in SafetensorsFile.
  const SafetensorsEntry& at(std::string_view name) const { return file_of(name).at(name); }
  Tensor tensor(std::string_view name, Device& device) const { return file_of(name).tensor(name, device); }
  Tensor slice(std::string_view name, std::span<const AxisRange> ranges, Device& device) const {
    return file_of(name).slice(name, ranges, device);
  }
  Tensor slice(std::string_view name, std::initializer_list<AxisRange> ranges, Device& device) const {
    return file_of(name).slice(name, ranges, device);
  }
  Tensor tensor_view(std::string_view name, Device& device) const { return file_of(name).tensor_view(name, device); }
  // Sum over all files.
  std::size_t bytes_read() const;

 private:
  void read_index(const std::filesystem::path& index_path);

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*, std::less<>> file_of_;
};

}  // namespace shardproof
