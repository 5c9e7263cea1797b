// Each check of structure is fed a small tree that breaks its rule, and one that keeps it.
// The findings are compared whole, so that the message, too, is part of the contract.
#include <initializer_list>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tidy/checks.h"

namespace shardproof::tidy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A file that consists of the given quoted includes.
SourceFile including(std::string path, std::initializer_list<const char*> targets) {
  std::string text;
  for (const char* target : targets) text += std::string("#include \"") + target + "\"\n";
  return {std::move(path), text};
}

TEST(IncludeArrows, AcceptsWhatTheTableAllows) {
  EXPECT_THAT(
      texts_of(check_include_arrows({including("parallel/ring.cpp", {"parallel/ring.h", "core/tensor.h"}),
                                     including("models/flux.cpp", {"parallel/ring.h"}),
                                     including("verify/judge.cpp", {"reports/result.h", "models/flux.h"}),
                                     including("app/main.cpp", {"verify/judge.h", "real/mpi.h"}),
                                     including("tests/sim/sim_test.cpp", {"tests/support/cases.h", "app/main.h"}),
                                     including("bench/bench.cpp", {"tests/support/cases.h"}),
                                     {"core/tensor.h", ""},
                                     {"parallel/ring.h", ""},
                                     {"models/flux.h", ""},
                                     {"reports/result.h", ""},
                                     {"verify/judge.h", ""},
                                     {"real/mpi.h", ""},
                                     {"app/main.h", ""},
                                     {"tests/support/cases.h", ""}})),
      IsEmpty());
}

TEST(IncludeArrows, NamesAnIncludeAgainstTheArrows) {
  EXPECT_THAT(
      texts_of(check_include_arrows({including("core/tensor.cpp", {"core/tensor.h", "sim/fiber.h"}),
                                     including("sim/fiber.h", {"parallel/ring.h"}),
                                     including("verify/judge.cpp", {"real/mpi.h"}),
                                     including("models/flux.cpp", {"tests/support/cases.h"}),
                                     {"core/tensor.h", ""},
                                     {"parallel/ring.h", ""},
                                     {"real/mpi.h", ""},
                                     {"tests/support/cases.h", ""}})),
      ElementsAre("core/tensor.cpp:2: \"sim/fiber.h\" is against the arrows; core may use no other folder",
                  "sim/fiber.h:1: \"parallel/ring.h\" is against the arrows; sim may use: core",
                  "verify/judge.cpp:1: \"real/mpi.h\" is against the arrows; verify may use: core parallel models "
                  "reference sim reports",
                  "models/flux.cpp:1: \"tests/support/cases.h\" is against the arrows; models may use: core parallel"));
}

TEST(IncludeArrows, NamesAnIncludeThatIsNotWrittenFromTheRoot) {
  EXPECT_THAT(texts_of(check_include_arrows({including("core/tensor.cpp", {"tensor.h"}), {"core/tensor.h", ""}})),
              ElementsAre("core/tensor.cpp:1: \"tensor.h\" is no file of ours, named from the root"));
}

TEST(IncludeArrows, NamesOursInBrackets) {
  EXPECT_THAT(texts_of(check_include_arrows({{"sim/fiber.cpp", "#include <parallel/ring.h>\n"}})),
              ElementsAre("sim/fiber.cpp:1: <parallel/ring.h> is ours: use quotes"));
}

TEST(IncludeArrows, NamesCodeInAnUnknownFolder) {
  EXPECT_THAT(texts_of(check_include_arrows({{"utilities/misc.h", ""}})),
              ElementsAre("utilities/misc.h: code lies in a folder that the table of arrows does not know"));
}

TEST(IncludeArrows, NamesASharedBodyOutsideTheSourcesOfItsFolder) {
  EXPECT_THAT(texts_of(check_include_arrows({including("reference/a.cpp", {"reference/a_body.h"}),
                                             including("reference/a.h", {"reference/a_body.h"}),
                                             including("verify/b.cpp", {"reference/a_body.h"}),
                                             {"reference/a_body.h", ""}})),
              ElementsAre("reference/a.h:1: \"reference/a_body.h\" is shared by source files of reference/ only",
                          "verify/b.cpp:1: \"reference/a_body.h\" is shared by source files of reference/ only"));
}

