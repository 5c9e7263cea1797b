// The check of the lists of dependencies is fed lists that agree, and lists that differ in each way that it knows.
// A sample is three small files, as the check finds them in the tree.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tidy/checks.h"

namespace shardproof::tidy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr const char* kBuild =
    "function(shardproof_dependency name)\nendfunction()\n"
    "shardproof_dependency(\"fmt\" \"${fmt_VERSION}\" \"libfmt-dev\" needed \"text\")\n"
    "shardproof_dependency(\"MPI\" \"\" \"libmpi-dev mpi-bin\" optional \"real ranks\")\n";
constexpr const char* kSetup = "packages=(\n  libfmt-dev # text\n  libmpi-dev mpi-bin\n)\nother=(x)\n";
constexpr const char* kDocs =
    "| name | Debian package | version | needed for | what it does |\n|---|---|---|---|---|\n"
    "| fmt | libfmt-dev | 9.1.0 | needed | text |\n| MPI | libmpi-dev mpi-bin | - | optional | real ranks |\n";

std::vector<std::string> findings_of(const std::string& build, const std::string& setup, const std::string& docs) {
  std::vector<std::string> texts;
  for (const Finding& finding : check_dependency_lists(
           {{"cmake/ShardproofDependencies.cmake", build}, {"tools/setup.sh", setup}, {"docs/dependencies.md", docs}}))
    texts.push_back(finding.text());
  return texts;
}

TEST(DependencyLists, AreAcceptedWhenTheyAgree) { EXPECT_THAT(findings_of(kBuild, kSetup, kDocs), IsEmpty()); }

TEST(DependencyLists, AreComparedPackageByPackage) {
  EXPECT_THAT(
      findings_of(kBuild, "packages=(\n  libfmt-dev libmpi-dev extra-dev\n)\n", kDocs),
      ElementsAre("cmake/ShardproofDependencies.cmake:4: MPI needs the package mpi-bin, which tools/setup.sh does not "
                  "install",
                  "tools/setup.sh: the package extra-dev belongs to no dependency in "
                  "cmake/ShardproofDependencies.cmake"));
}

TEST(DependencyLists, AreComparedRowByRow) {
  EXPECT_THAT(findings_of(kBuild, kSetup,
                          "| fmt | libfmt-dev | 9.1.0 | optional | text |\n| torch | libtorch | 2 | needed | more |\n"),
              ElementsAre("docs/dependencies.md:1: fmt says 'libfmt-dev | optional | text'; "
                          "cmake/ShardproofDependencies.cmake says 'libfmt-dev | needed | text'",
                          "docs/dependencies.md: MPI is missing; cmake/ShardproofDependencies.cmake has it",
                          "docs/dependencies.md:2: torch is unknown to cmake/ShardproofDependencies.cmake"));
}

TEST(DependencyLists, AreMissedWhenTheyAreNotThereOrCannotBeRead) {
  EXPECT_EQ(check_dependency_lists({}).front().text(), "cmake/ShardproofDependencies.cmake: the file is missing");
  EXPECT_THAT(findings_of("shardproof_dependency(\"a\" \"b\")\n", "", ""),
              ElementsAre("cmake/ShardproofDependencies.cmake:1: 2 parts; expected name, version, packages, need, "
                          "purpose",
                          "cmake/ShardproofDependencies.cmake: no shardproof_dependency(..) stands here"));
}

}  // namespace
}  // namespace shardproof::tidy
