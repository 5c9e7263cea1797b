// Meshes: the examples of the specification, custom meshes with replicas in any order of dimensions, sub-groups on
// simulated ranks, and every refusal.
#include "core/mesh.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/rank_results.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;

constexpr std::array<std::string_view, 2> kFlat{"ring", "ulysses"};
constexpr std::array<std::string_view, 1> kRing{"ring"};
constexpr std::array<std::string_view, 1> kUlysses{"ulysses"};

// The groups along some dimensions, each once, in order of their first member.
std::vector<std::vector<int>> groups(const Mesh& mesh, std::span<const std::string_view> dimensions) {
  std::vector<std::vector<int>> result;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int> group = mesh.group(rank, dimensions);
    if (std::find(result.begin(), result.end(), group) == result.end()) result.push_back(group);
  }
  return result;
}

TEST(Mesh, FillsRowMajorWithTheLastDimensionFastest) {
  const Mesh mesh({"ring", "ulysses"}, {2, 2});
  EXPECT_EQ(mesh.size(), 4);
  EXPECT_EQ(mesh.coordinates(1), (std::vector{0, 1}));
  EXPECT_EQ(mesh.coordinates(2), (std::vector{1, 0}));
  EXPECT_EQ(mesh.rank_of(std::array{1, 0}), 2);
  EXPECT_EQ(mesh.coordinate(3, "ring"), 1);
  EXPECT_EQ(mesh.text(), "ring=2,ulysses=2");
}

