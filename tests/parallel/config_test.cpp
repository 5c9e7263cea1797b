// Configurations: the defaults of the API, every problem in the order of the specification, degrees and meshes as they
// act.
#include "parallel/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

template <class Config>
std::vector<std::string> messages(const Config& config) {
  std::vector<std::string> result;
  for (const Problem& problem : validate(config)) {
    EXPECT_EQ(problem.kind, ErrorKind::config_error) << problem.message;
    result.push_back(problem.message);
  }
  return result;
}

TEST(ContextParallelConfig, HasTheDefaultsOfTheApi) {
  const ContextParallelConfig config;
  EXPECT_FALSE(config.ring_degree.has_value());
  EXPECT_FALSE(config.ulysses_degree.has_value());
  EXPECT_TRUE(config.convert_to_fp32);
  EXPECT_EQ(config.rotate_method, "allgather");
  EXPECT_FALSE(config.mesh.has_value());
  EXPECT_FALSE(config.ulysses_anything);
  EXPECT_FALSE(config.ring_anything);
  EXPECT_EQ(TensorParallelConfig{}.tp_degree, 1);
}

TEST(ContextParallelConfig, AcceptsEveryMode) {
  EXPECT_THAT(messages(ContextParallelConfig{.ulysses_degree = 2}), IsEmpty());
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 2, .rotate_method = "alltoall"}), IsEmpty());
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 3}), IsEmpty());
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 1, .ulysses_degree = 2, .ulysses_anything = true}),
              IsEmpty());
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 2, .ring_anything = true}), IsEmpty());
}

TEST(ContextParallelConfig, NeedsMoreThanOneRank) {
  const std::string expected = "either ring_degree or ulysses_degree must be greater than 1 (both are 1)";
  EXPECT_THAT(messages(ContextParallelConfig{}), ElementsAre(expected));
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 1, .ulysses_degree = 1}), ElementsAre(expected));
}

TEST(ContextParallelConfig, RefusesDegreesBelowOne) {
  const std::string ring = "ring_degree is 0; it must be greater than or equal to 1";
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 0, .ulysses_degree = 2}), ElementsAre(ring));
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 0, .ulysses_degree = 1}), ElementsAre(ring));
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 0}), ElementsAre(ring));
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 2, .ulysses_degree = -1}),
              ElementsAre("ulysses_degree is -1; it must be greater than or equal to 1"));
}

TEST(ContextParallelConfig, RefusesAnUnknownRotateMethodAndListsBoth) {
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 2, .rotate_method = "ring"}),
              ElementsAre("rotate_method is 'ring'; it must be 'allgather' or 'alltoall'"));
}

TEST(ContextParallelConfig, KeepsTheAnythingModesToOneDegree) {
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 2, .ulysses_anything = true}),
              ElementsAre("ulysses_anything needs ulysses_degree greater than 1 (it is 1)",
                          "ulysses_anything needs ring_degree 1 (it is 2)"));
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2, .ulysses_anything = true}),
              ElementsAre("ulysses_anything needs ring_degree 1 (it is 2)"));
  EXPECT_THAT(messages(ContextParallelConfig{.ulysses_degree = 2, .ring_anything = true}),
              ElementsAre("ring_anything needs ring_degree greater than 1 (it is 1)",
                          "ring_anything needs ulysses_degree 1 (it is 2)"));
  EXPECT_THAT(messages(ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2, .ring_anything = true}),
              ElementsAre("ring_anything needs ulysses_degree 1 (it is 2)"));
}

TEST(ContextParallelConfig, ListsAllProblemsInTheOrderOfTheSpecification) {
  const ContextParallelConfig config{.ring_degree = 0,
                                     .ulysses_degree = 1,
                                     .rotate_method = "p2p",
                                     .mesh = Mesh::parse("ring=1,dp=2"),
                                     .ulysses_anything = true,
                                     .ring_anything = true};
  EXPECT_THAT(
      messages(config),
      ElementsAre(
          "ring_degree is 0; it must be greater than or equal to 1",
          "rotate_method is 'p2p'; it must be 'allgather' or 'alltoall'",
          "ulysses_anything needs ulysses_degree greater than 1 (it is 1)",
          "ring_anything needs ring_degree greater than 1 (it is 0)",
          "ulysses_anything and ring_anything exclude each other",
          "ring_degree is 0, but the mesh 'ring=1,dp=2' has ring=1; they must agree (or leave the degree unset)",
          "mesh: 'ring=1,dp=2' has no dimension 'ulysses'; a custom mesh must contain 'ring' and 'ulysses', of "
          "size 1 if unused, as in 'ring=1,dp=2,ulysses=1'"));
}

TEST(ContextParallelConfig, SaysOnceWhatItsMeshLacks) {
  const ContextParallelConfig config{.ring_degree = 2, .mesh = Mesh::parse("dp=2")};
  EXPECT_THAT(
      messages(config),
      ElementsAre("mesh: 'dp=2' has no dimension 'ring' and no 'ulysses'; a custom mesh must contain 'ring' and "
                  "'ulysses', of size 1 if unused, as in 'dp=2,ring=2,ulysses=1'"));
  const ParallelConfig both{.context_parallel_config = ContextParallelConfig{.mesh = Mesh::parse("tp=2,ring=2")},
                            .tensor_parallel_config = TensorParallelConfig{.mesh = Mesh::parse("tp=2,ring=2")}};
  EXPECT_THAT(messages(both),
              ElementsAre("mesh: 'tp=2,ring=2' has no dimension 'ulysses'; a custom mesh must contain 'ring' and "
                          "'ulysses', of size 1 if unused, as in 'tp=2,ring=2,ulysses=1'"));
}

