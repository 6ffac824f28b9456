#include "base/printable.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace hadal {
namespace {

TEST(Printable, WritesControlBytesOut) {
  EXPECT_EQ(printable("a\x1b[2J\n\x7f\tb"), "a\\x1b[2J\\n\\x7f\\tb");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J naïve 东西"),
            "\\x9b2J naïve 东西");
}

TEST(Printable, CutTextKeepsWholeCharacters) {
  EXPECT_EQ(cut_text("äöü", 3), "äöü");
  EXPECT_EQ(cut_text("äöü", 2), "äö…");
  EXPECT_EQ(cut_text(""), "");
  const std::string whole(kShownChars, 'x');
  EXPECT_EQ(cut_text(whole), whole);
  EXPECT_EQ(cut_text(std::string(1000, 'x')), fmt::format("{}…", whole));
  EXPECT_LT(cut_text(std::string(1000, '\x80')).size(), 4 * kShownChars + 4) << "also where it is not UTF-8";
}

TEST(Printable, ShownTextQuotesAndNeverCutsAnEscape) {
  EXPECT_EQ(shown_text("a\"b\\\n\r\t\x01\x7f"), R"("a\"b\\\n\r\t\u0001\u007f")");
  EXPECT_EQ(shown_text(""), R"("")");
  EXPECT_EQ(shown_text("東西"), R"("東西")");
  const std::string whole(kShownChars, 'x');
  EXPECT_EQ(shown_text(whole), fmt::format("\"{}\"", whole));
  EXPECT_EQ(shown_text(fmt::format("{}y", whole)), fmt::format("\"{}…\"", whole));
  std::string escapes;
  for (int i = 0; i < 10; ++i) escapes += "\\u0001";
  EXPECT_EQ(shown_text(std::string(1000, '\x01')), fmt::format("\"{}…\"", escapes));
}

TEST(Printable, BytesAreShownInTheLargestUnitThatFits) {
  EXPECT_EQ(shown_bytes(0), "0 bytes");
  EXPECT_EQ(shown_bytes(1023), "1023 bytes");
  EXPECT_EQ(shown_bytes(1024), "1.0 KiB");
  EXPECT_EQ(shown_bytes(10 << 10), "10.0 KiB");
  EXPECT_EQ(shown_bytes((1 << 20) - 1), "1024.0 KiB");
  EXPECT_EQ(shown_bytes(3 << 19), "1.5 MiB");
}

}  // namespace
}  // namespace hadal
