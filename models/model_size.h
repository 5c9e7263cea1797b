// How large a model and the inputs of a case are, and what the case has beside its streams of tokens. A search for the
// smallest configuration that fails goes through such sizes, and a command line can repeat one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof {

struct ModelSize {
  std::int64_t text = 3;   // tokens of text
  std::int64_t image = 4;  // tokens of image or video; a stream of audio that a model has besides has as many
  std::int64_t heads = 2;
  std::int64_t layers = 1;  // of every kind of block
  std::int64_t batch = 1;
  std::vector<std::string> with = {};  // features of the model's cases: "key_mask", "controlnet", "per_token", ..

  bool has(std::string_view feature) const;
  friend bool operator==(const ModelSize&, const ModelSize&) = default;
};

// "text=3,image=4,heads=2,layers=1,batch=1,with=key_mask+per_token".
std::string size_text(const ModelSize& size);
// Reads that; what is not named keeps its value above. usage_error naming the part, its value and what is expected.
ModelSize parse_model_size(std::string_view text);

}  // namespace shardproof
