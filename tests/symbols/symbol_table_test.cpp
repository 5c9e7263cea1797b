// The libraries of the algorithms and of the models refer to no symbol of simulated or real ranks: read from the symbol
// tables of the libraries that were built; and the product's program has none of the zoo's faults. The checker itself
// is shown to find what it looks for.
#include "tests/symbols/symbol_table.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardproof::symbols {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

SymbolTable sample() {
  return table_from_nm("common",
                       "\n"
                       "ring.cpp.o:\n"
                       "0000000000000000 r .LC0\n"
                       "0000000000000010 T _Z4ringv\n"
                       "0000000000000020 t _Z5localv\n"
                       "0000000000000000 W _Z6inlinev\n"
                       "0000000000000000 V _ZTI4Ring\n"
                       "                 U _Z4opend\n"
                       "                 w _Z5maybev\n");
}

TEST(SymbolTableFromNm, TellsDefinitionsFromReferences) {
  const SymbolTable table = sample();
  EXPECT_THAT(table.strong, ElementsAre("_Z4ringv"));
  EXPECT_THAT(table.weak, ElementsAre("_Z6inlinev", "_ZTI4Ring"));
  EXPECT_THAT(table.referred, ElementsAre("_Z4opend", "_Z5maybev"));
}

TEST(SymbolsSharedWith, NamesAReferenceToABackend) {
  const SymbolTable backend = table_from_nm("sim", "0000000000000000 T _Z4opend\n0000000000000000 W _Z5maybev\n");
  EXPECT_THAT(
      symbols_shared_with(sample(), backend, {}),
      ElementsAre("common refers to open(double), which sim defines", "common refers to maybe(), which sim defines"));
}

TEST(SymbolsSharedWith, NamesWhatBothDefine) {
  const SymbolTable backend = table_from_nm("real", "0000000000000000 T _Z4ringv\n");
  EXPECT_THAT(symbols_shared_with(sample(), backend, {}), ElementsAre("common and real both define ring()"));
}

TEST(SymbolsSharedWith, LeavesWhatTheLibrariesBelowDefine) {
  const SymbolTable backend =
      table_from_nm("sim", "0000000000000000 W _Z4opend\n0000000000000000 W _Z6inlinev\n                 U _Z4ringv\n");
  EXPECT_THAT(symbols_shared_with(sample(), backend, {table_from_nm("core", "0000000000000000 T _Z4opend\n")}),
              IsEmpty());
}

struct Library {
  const char* name;
  const char* path;
};

void PrintTo(const Library& library, std::ostream* stream) { *stream << library.name; }

class LibraryOfBothWorlds : public testing::TestWithParam<Library> {};

