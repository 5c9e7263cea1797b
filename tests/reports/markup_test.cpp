// Texts of strangers as they may stand in XML and HTML: every character that means something there, and every byte that
// neither has a character for.
#include "reports/markup.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

TEST(MarkupText, EscapesWhatWouldBeMarkup) {
  EXPECT_EQ(markup_text("a < b > c & \"d\" 'e' ]]> <!-- -->"),
            "a &lt; b &gt; c &amp; &quot;d&quot; 'e' ]]&gt; &lt;!-- --&gt;");
  EXPECT_EQ(markup_text("&amp; &#0;"), "&amp;amp; &amp;#0;") << "what is escaped already was meant so";
  EXPECT_EQ(markup_text(""), "");
}

TEST(MarkupText, KeepsCharactersAndLineEnds) {
  EXPECT_EQ(markup_text("W\xC3\xA4nde \xE2\x89\xA0 \xF0\x9F\x98\x80\nnext\n"),
            "W\xC3\xA4nde \xE2\x89\xA0 \xF0\x9F\x98\x80\nnext\n");
  EXPECT_EQ(markup_attribute("one\ntwo <"), "one&#10;two &lt;") << "a reader would make a blank of a line end";
}

TEST(MarkupText, EscapesWhatTheFormatsHaveNoCharacterFor) {
  EXPECT_EQ(markup_text(std::string_view("\0\x01\x1b[31m\r\t\x7f", 10)), "\\x00\\x01\\x1b[31m\\x0d\\x09\\x7f");
  EXPECT_EQ(markup_text("\xff\xc0\x80 \xed\xa0\x80 \xf5"), "\\xff\\xc0\\x80 \\xed\\xa0\\x80 \\xf5") << "invalid UTF-8";
  EXPECT_EQ(markup_text("\xC2\x85\xE2\x80\xAE"), "\\xc2\\x85\\xe2\\x80\\xae") << "unseen, but acting";
  EXPECT_EQ(markup_attribute("\xE2\x80\xA8"), "\\xe2\\x80\\xa8");
}

TEST(MarkupText, EscapesNoncharacters) {
  EXPECT_EQ(markup_text("\xEF\xBF\xBE\xEF\xBF\xBF"), "\\xef\\xbf\\xbe\\xef\\xbf\\xbf") << "U+FFFE, U+FFFF";
  EXPECT_EQ(markup_text("\xEF\xBF\xBD"), "\xEF\xBF\xBD") << "U+FFFD is one";
  EXPECT_EQ(markup_text("\xEF\xB7\x90\xEF\xB7\xAF"), "\\xef\\xb7\\x90\\xef\\xb7\\xaf") << "U+FDD0, U+FDEF";
  EXPECT_EQ(markup_text("\xEF\xB7\x8F\xEF\xB7\xB0"), "\xEF\xB7\x8F\xEF\xB7\xB0");
  EXPECT_EQ(markup_text("\xF0\x9F\xBF\xBE\xF4\x8F\xBF\xBF"), "\\xf0\\x9f\\xbf\\xbe\\xf4\\x8f\\xbf\\xbf")
      << "U+1FFFE, U+10FFFF";
  EXPECT_EQ(markup_text("\xF0\x9F\xBF\xBD\xF0\x9E\xBF\xBE"), "\xF0\x9F\xBF\xBD\xF0\x9E\xBF\xBE");
}

}  // namespace
}  // namespace shardproof
