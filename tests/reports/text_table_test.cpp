// Alignment, dropped columns, wrapping and colour of the tables.
// Widths count characters, so that names in other scripts keep the columns straight.
#include "reports/text_table.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

using Align = TextTable::Align;
using Colour = TextTable::Colour;

TEST(TextTable, AlignsColumnsAndEndsNoLineWithBlanks) {
  TextTable table({{"name"}, {"size", Align::right}, {"note"}});
  table.add({{"a"}, {"5"}, {""}});
  table.add({{"longer"}, {"12345"}, {"x"}});
  EXPECT_EQ(table.text(Colour::off),
            "name     size  note\n"
            "a           5\n"
            "longer  12345  x\n");
}

TEST(TextTable, LeavesOutColumnsThatAreEmptyInEveryRow) {
  TextTable table({{"a"}, {"never"}, {"b"}});
  table.add({{"1"}, {""}, {"2"}});
  EXPECT_EQ(table.text(Colour::off), "a  b\n1  2\n");
}

TEST(TextTable, KeepsColumnsStraightAcrossEmptyCells) {
  TextTable table({{"a"}, {"b", Align::right}, {"c"}});
  table.add({{""}, {""}, {"z"}});
  table.add({{"x"}, {"22"}, {"w"}});
  EXPECT_EQ(table.text(Colour::off), "a   b  c\n       z\nx  22  w\n");
}

TEST(TextTable, CountsCharactersNotBytesAndNoColour) {
  TextTable table({{"a"}, {"b"}});
  table.add({{"h\u00f6he", Tone::good}, {"1"}});
  table.add({{"four"}, {"2"}});
  EXPECT_EQ(table.text(Colour::off), "a     b\nh\u00f6he  1\nfour  2\n");
  EXPECT_NE(table.text(Colour::on).find("\x1b[32mh\u00f6he\x1b[0m  1\n"), std::string::npos) << table.text(Colour::on);
}

TEST(TextTable, HasNoEscapeCodesWithoutColour) {
  TextTable table({{"a"}});
  table.add({{"x", Tone::bad}});
  EXPECT_EQ(table.text(Colour::off).find('\x1b'), std::string::npos);
  EXPECT_NE(table.text(Colour::on).find("\x1b[1;31mx\x1b[0m"), std::string::npos);
}

TEST(Wrapped, BreaksAtBlanksAndIndents) {
  EXPECT_EQ(wrapped("one two three four", "- ", 2, 10), "- one two\n  three\n  four\n");
}

TEST(Wrapped, KeepsAWordThatIsTooLong) {
  EXPECT_EQ(wrapped("a incomprehensible b", "", 0, 6), "a\nincomprehensible\nb\n");
}

TEST(Wrapped, GivesOneLineForNoWords) { EXPECT_EQ(wrapped("", "- ", 2, 10), "- \n"); }

TEST(WidthOf, CountsABrokenByteAsOne) {
  EXPECT_EQ(width_of("a\xffz"), 3U);
  EXPECT_EQ(width_of("\u00e4\u4e2d"), 2U);
}

}  // namespace
}  // namespace shardproof