TEST_P(LibraryOfBothWorlds, RefersToNothingOfSimulatedOrRealRanks) {
  const SymbolTable common = table_of_library(GetParam().name, GetParam().path);
  const SymbolTable core = table_of_library("core", SHARDPROOF_LIBRARY_core);
  // Read at all, and as what they are: each refers to the core, which defines what is asked of it.
  ASSERT_FALSE(common.strong.empty());
  ASSERT_TRUE(std::any_of(common.referred.begin(), common.referred.end(),
                          [&](const std::string& name) { return core.strong.contains(name); }));
  for (const Library& backend : {Library{"sim", SHARDPROOF_LIBRARY_sim}, Library{"real", SHARDPROOF_LIBRARY_real}}) {
    const SymbolTable table = table_of_library(backend.name, backend.path);
    ASSERT_FALSE(table.strong.empty()) << backend.name;
    EXPECT_THAT(symbols_shared_with(common, table, {core}), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(, LibraryOfBothWorlds,
                         testing::Values(Library{"parallel", SHARDPROOF_LIBRARY_parallel},
                                         Library{"models", SHARDPROOF_LIBRARY_models}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

// The same question about a library that does use simulated ranks has to be answered with a name.
TEST(LibraryOfVerification, IsSeenToReferToSimulatedRanks) {
  const SymbolTable verify = table_of_library("verify", SHARDPROOF_LIBRARY_verify);
  const SymbolTable core = table_of_library("core", SHARDPROOF_LIBRARY_core);
  const std::vector<std::string> found =
      symbols_shared_with(verify, table_of_library("sim", SHARDPROOF_LIBRARY_sim), {core});
  EXPECT_THAT(found, testing::Contains(testing::HasSubstr("refers to shardproof::")));
  EXPECT_THAT(found, testing::Each(testing::HasSubstr("which sim defines")));
}

// Faults that can be switched on are in the program of the zoo, and nowhere in the product's.
TEST(Program, HasNoSymbolOfTheZoo) {
  const auto of_zoo = testing::HasSubstr("10shardproof3zoo");
  EXPECT_THAT(table_of_library("shardproof-zoo", SHARDPROOF_ZOO_PROGRAM).strong, testing::Contains(of_zoo));
  const SymbolTable product = table_of_library("shardproof", SHARDPROOF_PROGRAM);
  EXPECT_THAT(product.strong, testing::Contains(testing::HasSubstr("10shardproof")));
  EXPECT_THAT(product.strong, testing::Not(testing::Contains(of_zoo)));
}

class ProgramWithNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (fake.empty()) GTEST_SKIP() << "this build has no NCCL, tools/setup_nccl.sh fetches it";
  }
  // The functions of NCCL and of the CUDA runtime.
  static Names of_libraries(const Names& names) {
    Names found;
    for (const std::string& name : names) {
      if (name.starts_with("nccl") || name.starts_with("cuda")) found.insert(name);
    }
    return found;
  }
  const std::string fake = SHARDPROOF_FAKE_NCCL;
};

// The product's own functions of these names call those of the library that is loaded; the stand-in for both is of
// tests.
TEST_F(ProgramWithNccl, HasNoSymbolOfTheFakeNccl) {
  const auto of_fake = testing::HasSubstr("9fake_nccl");
  const SymbolTable stand_in = table_of_library("fake_nccl", fake);
  EXPECT_THAT(stand_in.strong, testing::IsSupersetOf({"ncclSend", "ncclCommAbort", "cudaMalloc"}));
  EXPECT_THAT(stand_in.strong, testing::Contains(of_fake));
  EXPECT_THAT(table_of_library("shardproof", SHARDPROOF_PROGRAM).strong, testing::Not(testing::Contains(of_fake)));
  EXPECT_THAT(table_of_library("real", SHARDPROOF_LIBRARY_real).strong, testing::Not(testing::Contains(of_fake)));
}

// No more and no fewer than it calls: all of them, and nobody else's, are in the library of real ranks.
TEST_F(ProgramWithNccl, DefinesTheFunctionsOfTheLibrariesThatItLoads) {
  const SymbolTable real = table_of_library("real", SHARDPROOF_LIBRARY_real);
  EXPECT_THAT(of_libraries(real.strong), testing::IsSupersetOf({"ncclSend", "ncclCommAbort", "cudaMalloc"}));
  EXPECT_EQ(of_libraries(real.strong), of_libraries(real.referred));
  EXPECT_EQ(of_libraries(table_of_library("shardproof", SHARDPROOF_PROGRAM).strong), of_libraries(real.strong));
}

// Of the libraries that the loader brings before main, or of those that they need, none is NCCL, CUDA or LibTorch; and
// the functions above are not seen by libraries that are loaded later, which have the real ones.
TEST_F(ProgramWithNccl, StartsWithoutTheLibrariesThatItLoads) {
  const std::string libraries = output_of(fmt::format("LD_TRACE_LOADED_OBJECTS=1 '{}'", SHARDPROOF_PROGRAM));
  EXPECT_THAT(libraries, testing::HasSubstr("libstdc++.so"));
  for (const char* name : {"nccl", "cuda", "cupti", "torch"})
    EXPECT_THAT(libraries, testing::Not(testing::HasSubstr(name)));
  const SymbolTable exported =
      table_from_nm("shardproof", output_of(fmt::format("'{}' -D '{}'", SHARDPROOF_NM, SHARDPROOF_PROGRAM)));
  EXPECT_THAT(exported.referred, testing::Contains(testing::StartsWith("dlopen")));
  EXPECT_THAT(of_libraries(exported.strong), IsEmpty());
}

}  // namespace
}  // namespace shardproof::symbols
