// Things that share something, in the order of their first appearance, so that what is grouped in a report keeps the
// order of its results. Groups are few, and found by looking at all.
#pragma once

#include <utility>
#include <vector>

namespace shardproof {

template <class Key, class Item>
class Groups {
 public:
  Item& operator[](const Key& key) {
    for (auto& [known, item] : groups_) {
      if (known == key) return item;
    }
    groups_.emplace_back(key, Item{});
    return groups_.back().second;
  }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }
  bool empty() const { return groups_.empty(); }

 private:
  std::vector<std::pair<Key, Item>> groups_;
};

}  // namespace shardproof
