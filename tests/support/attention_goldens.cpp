#include "tests/support/attention_goldens.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/json.h"
#include "core/safetensors.h"
#include "tests/support/host_array.h"

namespace shardproof::test {
namespace {

double relative_error(const Tensor& actual, const Tensor& expected) {
  const HostArray a = to_host(actual), e = to_host(expected);
  if (!(a.shape == e.shape)) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < e.values.size(); ++i) {
    if (a.values[i] == e.values[i]) continue;
    const double error = std::abs(a.values[i] - e.values[i]) / std::max(1.0, std::abs(e.values[i]));
    worst = std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
  }
  return worst;
}

}  // namespace

const std::vector<std::string>& attention_golden_names() {
  static const std::vector<std::string> names{
      "add_all_1e9", "add_b11k",      "add_b1qk",       "add_b1qk_inf",        "add_bh1k_1e9",
      "bool_2d",     "bool_2d_empty", "bool_2d_range",  "bool_b11k",           "bool_b1qk",
      "bool_bh1k",   "custom_scale",  "extreme_logits", "large_common_offset", "plain",
      "uneven"};
  return names;
}

AttentionGolden load_attention_golden(Device& device, const std::filesystem::path& folder, const std::string& name) {
  const SafetensorsFile file(folder / (name + ".safetensors"));
  AttentionGolden golden;
  golden.q = file.tensor("q", device);
  golden.k = file.tensor("k", device);
  golden.v = file.tensor("v", device);
  golden.out = file.tensor("out", device);
  golden.lse = file.tensor("lse", device);
  if (file.find("mask") != nullptr) golden.mask = file.tensor("mask", device);
  golden.scale = read_json_file(folder / (name + ".json")).at("scale").as_double();
  return golden;
}

double attention_golden_error(Device& device, const std::filesystem::path& folder, const std::string& name) {
  const AttentionGolden golden = load_attention_golden(device, folder, name);
  Tensor mask = golden.mask;
  // Key masks are recorded as [batch, keys], the others as the device takes them.
  if (mask.defined() && mask.rank() == 2) mask = mask.unsqueeze(1).unsqueeze(1);
  const AttentionOutput actual = device.attention(golden.q, golden.k, golden.v, mask, golden.scale);
  return std::max(relative_error(actual.out, golden.out), relative_error(actual.lse, golden.lse));
}

}  // namespace shardproof::test
