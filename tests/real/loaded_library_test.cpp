// Where a library is looked for, and what is said when no place has it or it is not the one that was expected. The
// libraries of these tests are those of C, which every process has.
#include "real/loaded_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/files/test_files.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

using test::thrown_by;
using testing::HasSubstr;

constexpr const char* kVariable = "SHARDPROOF_TEST_LIBRARY";

class LoadedLibraryTest : public testing::Test {
 protected:
  ~LoadedLibraryTest() override { ::unsetenv(kVariable); }

  static LibrarySearch search(std::vector<std::string> places) {
    return {.library = "the library",
            .expected = "a library of tests",
            .advice = "have it",
            .variable = kVariable,
            .places = std::move(places)};
  }
  static std::string message(const LibrarySearch& search) {
    const auto error = thrown_by([&] { const LoadedLibrary library(search); });
    EXPECT_TRUE(!error || error->kind == search.error);
    return error ? error->message : "loaded";
  }
  static std::string path_of_c() {
    Dl_info own{};
    EXPECT_NE(::dladdr(reinterpret_cast<void*>(&::getenv), &own), 0);
    return own.dli_fname;
  }
  static std::string path_of_mathematics() {
    Dl_info own{};
    EXPECT_NE(::dladdr(::dlsym(::dlopen("libm.so.6", RTLD_NOW), "cbrt"), &own), 0);
    return own.dli_fname;
  }
};

TEST_F(LoadedLibraryTest, IsTheFirstThatIsFound) {
  const test::TemporaryFolder folder;
  const std::string copy = (folder / "copy.so").string();
  std::filesystem::copy_file(path_of_mathematics(), copy);
  const LoadedLibrary library(search({"libnosuch.so.1", "/nowhere/library.so", copy, path_of_c()}));
  EXPECT_EQ(library.place(), "'" + copy + "'");
  double (*const root)(double) = library.function("cbrt");
  EXPECT_DOUBLE_EQ(root(27.0), 3.0);
}

TEST_F(LoadedLibraryTest, IsTheOneThatTheProcessHasAlready) {
  ASSERT_NE(::dlopen("libm.so.6", RTLD_NOW), nullptr);
  const LoadedLibrary library(search({path_of_c(), "libnosuch.so.1", "libm.so.6"}));
  EXPECT_EQ(library.place(), "'libm.so.6'");
}

TEST_F(LoadedLibraryTest, IsTheOneThatTheVariableNamesAlone) {
  ::setenv(kVariable, path_of_c().c_str(), 1);
  EXPECT_EQ(LoadedLibrary(search({"libm.so.6"})).place(), "'" + path_of_c() + "'");
  ::setenv(kVariable, "/nowhere/library.so", 1);
  EXPECT_EQ(message(search({"libm.so.6"})),
            "the library cannot be loaded (/nowhere/library.so: cannot open shared object file: No such file or "
            "directory); have it, or say where it is with SHARDPROOF_TEST_LIBRARY");
  ::setenv(kVariable, "", 1);
  EXPECT_THAT(message(search({"libm.so.6"})), HasSubstr("cannot be loaded ('' names no file)"));
}

TEST_F(LoadedLibraryTest, NamesAllPlacesWhereItIsNot) {
  LibrarySearch missing = search({"libnosuch.so.1", "/nowhere/library.so"});
  EXPECT_THAT(message(missing),
              testing::ContainsRegex("libnosuch.so.1: [^;]*; /nowhere/library.so: [^;]*\\); have it"));
  missing.error = ErrorKind::file_error;
  EXPECT_THAT(message(missing), HasSubstr("the library cannot be loaded"));
}

TEST_F(LoadedLibraryTest, HasNoFunctionsButItsOwn) {
  const LoadedLibrary library(search({"libm.so.6"}));
  const auto error = thrown_by([&] { library.function("no_such_function"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::unsupported_error);
  EXPECT_EQ(error->message,
            "'libm.so.6' has no function no_such_function; expected a library of tests; "
            "SHARDPROOF_TEST_LIBRARY may say where that is");
}

TEST_F(LoadedLibraryTest, IsRefusedIfTheFileIsNoWholeLibrary) {
  const test::TemporaryFolder folder;
  const std::string text = (folder / "text.so").string(), half = (folder / "half.so").string();
  test::put(text, "no library");
  EXPECT_THAT(message(search({text})), HasSubstr("cannot be loaded (" + text + ": "));
  std::filesystem::copy_file(path_of_c(), half);
  std::filesystem::resize_file(half, std::filesystem::file_size(half) / 2);
  EXPECT_THAT(message(search({half})), HasSubstr("cannot be loaded ('" + half + "' is cut short: it has "));
  EXPECT_THAT(message(search({folder.path().string()})),
              HasSubstr("cannot be loaded ('" + folder.path().string() + "' is no regular file)"));
  // The loader has its own copy of this variable, from when the program started: only what is looked at before changes.
  const char* const before = std::getenv("LD_LIBRARY_PATH");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("LD_LIBRARY_PATH", (":/nowhere:" + folder.path().string() + ":" + kept).c_str(), 1);
  EXPECT_THAT(message(search({"half.so"})), HasSubstr("cannot be loaded ('" + half + "' is cut short: it has "));
  EXPECT_EQ(message(search({"libm.so.6"})), "loaded");
  before == nullptr ? ::unsetenv("LD_LIBRARY_PATH") : ::setenv("LD_LIBRARY_PATH", kept.c_str(), 1);
}

}  // namespace
}  // namespace shardproof
