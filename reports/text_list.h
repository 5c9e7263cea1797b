// Gives equal texts one number: their place in a list that somebody else owns. Traces refer to texts by these numbers,
// so that events stay small.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardproof {

class TextList {
 public:
  // Texts that the list has already keep their places.
  explicit TextList(std::vector<std::string>& texts) : texts_(texts) {
    for (std::size_t i = 0; i < texts.size(); ++i) numbers_.try_emplace(texts[i], static_cast<std::int64_t>(i));
  }
  std::int64_t number_of(std::string_view text) {
    const auto [known, is_new] = numbers_.try_emplace(std::string(text), static_cast<std::int64_t>(texts_.size()));
    if (is_new) texts_.emplace_back(text);
    return known->second;
  }

 private:
  std::vector<std::string>& texts_;
  std::unordered_map<std::string, std::int64_t> numbers_;
};

}  // namespace shardproof