TEST(Mesh, HasTheGroupsOfTheTwoByTwoExample) {
  const Mesh mesh({"ring", "ulysses"}, {2, 2});
  EXPECT_THAT(groups(mesh, kUlysses), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(groups(mesh, kRing), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_THAT(groups(mesh, kFlat), ElementsAre(ElementsAre(0, 1, 2, 3)));
}

TEST(Mesh, GivesEachReplicaItsOwnFlatGroup) {
  EXPECT_THAT(Mesh({"ring", "ulysses", "fsdp"}, {1, 2, 2}).group(0, kFlat), ElementsAre(0, 2));
  EXPECT_THAT(Mesh({"fsdp", "ring", "ulysses"}, {2, 1, 2}).group(0, kFlat), ElementsAre(0, 1));
  EXPECT_THAT(Mesh({"tp", "ring", "ulysses"}, {1, 1, 2}).group(0, kFlat), ElementsAre(0, 1));
}

TEST(Mesh, HasTheRingGroupsOfTheDocumentedExampleOfEightRanks) {
  const Mesh mesh({"ring", "ulysses", "fsdp"}, {2, 1, 4});
  EXPECT_THAT(groups(mesh, kRing),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(groups(mesh, kFlat), testing::ElementsAreArray(groups(mesh, kRing)));
  EXPECT_EQ(mesh.group_number(6, kRing), 2);
}

TEST(Mesh, OrdersTheFlatGroupByRingThenUlyssesWhereverTheDimensionsStand) {
  const Mesh mesh({"ulysses", "dp", "ring"}, {3, 2, 2});
  // rank = (ulysses * 2 + dp) * 2 + ring; flat order walks ring slowest.
  EXPECT_THAT(mesh.group(0, kFlat), ElementsAre(0, 4, 8, 1, 5, 9));
  EXPECT_THAT(mesh.group(2, kFlat), ElementsAre(2, 6, 10, 3, 7, 11));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    EXPECT_EQ(mesh.flat_index(rank, kFlat), mesh.coordinate(rank, "ring") * 3 + mesh.coordinate(rank, "ulysses"));
    EXPECT_EQ(mesh.group_number(rank, kFlat), mesh.coordinate(rank, "dp"));
  }
}

TEST(Mesh, SplitsTheWorldIntoTheSameGroups) {
  const Mesh mesh({"ulysses", "dp", "ring"}, {2, 2, 2});
  for (const std::span<const std::string_view> dimensions :
       {std::span<const std::string_view>(kFlat), std::span<const std::string_view>(kRing),
        std::span<const std::string_view>(kUlysses)}) {
    const auto members = rank_results(8, [&](Communicator& world) {
      const auto group = split_along(world, mesh, dimensions, "part");
      return std::pair(std::vector<int>(group->members().begin(), group->members().end()), group->rank());
    });
    for (int rank = 0; rank < 8; ++rank) {
      const auto& [group, position] = members[static_cast<std::size_t>(rank)];
      EXPECT_EQ(group, mesh.group(rank, dimensions)) << rank;
      EXPECT_EQ(position, mesh.flat_index(rank, dimensions)) << rank;
    }
  }
}

TEST(Mesh, ReadsItsTextForm) {
  const Mesh mesh = Mesh::parse("ring=2,ulysses=1,fsdp=4");
  EXPECT_EQ(mesh, Mesh({"ring", "ulysses", "fsdp"}, {2, 1, 4}));
  EXPECT_EQ(Mesh::parse(mesh.text()), mesh);
  EXPECT_TRUE(mesh.has("fsdp"));
  EXPECT_FALSE(mesh.has("tp"));
}

TEST(Mesh, RefusesTextThatIsNoMesh) {
  const auto expected = [](std::string_view text, std::string_view item) {
    return thrown(ErrorKind::config_error, "mesh '" + std::string(text) + "': '" + std::string(item) +
                                               "' is not of the form name=size, as in ring=2,ulysses=1");
  };
  EXPECT_EQ(thrown_by([] { Mesh::parse(""); }), expected("", ""));
  EXPECT_EQ(thrown_by([] { Mesh::parse("ring"); }), expected("ring", "ring"));
  EXPECT_EQ(thrown_by([] { Mesh::parse("ring=2,"); }), expected("ring=2,", ""));
  EXPECT_EQ(thrown_by([] { Mesh::parse("ring=two"); }), expected("ring=two", "ring=two"));
  EXPECT_EQ(thrown_by([] { Mesh::parse("ring=2x"); }), expected("ring=2x", "ring=2x"));
  EXPECT_EQ(thrown_by([] { Mesh::parse("ring=99999999999"); }), expected("ring=99999999999", "ring=99999999999"));
}

TEST(Mesh, RefusesNamesAndSizesThatCannotBe) {
  EXPECT_EQ(thrown_by([] { Mesh::parse("ring=0"); }),
            thrown(ErrorKind::config_error, "mesh dimension 'ring' has size 0; it must be at least 1"));
  EXPECT_EQ(thrown_by([] { Mesh::parse("ring=2,ring=2"); }),
            thrown(ErrorKind::config_error, "mesh dimension 'ring' is named twice"));
  EXPECT_EQ(thrown_by([] { Mesh::parse("=2"); }), thrown(ErrorKind::config_error, "a mesh dimension has no name"));
  EXPECT_EQ(thrown_by([] { Mesh({"a"}, {1, 2}); }), thrown(ErrorKind::config_error, "a mesh of 1 names and 2 sizes"));
  EXPECT_EQ(thrown_by([] { Mesh::parse("a=2000000000,b=2000000000,c=2000000000"); }),
            thrown(ErrorKind::config_error, "a mesh of more than 1048576 ranks is not supported"));
}

TEST(Mesh, RefusesQuestionsAboutWhatItDoesNotHave) {
  const Mesh mesh = Mesh::parse("ring=2,ulysses=1");
  EXPECT_EQ(thrown_by([&] { mesh.size_of("tp"); }),
            thrown(ErrorKind::config_error, "the mesh has no dimension 'tp'; it has ring=2,ulysses=1"));
  EXPECT_EQ(thrown_by([&] { mesh.coordinates(2); }),
            thrown(ErrorKind::config_error, "rank 2 does not lie in the mesh ring=2,ulysses=1"));
  EXPECT_EQ(thrown_by([&] { mesh.rank_of(std::array{0}); }),
            thrown(ErrorKind::config_error, "1 coordinates in the mesh ring=2,ulysses=1"));
  EXPECT_EQ(thrown_by([&] { mesh.rank_of(std::array{2, 0}); }),
            thrown(ErrorKind::config_error, "coordinate 2 of dimension 'ring' in the mesh ring=2,ulysses=1"));
}

TEST(Mesh, RefusesToSplitAWorldOfAnotherSize) {
  const auto error = thrown_by([] {
    run_ranks({.world_size = 3},
              [](Communicator& world) { (void)split_along(world, Mesh::parse("ring=2,ulysses=1"), kRing, "ring"); });
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::config_error);
  EXPECT_THAT(error->message,
              testing::StartsWith("rank 0: the mesh ring=2,ulysses=1 has 2 ranks, but the communicator world has 3"));
}

}  // namespace
}  // namespace shardproof::test
