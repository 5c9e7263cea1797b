#include "core/name.h"

#include <mutex>
#include <unordered_set>

namespace shardproof {

Name::Name(std::string_view text) {
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view key) const { return std::hash<std::string_view>{}(key); }
  };
  static std::mutex mutex;
  static std::unordered_set<std::string, Hash, std::equal_to<>> names;
  const std::lock_guard lock(mutex);
  auto found = names.find(text);
  if (found == names.end()) found = names.emplace(text).first;
  text_ = &*found;
}

}  // namespace shardproof