TEST(ContextParallelConfig, TakesUnsetDegreesFromTheMesh) {
  const ContextParallelConfig config{.mesh = Mesh::parse("fsdp=4,ulysses=3,ring=2")};
  EXPECT_THAT(messages(config), IsEmpty());
  EXPECT_EQ(effective_ring_degree(config), 2);
  EXPECT_EQ(effective_ulysses_degree(config), 3);
  EXPECT_EQ(effective_mesh(config).size(), 24);
  EXPECT_EQ(mode_name(config), "unified");
}

TEST(ContextParallelConfig, RefusesDegreesThatDifferFromTheMesh) {
  // What the original runs without a word, with wrong numbers.
  EXPECT_THAT(messages(ContextParallelConfig{.ulysses_degree = 2, .mesh = Mesh::parse("ring=2,ulysses=1")}),
              ElementsAre("ulysses_degree is 2, but the mesh 'ring=2,ulysses=1' has ulysses=1; they must agree (or "
                          "leave the degree unset)"));
}

TEST(ContextParallelConfig, LaysTheDefaultMeshOutRingByUlysses) {
  EXPECT_EQ(effective_mesh({.ring_degree = 2, .ulysses_degree = 3}), Mesh({"ring", "ulysses"}, {2, 3}));
  EXPECT_EQ(effective_mesh({.ulysses_degree = 3}), Mesh({"ring", "ulysses"}, {1, 3}));
}

TEST(ContextParallelConfig, NamesItsMode) {
  EXPECT_EQ(mode_name(ContextParallelConfig{.ulysses_degree = 2}), "ulysses");
  EXPECT_EQ(mode_name(ContextParallelConfig{.ulysses_degree = 2, .ulysses_anything = true}), "ulysses_anything");
  EXPECT_EQ(mode_name(ContextParallelConfig{.ring_degree = 2}), "ring");
  EXPECT_EQ(mode_name(ContextParallelConfig{.ring_degree = 2, .ring_anything = true}), "ring_anything");
  EXPECT_EQ(mode_name(ContextParallelConfig{.ring_degree = 2, .ulysses_degree = 2}), "unified");
  EXPECT_EQ(mode_name(ContextParallelConfig{}), "none");
}

TEST(TensorParallelConfig, RefusesADegreeBelowOneAndAcceptsOne) {
  EXPECT_THAT(messages(TensorParallelConfig{}), IsEmpty());
  EXPECT_THAT(messages(TensorParallelConfig{.tp_degree = 0}),
              ElementsAre("tp_degree is 0; it must be greater than or equal to 1"));
}

TEST(TensorParallelConfig, LetsAMeshOverrideTheDegree) {
  EXPECT_EQ(effective_tp_degree({.tp_degree = 7, .mesh = Mesh::parse("x=2")}), 2);
  EXPECT_EQ(effective_tp_degree({.mesh = Mesh::parse("x=2,y=3")}), 6);
  EXPECT_EQ(effective_tp_degree({.mesh = Mesh::parse("tp=2,ring=1,ulysses=3")}), 2);
  EXPECT_EQ(effective_tp_degree({.tp_degree = 3}), 3);
}

TEST(ParallelConfig, JudgesBothPartsAndAcceptsNeither) {
  EXPECT_THAT(messages(ParallelConfig{}), IsEmpty());
  const ParallelConfig both{.context_parallel_config = ContextParallelConfig{},
                            .tensor_parallel_config = TensorParallelConfig{.tp_degree = -2}};
  EXPECT_THAT(messages(both), ElementsAre("either ring_degree or ulysses_degree must be greater than 1 (both are 1)",
                                          "tp_degree is -2; it must be greater than or equal to 1"));
}

TEST(Problems, ThrowTheFirstAsTheHeadlineAndNameTheOthers) {
  throw_problems({});
  EXPECT_EQ(thrown_by([] { throw_problems({{ErrorKind::plan_error, "one"}, {ErrorKind::config_error, "two"}}); }),
            thrown(ErrorKind::plan_error, "one; also: two"));
  EXPECT_THROW(throw_problems({{ErrorKind::plan_error, "one"}}), Refusal);
}

TEST(Problems, NameFourAndCountTheRest) {
  const auto message_of = [](int count) {
    std::vector<Problem> problems;
    for (int i = 1; i <= count; ++i) problems.push_back({ErrorKind::plan_error, fmt::format("p{}", i)});
    return thrown_by([&] { throw_problems(problems); })->message;
  };
  EXPECT_EQ(message_of(4), "p1; also: p2; also: p3; also: p4");
  EXPECT_EQ(message_of(5), "p1; also: p2; also: p3; also: p4; and 1 more");
  EXPECT_EQ(message_of(33), "p1; also: p2; also: p3; also: p4; and 29 more");
}

}  // namespace
}  // namespace shardproof::test
