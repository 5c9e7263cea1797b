#include "models/image_shapes.h"

#include <cmath>

#include <fmt/format.h>

#include "core/error.h"

namespace shardproof {
namespace {

constexpr double kLargestExtent = 1 << 16;

class Reader {
 public:
  Reader(Name name, const std::string& model) : name_(name), model_(model) {}

  ImageShapes read(const Value& value) const {
    const auto* nested = std::get_if<NestedNumbers>(&value);
    if (nested == nullptr) reject(value_kind_name(value));
    ImageShapes shapes;
    for (const NestedNumbers& sample : list(*nested)) {
      const std::vector<NestedNumbers>& items = list(sample);
      std::vector<ImageShape> images;
      const bool is_one_image = !items.empty() && std::holds_alternative<double>(items.front().content);
      if (is_one_image) images.push_back(image(sample));
      for (const NestedNumbers& item : is_one_image ? std::vector<NestedNumbers>{} : items)
        images.push_back(image(item));
      if (images.empty()) reject("a sample without images");
      shapes.push_back(std::move(images));
    }
    return shapes;
  }

 private:
  const std::vector<NestedNumbers>& list(const NestedNumbers& numbers) const {
    const auto* items = std::get_if<std::vector<NestedNumbers>>(&numbers.content);
    if (items == nullptr) reject(fmt::format("the number {}", std::get<double>(numbers.content)));
    return *items;
  }

  std::int64_t extent(const NestedNumbers& numbers) const {
    const auto* value = std::get_if<double>(&numbers.content);
    if (value == nullptr) reject("a list where a number belongs");
    if (*value < 1.0 || *value > kLargestExtent || *value != std::floor(*value))
      reject(fmt::format("the number {}", *value));
    return static_cast<std::int64_t>(*value);
  }

  ImageShape image(const NestedNumbers& numbers) const {
    const std::vector<NestedNumbers>& items = list(numbers);
    if (items.size() != 3) reject(fmt::format("a list of {} numbers", items.size()));
    return {extent(items[0]), extent(items[1]), extent(items[2])};
  }

  [[noreturn]] void reject(std::string_view found) const {
    fail(ErrorKind::shape_error,
         "argument '{}' of {} must hold for each sample its images as [frames, height, width], whole numbers from 1, "
         "got "
         "{}",
         name_.text(), model_, found);
  }

  Name name_;
  const std::string& model_;
};

}  // namespace

ImageShapes image_shapes_in(const Value& value, Name name, const std::string& model) {
  return Reader(name, model).read(value);
}

ImageShapes image_shapes_from(const Arguments& arguments, Name name, const std::string& model, std::int64_t batch,
                              std::int64_t tokens) {
  const Value* value = arguments.find(name);
  ImageShapes shapes = image_shapes_in(value == nullptr ? Value() : *value, name, model);
  SHARDPROOF_CHECK(static_cast<std::int64_t>(shapes.size()) == batch, shape_error,
                   "argument '{}' of {} has {} samples; expected {}, the batch of hidden_states", name.text(), model,
                   shapes.size(), batch);
  for (std::size_t sample = 0; sample < shapes.size(); ++sample) {
    std::int64_t covered = 0;
    for (const ImageShape& image : shapes[sample]) covered += image.tokens();
    SHARDPROOF_CHECK(covered == tokens, shape_error,
                     "argument '{}' of {}: the images of sample {} have {} tokens; expected {}, those of hidden_states",
                     name.text(), model, sample, covered, tokens);
  }
  return shapes;
}

std::vector<std::int64_t> centred_positions(std::int64_t n) {
  std::vector<std::int64_t> positions;
  for (std::int64_t i = -(n - n / 2); i < n / 2; ++i) positions.push_back(i);
  return positions;
}

}  // namespace shardproof