TEST(IncludeCycles, AcceptsADiamond) {
  EXPECT_THAT(texts_of(check_include_cycles({including("core/a.h", {"core/b.h", "core/c.h"}),
                                             including("core/b.h", {"core/d.h"}),
                                             including("core/c.h", {"core/d.h"}),
                                             {"core/d.h", ""}})),
              IsEmpty());
}

TEST(IncludeCycles, NamesTheFilesOfACycleOnce) {
  EXPECT_THAT(texts_of(check_include_cycles({including("core/a.h", {"core/b.h"}), including("core/b.h", {"core/c.h"}),
                                             including("core/c.h", {"core/b.h"})})),
              ElementsAre("core/b.h: include cycle: core/b.h -> core/c.h -> core/b.h"));
}

TEST(IncludeCycles, NamesAFileThatIncludesItself) {
  EXPECT_THAT(texts_of(check_include_cycles({including("core/a.h", {"core/a.h"})})),
              ElementsAre("core/a.h: include cycle: core/a.h -> core/a.h"));
}

TEST(IncludeOrder, AcceptsOwnStandardThirdPartyOurs) {
  EXPECT_THAT(
      texts_of(check_include_order({{"sim/fiber.cpp",
                                     "#include \"sim/fiber.h\"\n#include <sys/mman.h>\n#include <vector>\n"
                                     "#include <boost/context/fiber.hpp>\n#include <omp.h>\n"
                                     "#include \"core/error.h\"\n"
                                     "#ifdef __SANITIZE_ADDRESS__\n#include <sanitizer/asan_interface.h>\n#endif\n"}})),
      IsEmpty());
}

TEST(IncludeOrder, AcceptsATestThatOpensWithItsSubject) {
  EXPECT_THAT(texts_of(check_include_order(
                  {{"tests/core/a_test.cpp", "#include \"core/a.h\"\n#include <vector>\n#include <gtest/gtest.h>\n"}})),
              IsEmpty());
  EXPECT_THAT(texts_of(check_include_order({{"tests/core/a.cpp", "#include \"core/a.h\"\n#include <vector>\n"}})),
              ElementsAre("tests/core/a.cpp:2: vector stands too late; the order is own header, standard, third party, "
                          "ours"));
}

TEST(IncludeOrder, NamesAnIncludeThatStandsTooLate) {
  constexpr const char* kRest = " stands too late; the order is own header, standard, third party, ours";
  EXPECT_THAT(texts_of(check_include_order({{"core/a.cpp", "#include <vector>\n#include \"core/a.h\"\n"},
                                            {"core/b.cpp", "#include <fmt/core.h>\n#include <vector>\n"},
                                            {"core/c.cpp", "#include \"core/error.h\"\n#include <unistd.h>\n"}})),
              ElementsAre(std::string("core/a.cpp:2: core/a.h") + kRest, std::string("core/b.cpp:2: vector") + kRest,
                          std::string("core/c.cpp:2: unistd.h") + kRest));
}

TEST(ThirdPartyHeaders, AcceptsThemInTheSourcesMadeForThem) {
  EXPECT_THAT(texts_of(check_third_party_headers({{"reference/eigen_device.cpp", "#include <Eigen/Dense>\n"},
                                                  {"reference/eigen_device_body.h", "#include <Eigen/Dense>\n"},
                                                  {"core/json.cpp", "#include <nlohmann/json.hpp>\n"},
                                                  {"app/main.cpp", "#include <CLI/CLI.hpp>\n"},
                                                  {"property_tests/generators.h", "#include <rapidcheck.h>\n"},
                                                  {"core/error.h", "#include <fmt/core.h>\n"}})),
              IsEmpty());
}

