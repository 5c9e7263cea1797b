// What the tidy checks stand on: finding the files, and telling code from comments and literals.
// A rule that read a sample inside a string as code would report its own tests.
#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tidy/source_tree.h"

namespace shardproof::tidy {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(SourceFile, KnowsFolderExtensionAndKind) {
  const SourceFile header{"tests/tidy/checks.h", ""};
  EXPECT_EQ(header.folder(), "tests");
  EXPECT_EQ(header.extension(), ".h");
  EXPECT_TRUE(header.is_header());
  EXPECT_TRUE(header.is_code());
  const SourceFile script{".ci/run", ""};
  EXPECT_EQ(script.extension(), "");
  EXPECT_FALSE(script.is_code());
  const SourceFile kernel{"real/kernel.cu", ""};
  EXPECT_TRUE(kernel.is_code());
  EXPECT_FALSE(kernel.is_header());
  EXPECT_EQ(kernel.own_header(), "real/kernel.h");
  EXPECT_EQ((SourceFile{"README.md", ""}.folder()), "");
}

TEST(SourceTree, HoldsTheRepositoryAndNoBuildTree) {
  const SourceTree tree = read_tree(SHARDPROOF_SOURCE_DIR);
  const auto path = [](const auto& matcher) { return Field(&SourceFile::path, matcher); };
  for (const char* expected : {"core/tensor.h", "core/tensor.cpp", "tests/tidy/source_tree_test.cpp", "CMakeLists.txt",
                               "cmake/ShardproofBuild.cmake", "tools/setup.sh", ".ci/run"}) {
    EXPECT_THAT(tree, Contains(path(expected)));
  }
  EXPECT_THAT(tree, Not(Contains(path(StartsWith("build/")))));
  EXPECT_THAT(tree, Not(Contains(path(StartsWith(".git/")))));
  EXPECT_TRUE(std::ranges::is_sorted(tree, {}, &SourceFile::path));
}

TEST(LinesOf, CountsALineThatIsNotEnded) {
  EXPECT_THAT(lines_of("a\n\nb"), ElementsAre("a", "", "b"));
  EXPECT_THAT(lines_of("a\n"), ElementsAre("a"));
  EXPECT_THAT(lines_of(""), IsEmpty());
}

TEST(WordsOf, SeparatesAtBlanksLineEndsAndParentheses) {
  EXPECT_THAT(words_of("foreach(folder core\n  sim)\n"), ElementsAre("foreach", "folder", "core", "sim"));
  EXPECT_TRUE(lists("core parallel", "core"));
  EXPECT_FALSE(lists("core parallel", "par"));
  EXPECT_FALSE(lists("", "core"));
}

TEST(CodeOnly, BlanksCommentsAndKeepsColumns) {
  EXPECT_EQ(code_only("int a; // b\nint c; /* d\ne */ int f;"), "int a;     \nint c;     \n     int f;");
}

TEST(CodeOnly, BlanksLiteralsWithEscapedQuotes) {
  EXPECT_EQ(code_only(R"(f("a\"b", 'c', '\'');)"), "f(      ,    ,     );");
}

TEST(CodeOnly, BlanksRawStringsOverLines) {
  EXPECT_EQ(code_only("auto s = R\"x(a\n\")\" //)x\"; int y;"), "auto s = R    \n         ; int y;");
}

TEST(CodeOnly, KeepsDigitSeparators) {
  EXPECT_EQ(code_only("int n = 65'536; char c = 'x';"), "int n = 65'536; char c =    ;");
}

TEST(CodeOnly, EndsAnOpenLiteralWithItsLine) { EXPECT_EQ(code_only("\"abc\nint a;"), "    \nint a;"); }

TEST(IncludesOf, ReadsQuotedAndBracketedOnesWithTheirLines) {
  const SourceFile file{"core/a.cpp",
                        "#include \"core/a.h\"\n\n#include <vector>  // why\n// #include <map>\n"
                        "const char* s = R\"(\n#include <set>\n)\";\n"
                        "#ifdef __SANITIZE_ADDRESS__\n#include <sanitizer/asan_interface.h>\n#endif\n"};
  const std::vector<Include> includes = includes_of(file);
  ASSERT_EQ(includes.size(), 3U);
  EXPECT_EQ(includes[0].target, "core/a.h");
  EXPECT_TRUE(includes[0].quoted);
  EXPECT_EQ(includes[0].line, 1U);
  EXPECT_EQ(includes[1].target, "vector");
  EXPECT_FALSE(includes[1].quoted);
  EXPECT_EQ(includes[1].line, 3U);
  EXPECT_FALSE(includes[1].conditional);
  EXPECT_EQ(includes[2].target, "sanitizer/asan_interface.h");
  EXPECT_TRUE(includes[2].conditional);
}

}  // namespace
}  // namespace shardproof::tidy
