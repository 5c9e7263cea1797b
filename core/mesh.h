// Mesh: world ranks as an array with named dimensions, filled row-major (the last dimension fastest). Sub-groups come
// from coordinates, never from consecutive ranks. Source: parallelism specification, section 3.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/communicator.h"

namespace shardproof {

class Mesh {
 public:
  Mesh() = default;
  // config_error for an empty or repeated name, a size below 1, or unequal numbers of names and sizes.
  Mesh(std::vector<std::string> names, std::vector<int> sizes);
  // "ring=2,ulysses=1,fsdp=4"; config_error with the text and what was expected.
  static Mesh parse(std::string_view text);

  int size() const;
  int dimensions() const { return static_cast<int>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<int>& sizes() const { return sizes_; }
  bool has(std::string_view name) const;
  // config_error listing the names that exist.
  int size_of(std::string_view name) const;
  std::vector<int> coordinates(int rank) const;
  int coordinate(int rank, std::string_view name) const;
  int rank_of(std::span<const int> coordinates) const;
  // Position of `rank` along the named dimensions taken together, the first named slowest: for ("ring", "ulysses") it
  // is ring * ulysses_size + ulysses, wherever the dimensions stand in the mesh.
  int flat_index(int rank, std::span<const std::string_view> dimensions) const;
  // The ranks that share all other coordinates with `rank`, ordered by flat_index.
  std::vector<int> group(int rank, std::span<const std::string_view> dimensions) const;
  // Number of the group that `rank` belongs to: the flat index over all other dimensions, in mesh order.
  int group_number(int rank, std::span<const std::string_view> dimensions) const;
  // "ring=2,ulysses=1".
  std::string text() const;
  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  int dimension(std::string_view name) const;

  std::vector<std::string> names_;
  std::vector<int> sizes_;
};

// Collective over `world` (whose size must be mesh.size()): this rank's group along the named dimensions.
std::unique_ptr<Communicator> split_along(Communicator& world, const Mesh& mesh,
                                          std::span<const std::string_view> dimensions, std::string_view name);

}  // namespace shardproof
