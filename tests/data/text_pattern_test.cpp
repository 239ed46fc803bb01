#include "hrm/data/text_pattern.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace hrm::data {
namespace {

using Answer = TextPattern::Answer;

Answer match(const std::string& pattern, const std::string& text) {
  return TextPattern(pattern, "test").matches(text);
}

TEST(TextPattern, TakesTheWholeText) {
  EXPECT_EQ(match("[0-9]+", "123"), Answer::yes);
  EXPECT_EQ(match("[0-9]+", "a123"), Answer::no);
  EXPECT_EQ(match("[0-9]+", "123 "), Answer::no);
  EXPECT_EQ(match("a|ab", "ab"), Answer::yes);  // the first alternative does not hide the second
  EXPECT_EQ(match("<think>.*</think>\\s*\\S.*", "<think>one\ntwo</think>\nYes."), Answer::yes);
  EXPECT_EQ(match("", ""), Answer::yes);
  EXPECT_EQ(match("", "x"), Answer::no);
}

TEST(TextPattern, ReadsCharactersOfUnicode) {
  EXPECT_EQ(match("\\w{3}!", "Ölé!"), Answer::yes);
  EXPECT_EQ(match(".", "🙂"), Answer::yes);
  EXPECT_EQ(match("a.b",
                  "a\xFF"
                  "b"),
            Answer::yes);  // U+FFFD
  EXPECT_EQ(match("ab",
                  "a\xFF"
                  "b"),
            Answer::no);
}

// A pattern that tries all ways of dividing a text is given up, in time.
TEST(TextPattern, GivesUp) {
  EXPECT_EQ(match("(a|aa)+(b|a)+c", std::string(5000, 'a')), Answer::gave_up);
}

TEST(TextPattern, BadPatterns) {
  test::expect_error(ExitCode::usage, {"here: the pattern '(a'", "byte 2"}, [] { TextPattern("(a", "here"); });
  test::expect_error(ExitCode::data, {"not UTF-8"}, [] { TextPattern("\xFF", "here", ExitCode::data); });
  EXPECT_EQ(TextPattern("a*", "here").pattern(), "a*");
}

}  // namespace
}  // namespace hrm::data
