#include "core/mesh.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "core/error.h"

namespace shardproof {
namespace {

constexpr int kMaxRanks = 1 << 20;

bool names_dimension(std::span<const std::string_view> dimensions, std::string_view name) {
  return std::find(dimensions.begin(), dimensions.end(), name) != dimensions.end();
}

}  // namespace

Mesh::Mesh(std::vector<std::string> names, std::vector<int> sizes)
    : names_(std::move(names)), sizes_(std::move(sizes)) {
  SHARDPROOF_CHECK(names_.size() == sizes_.size(), config_error, "a mesh of {} names and {} sizes", names_.size(),
                   sizes_.size());
  std::int64_t product = 1;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    SHARDPROOF_CHECK(!names_[i].empty(), config_error, "a mesh dimension has no name");
    SHARDPROOF_CHECK(std::count(names_.begin(), names_.end(), names_[i]) == 1, config_error,
                     "mesh dimension '{}' is named twice", names_[i]);
    SHARDPROOF_CHECK(sizes_[i] >= 1, config_error, "mesh dimension '{}' has size {}; it must be at least 1", names_[i],
                     sizes_[i]);
    product *= sizes_[i];
    SHARDPROOF_CHECK(product <= kMaxRanks, config_error, "a mesh of more than {} ranks is not supported", kMaxRanks);
  }
}

Mesh Mesh::parse(std::string_view text) {
  std::vector<std::string> names;
  std::vector<int> sizes;
  std::string_view rest = text;
  while (true) {
    const std::string_view item = rest.substr(0, rest.find(','));
    const std::size_t equals = item.find('=');
    int size = 0;
    const std::string_view number = equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
    const auto [end, status] = std::from_chars(number.data(), number.data() + number.size(), size);
    SHARDPROOF_CHECK(equals != std::string_view::npos && status == std::errc{} && end == number.data() + number.size(),
                     config_error, "mesh '{}': '{}' is not of the form name=size, as in ring=2,ulysses=1", text, item);
    names.emplace_back(item.substr(0, equals));
    sizes.push_back(size);
    if (item.size() == rest.size()) break;
    rest = rest.substr(item.size() + 1);
  }
  return Mesh(std::move(names), std::move(sizes));
}

int Mesh::size() const {
  int product = 1;
  for (const int size : sizes_) product *= size;
  return product;
}

bool Mesh::has(std::string_view name) const { return std::find(names_.begin(), names_.end(), name) != names_.end(); }

int Mesh::dimension(std::string_view name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  SHARDPROOF_CHECK(found != names_.end(), config_error, "the mesh has no dimension '{}'; it has {}", name, text());
  return static_cast<int>(found - names_.begin());
}

int Mesh::size_of(std::string_view name) const { return sizes_[static_cast<std::size_t>(dimension(name))]; }

std::vector<int> Mesh::coordinates(int rank) const {
  SHARDPROOF_CHECK(rank >= 0 && rank < size(), config_error, "rank {} does not lie in the mesh {}", rank, text());
  std::vector<int> result(sizes_.size());
  for (std::size_t i = sizes_.size(); i-- > 0;) {
    result[i] = rank % sizes_[i];
    rank /= sizes_[i];
  }
  return result;
}

int Mesh::coordinate(int rank, std::string_view name) const {
  return coordinates(rank)[static_cast<std::size_t>(dimension(name))];
}

int Mesh::rank_of(std::span<const int> coordinates) const {
  SHARDPROOF_CHECK(coordinates.size() == sizes_.size(), config_error, "{} coordinates in the mesh {}",
                   coordinates.size(), text());
  int rank = 0;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    SHARDPROOF_CHECK(coordinates[i] >= 0 && coordinates[i] < sizes_[i], config_error,
                     "coordinate {} of dimension '{}' in the mesh {}", coordinates[i], names_[i], text());
    rank = rank * sizes_[i] + coordinates[i];
  }
  return rank;
}

int Mesh::flat_index(int rank, std::span<const std::string_view> dimensions) const {
  const std::vector<int> at = coordinates(rank);
  int index = 0;
  for (const std::string_view name : dimensions) {
    const auto d = static_cast<std::size_t>(dimension(name));
    index = index * sizes_[d] + at[d];
  }
  return index;
}

std::vector<int> Mesh::group(int rank, std::span<const std::string_view> dimensions) const {
  std::vector<int> at = coordinates(rank);
  int count = 1;
  for (const std::string_view name : dimensions) count *= size_of(name);
  std::vector<int> members;
  for (int index = 0; index < count; ++index) {
    int rest = index;
    for (std::size_t i = dimensions.size(); i-- > 0;) {
      const auto d = static_cast<std::size_t>(dimension(dimensions[i]));
      at[d] = rest % sizes_[d];
      rest /= sizes_[d];
    }
    members.push_back(rank_of(at));
  }
  return members;
}

int Mesh::group_number(int rank, std::span<const std::string_view> dimensions) const {
  const std::vector<int> at = coordinates(rank);
  int number = 0;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (!names_dimension(dimensions, names_[i])) number = number * sizes_[i] + at[i];
  }
  return number;
}

std::string Mesh::text() const {
  std::string text;
  for (std::size_t i = 0; i < names_.size(); ++i)
    text += fmt::format("{}{}={}", i == 0 ? "" : ",", names_[i], sizes_[i]);
  return text;
}

std::unique_ptr<Communicator> split_along(Communicator& world, const Mesh& mesh,
                                          std::span<const std::string_view> dimensions, std::string_view name) {
  SHARDPROOF_CHECK(world.size() == mesh.size(), config_error,
                   "the mesh {} has {} ranks, but the communicator {} has {}", mesh.text(), mesh.size(), world.name(),
                   world.size());
  const int rank = world.rank();
  return world.split(mesh.group_number(rank, dimensions), mesh.flat_index(rank, dimensions), name);
}

}  // namespace shardproof
