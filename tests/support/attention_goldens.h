// Recorded attention: plain formulas in float64, computed elsewhere; masks of every kind, rows without keys, large
// logits and offsets. Data: tests/data/attention.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace shardproof::test {

// The 16 case names.
const std::vector<std::string>& attention_golden_names();

struct AttentionGolden {
  Tensor q, k, v, out;  // float64 [batch, tokens, heads, head_dim]
  Tensor lse;           // float64 [batch, queries, heads]
  Tensor mask;          // bool or float64, or no tensor
  double scale = 0.0;
};

// The case as tensors of the device; `folder` is tests/data/attention.
AttentionGolden load_attention_golden(Device& device, const std::filesystem::path& folder, const std::string& name);

// Loads a case, runs the device and returns the largest of |difference| / max(1, |expected|) over out and lse.
double attention_golden_error(Device& device, const std::filesystem::path& folder, const std::string& name);

}  // namespace shardproof::test
