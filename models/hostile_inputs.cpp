#include "models/hostile_inputs.h"

#include <utility>
#include <vector>

#include "core/ops.h"
#include "core/random.h"

namespace shardproof {

Masking masking_of(const ModelSize& size) {
  if (size.has("shard_mask")) return Masking::whole_shard;
  return size.has("key_mask") ? Masking::keys : Masking::none;
}

std::vector<CaseFeature> mask_features(const std::string& argument) {
  return {feature_by_argument("key_mask", argument), feature_by_argument("shard_mask", argument)};
}

CaseFeature per_token_feature(const std::string& argument) {
  return {"per_token", [argument](const Arguments& arguments) {
            const Tensor values = arguments.optional_tensor(Name(argument));
            return values.defined() && values.rank() == 2;
          }};
}

CaseFeature several_images_feature(std::string name) {
  using List = std::vector<NestedNumbers>;
  return {std::move(name), [](const Arguments& arguments) {
            const Value* shapes = arguments.find("img_shapes");
            const auto* numbers = shapes == nullptr ? nullptr : std::get_if<NestedNumbers>(shapes);
            const auto* samples = numbers == nullptr ? nullptr : std::get_if<List>(&numbers->content);
            if (samples == nullptr || samples->empty()) return false;
            const auto* images = std::get_if<List>(&samples->front().content);
            return images != nullptr && images->size() > 1;
          }};
}

Tensor random_key_mask(Device& host, std::uint64_t seed, const std::string& name, std::int64_t batch,
                       std::int64_t tokens, Masking masking) {
  constexpr double kDropped = 0.4;
  std::vector<double> values;
  const RandomStream random(seed, name + "/mask");
  for (std::int64_t item = 0; item < batch; ++item) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      const bool dropped =
          masking != Masking::none && random.uniform(static_cast<std::uint64_t>(values.size())) < kDropped;
      const bool in_first_third = token < (tokens + 2) / 3;
      const bool cut = masking == Masking::whole_shard && (item == 0 ? in_first_third : !in_first_third);
      values.push_back(dropped || cut ? 0.0 : 1.0);
    }
  }
  return ops::from_doubles(host, values, {batch, tokens}, kBool);
}

Tensor ramp(Device& host, std::int64_t batch, double first, double step) {
  std::vector<double> values;
  for (std::int64_t item = 0; item < batch; ++item) values.push_back(first + step * static_cast<double>(item));
  return ops::from_doubles(host, values, {batch}, kFloat32);
}

}  // namespace shardproof