TEST(ThirdPartyHeaders, NamesThemInHeadersAndInOtherFolders) {
  EXPECT_THAT(texts_of(check_third_party_headers({{"reference/eigen_device.h", "#include <Eigen/Dense>\n"},
                                                  {"core/json.h", "\n#include <nlohmann/json.hpp>\n"},
                                                  {"models/flux.cpp", "#include <Eigen/Dense>\n"},
                                                  {"verify/judge.cpp", "#include <CLI/CLI.hpp>\n"},
                                                  {"parallel/ring.cpp", "#include <torch/torch.h>\n"},
                                                  {"sim/gpu.cpp", "#include <cuda_runtime.h>\n#include <nccl.h>\n"}})),
              ElementsAre("reference/eigen_device.h:1: <Eigen/Dense> is allowed in header files in none",
                          "core/json.h:2: <nlohmann/json.hpp> is allowed in header files in none",
                          "models/flux.cpp:1: <Eigen/Dense> is allowed in source files in those of: reference sim "
                          "tests property_tests bench",
                          "verify/judge.cpp:1: <CLI/CLI.hpp> is allowed in source files in those of: app",
                          "parallel/ring.cpp:1: <torch/torch.h> is allowed in source files in those of: real tests",
                          "sim/gpu.cpp:1: <cuda_runtime.h> is allowed in source files in those of: real tests",
                          "sim/gpu.cpp:2: <nccl.h> is allowed in source files in those of: real tests"));
}

TEST(LinkArrows, AcceptsWhatTheTableAllows) {
  EXPECT_THAT(
      texts_of(check_link_arrows({{"parallel/CMakeLists.txt",
                                   "shardproof_library(parallel\n  SOURCES ring.cpp  # not shardproof::sim\n"
                                   "  PUBLIC shardproof::core)\n"},
                                  {"tests/sim/CMakeLists.txt", "LINKS shardproof::sim shardproof::test_support"}})),
      IsEmpty());
}

TEST(LinkArrows, NamesALinkAgainstTheArrows) {
  EXPECT_THAT(
      texts_of(check_link_arrows({{"sim/CMakeLists.txt", "shardproof_library(sim\n  PUBLIC shardproof::real)\n"},
                                  {"core/CMakeLists.txt", "target_link_libraries(x shardproof::core shardproof::sim)"},
                                  {"models/CMakeLists.txt", "PUBLIC shardproof::test_support"}})),
      ElementsAre("sim/CMakeLists.txt:2: shardproof::real is against the arrows; sim may use: core",
                  "core/CMakeLists.txt:1: shardproof::sim is against the arrows; core may use no other folder",
                  "models/CMakeLists.txt:1: shardproof::test_support is against the arrows; models may use: core "
                  "parallel"));
}

TEST(ReachableFromCMake, AcceptsFilesListedInTheirFolderOrAbove) {
  EXPECT_THAT(
      texts_of(check_reachable_from_cmake({{"CMakeLists.txt", "add_subdirectory(core)\nadd_subdirectory(models)\n"},
                                           {"core/CMakeLists.txt", "shardproof_library(core SOURCES tensor.cpp)\n"},
                                           {"core/tensor.cpp", ""},
                                           {"models/CMakeLists.txt", "shardproof_library(models\n flux/flux.cpp)\n"},
                                           {"models/flux/flux.cpp", ""},
                                           {"models/flux/flux.h", ""}})),
      IsEmpty());
}

TEST(ReachableFromCMake, NamesAFileThatNothingCompiles) {
  EXPECT_THAT(texts_of(check_reachable_from_cmake({{"CMakeLists.txt", "add_subdirectory(core)\n"},
                                                   {"core/CMakeLists.txt", "SOURCES tensor.cpp  # shape.cpp\n"},
                                                   {"core/shape.cpp", ""},
                                                   {"core/sor.cpp", ""}})),
              ElementsAre("core/shape.cpp: no CMakeLists.txt lists this file, so nothing compiles it",
                          "core/sor.cpp: no CMakeLists.txt lists this file, so nothing compiles it"));
}

TEST(ReachableFromCMake, NamesAFolderThatIsNotAdded) {
  EXPECT_THAT(
      texts_of(check_reachable_from_cmake(
          {{"CMakeLists.txt", "add_subdirectory(core)\n"}, {"core/CMakeLists.txt", ""}, {"sim/CMakeLists.txt", ""}})),
      ElementsAre("sim/CMakeLists.txt: no CMakeLists.txt above adds this folder"));
}

}  // namespace
}  // namespace shardproof::tidy
