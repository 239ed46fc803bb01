#include "hrm/base/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace hrm {
namespace {

TEST(NearestName, FindsTyposOnly) {
  const std::vector<std::string> names{"epochs", "learning_rate", "weight_decay", "lr", "H_cycles", "L_cycles"};
  EXPECT_EQ(nearest_name("epoch", names), "epochs");
  EXPECT_EQ(nearest_name("leraning_rate", names), "learning_rate");
  EXPECT_EQ(nearest_name("weightdecay", names), "weight_decay");
  EXPECT_EQ(nearest_name("h_cycles", names), "H_cycles");
  EXPECT_EQ(nearest_name("rl", names), "lr");
  EXPECT_EQ(nearest_name("banana", names), "");
  EXPECT_EQ(nearest_name("x", {"y"}), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name("epochs", {}), "");
}

TEST(NearestName, FirstOfEquals) {
  EXPECT_EQ(nearest_name("cycles", {"cyclez", "cyclex"}), "cyclez");
}

TEST(HumanBytes, ChoosesTheUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((uint64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<uint64_t>::max()), "16.0 EiB");
}

TEST(HumanSeconds, RoundsWithoutSixtyOfAnything) {
  EXPECT_EQ(human_seconds(0.346), "0.35 s");
  EXPECT_EQ(human_seconds(0.999), "1.0 s");
  EXPECT_EQ(human_seconds(42.4), "42 s");
  EXPECT_EQ(human_seconds(59.6), "1 min 00 s");
  EXPECT_EQ(human_seconds(187), "3 min 07 s");
  EXPECT_EQ(human_seconds(3599.7), "1 h 00 min");
  EXPECT_EQ(human_seconds(3780), "1 h 03 min");
  EXPECT_EQ(human_seconds(86399), "1 d 00 h");
  EXPECT_EQ(human_seconds(2 * 86400 + 4 * 3600), "2 d 04 h");
  EXPECT_EQ(human_seconds(-1), "unknown");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::infinity()), "unknown");
  EXPECT_EQ(human_seconds(std::numeric_limits<double>::quiet_NaN()), "unknown");
}

TEST(Printable, EscapesWhatCouldSteerATerminal) {
  EXPECT_EQ(printable("plain text, 100 %"), "plain text, 100 %");
  EXPECT_EQ(printable("a\nb\tc\r"), "a\\nb\\tc\\r");
  EXPECT_EQ(printable("\033[2J"), "\\x1B[2J");
  EXPECT_EQ(printable("back\\slash"), "back\\\\slash");
  EXPECT_EQ(printable("\x7f"), "\\x7F");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
}

TEST(Printable, LinesStay) {
  EXPECT_EQ(printable_lines("a\nb\tc\\d\r"), "a\nb\tc\\d\\x0D");
  EXPECT_EQ(printable_lines("\033[2J\x9B \u00fc"), "\\x1B[2J\\x9B \u00fc");
}

TEST(Printable, KeepsUtf8AndEscapesBrokenUtf8) {
  EXPECT_EQ(printable("\u00fc \u732b \U0001F63A"), "\u00fc \u732b \U0001F63A");
  EXPECT_EQ(printable("\xC3"), "\\xC3");
  EXPECT_EQ(printable("\xC0\xAF"), "\\xC0\\xAF");           // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "\\xED\\xA0\\x80");  // surrogate
  EXPECT_EQ(printable("\xC2\x9B"), "\\xC2\\x9B");           // C1 control: CSI
}

TEST(Printable, MarkupIsEscaped) {
  EXPECT_EQ(escaped_markup("<a href=\"b\">&'"), "&lt;a href=&quot;b&quot;&gt;&amp;&#39;");
  EXPECT_EQ(escaped_markup("a\n\tb\x01\x7F"), "a\n\tb\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(escaped_markup("\xEF\xBF\xBE.\xEF\xBF\xBF.\xEF\xBF\xBD."), "\xEF\xBF\xBD.\xEF\xBF\xBD.\xEF\xBF\xBD.");
}

TEST(Printable, LongTextsAreShortened) {
  EXPECT_EQ(printable_start("abc", 3), "abc");
  EXPECT_EQ(printable_start("abcd", 3), "abc...");
  EXPECT_EQ(printable_start("a\u732bb", 3), "a...");  // not half a character
  EXPECT_EQ(printable_start("a\u732bb", 4), "a\u732b...");
  EXPECT_EQ(printable_start("\x80\x80\x80\x80\x80", 4), "\\x80...");
  EXPECT_EQ(printable_start(std::string(1000, '\n'), 2), "\\n\\n...");
}

TEST(Utf8, Recognised) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("a\u00fc\u732b\U0001F63A"));
  for (const char* bad : {"\xff", "a\xC3", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80"}) EXPECT_FALSE(is_utf8(bad));
}

TEST(WholeNumber, DigitsAlone) {
  EXPECT_EQ(whole_number("0"), 0u);
  EXPECT_EQ(whole_number("007"), 7u);
  EXPECT_EQ(whole_number("18446744073709551615"), 18446744073709551615u);
  for (const char* bad : {"", "18446744073709551616", "-1", "+1", " 1", "1 ", "1.0", "0x1", "a"}) {
    EXPECT_FALSE(whole_number(bad)) << bad;
  }
}

TEST(PlainFileName, StaysInItsFolder) {
  EXPECT_TRUE(is_plain_file_name("model.pt"));
  EXPECT_TRUE(is_plain_file_name("A_b-9..x"));
  EXPECT_TRUE(is_plain_file_name(std::string(128, 'a')));
  for (const std::string& bad :
       {std::string(), std::string("."), std::string(".."), std::string(".a"), std::string("-a"), std::string("a/b"),
        std::string("a\\b"), std::string("a b"), std::string("a\nb"), std::string("a\0b", 3), std::string("\u00fc"),
        std::string(129, 'a')}) {
    EXPECT_FALSE(is_plain_file_name(bad)) << bad;
  }
}

}  // namespace
}  // namespace hrm
