// The argument img_shapes of the Qwen-Image models: which images of (frames, height, width) patches each sample has.
// It decides positions and modulation, so it is read strictly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/value.h"

namespace shardproof {

struct ImageShape {
  std::int64_t frames = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t tokens() const { return frames * height * width; }
  friend bool operator==(const ImageShape&, const ImageShape&) = default;
};

// Sample -> its images.
using ImageShapes = std::vector<std::vector<ImageShape>>;

// From nested numbers: sample -> images -> [frames, height, width], or sample -> [frames, height, width] for one image.
// shape_error naming argument, model and value for anything else.
ImageShapes image_shapes_in(const Value& value, Name name, const std::string& model);
// The same of the argument `name`; also for another number of samples than `batch`, and samples whose images do not
// cover `tokens` tokens.
ImageShapes image_shapes_from(const Arguments& arguments, Name name, const std::string& model, std::int64_t batch,
                              std::int64_t tokens);
// Positions of n rows or columns around the middle: -(n - floor(n/2)), .., floor(n/2) - 1.
std::vector<std::int64_t> centred_positions(std::int64_t n);

}  // namespace shardproof
