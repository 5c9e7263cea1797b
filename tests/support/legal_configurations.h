// Which attention configurations are legal, written from the parallelism specification and independent of the code that
// decides it: a table of rules, each with the section it comes from, a predicate over plain numbers, and the words by
// which its refusal is known.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace shardproof::test {

enum class MaskKind : std::uint8_t {
  none,
  key,            // a key mask that travels with its keys
  cross_cutting,  // rows of queries and heads over all keys, across shard boundaries
  whole_shard,    // one rank's keys masked altogether
  local_rows,     // rows of queries over this rank's keys only
};
inline constexpr int kMaskKinds = 5;

struct AttentionConfiguration {
  int ring = 1;
  int ulysses = 1;
  bool ulysses_anything = false;
  bool ring_anything = false;
  std::int64_t heads = 1;
  std::int64_t text = 0;  // 0 = no text stream
  std::int64_t image = 1;
  MaskKind mask = MaskKind::none;
  // Streams that are divided like these two but never joined to them.
  std::vector<std::int64_t> apart = {};
};

struct LegalityRule {
  std::string_view name;
  std::string_view section;
  ErrorKind kind;
  std::string_view words;  // part of the refusal
  bool (*violated)(const AttentionConfiguration&);
};

std::span<const LegalityRule> legality_rules();
// The rules that the configuration breaks; none for a legal one.
std::vector<const LegalityRule*> broken_rules(const AttentionConfiguration& configuration);

}  // namespace shardproof::test
