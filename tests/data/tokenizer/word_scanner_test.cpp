#include "data/tokenizer/word_scanner.h"

#include <gtest/gtest.h>

#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer_cases.h"
#include "data/tokenizer/unicode.h"
#include "support/expect_error.h"

namespace hrm::data {
namespace {

std::vector<std::string> words_of(const std::string& pattern, bool only_regex, const std::string& text) {
  PreTokenizerStep split;
  split.kind = PreTokenizerStep::Kind::split;
  split.pattern = pattern;
  const PreTokenizer pre_tokenizer({split, {}}, "test", ExitCode::data, only_regex);
  PreTokenizer::Worker worker(pre_tokenizer);
  std::vector<std::string> words;
  worker.words(text, [&](std::string_view word, const char* readable) {
    EXPECT_LE(word.data() + word.size(), readable);
    words.emplace_back(word);
  });
  return words;
}

// Whether the regular expression, whose Unicode is of another version than the scanners', gives the character their
// class.
bool alike(char32_t c) {
  static const std::vector<std::vector<bool>> classes = [] {
    std::vector<std::vector<bool>> out;
    for (const char* pattern : {R"(\p{L})", R"(\p{N})", R"(\s)"}) {
      const RegexSplitter splitter(pattern, "test", ExitCode::data);
      RegexSplitter::Matcher matcher(splitter);
      std::vector<bool>& is = out.emplace_back(0x110000);
      for (char32_t at = 0; at < 0x110000; ++at) {
        if (at >= 0xD800 && at < 0xE000) continue;
        // A match stands between two characters that are of none of these classes.
        std::string text = "!";
        append_utf8(at, text);
        text += "!";
        std::vector<size_t> ends;
        matcher.split(text, ends);
        is[at] = ends.size() == 3;
      }
    }
    return out;
  }();
  const uint8_t ours = UnicodeTable::get().classes(c);
  return classes[0][c] == ((ours & kLetter) != 0) && classes[1][c] == ((ours & kNumber) != 0) &&
         classes[2][c] == ((ours & kSpace) != 0);
}

TEST(WordScanner, ClassesAreThoseOfTheRegularExpressions) {
  size_t other = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    if (alike(c)) continue;
    ++other;
    EXPECT_GE(c, 0x0C00u) << "only characters of the latest versions may differ";
  }
  EXPECT_LT(other, 5000u);
}

TEST(WordScanner, EqualsPcre2OnRandomText) {
  CounterRng rng(11, Stream::generate, 0);
  const std::u32string tricky =
      U"''''sStTrReEvVmMlLdD  \t\r\n\n\n\u00a0\u0085\u2003\u2028\u3000\u180e\u200b\u017f\u212aaZ\u00e9\u4e2d\u05d0"
      U"019\u0663\u00b2\u2167\u00bd.,!?_-(\u0301\u0323\U0001f600\U0001d518\U0010ffff\0";
  const auto any = [&]() -> char32_t {
    for (;;) {
      const char32_t c = rng.below(3) == 0 ? rng.below(0x110000) : rng.below(0x3100);
      if ((c < 0xD800 || c >= 0xE000) && alike(c)) return c;
    }
  };
  for (const std::string_view pattern : {kGpt2Pattern, kQwenPattern, kLlama3Pattern}) {
    ASSERT_NE(find_word_scanner(pattern), nullptr);
    for (int round = 0; round < 6000; ++round) {
      std::string text;
      const uint32_t length = rng.below(24), kind = rng.below(4);
      for (uint32_t i = 0; i < length; ++i) {
        append_utf8(rng.below(4) < kind ? any() : tricky[rng.below(static_cast<uint32_t>(tricky.size()))], text);
      }
      const auto scanned = words_of(std::string(pattern), false, text),
                 searched = words_of(std::string(pattern), true, text);
      ASSERT_EQ(scanned, searched) << pattern << " on '" << text << "'";
      std::string joined;
      for (const std::string& word : scanned) joined += word;
      ASSERT_EQ(joined, text);
    }
  }
  EXPECT_EQ(find_word_scanner(R"(\s+)"), nullptr);
}

using Words = std::vector<std::string>;

TEST(RegexSplitter, IsolatesMatches) {
  EXPECT_EQ(words_of("b+", true, "abbcb"), (Words{"a", "bb", "c", "b"}));
  EXPECT_EQ(words_of("b+", true, "b"), Words{"b"});
  EXPECT_EQ(words_of("b+", true, ""), Words{});
  EXPECT_EQ(words_of("b*", true, "\u00e9\u00e9bb\u00e9"), (Words{"\u00e9", "\u00e9", "bb", "\u00e9"}));
  EXPECT_EQ(words_of(R"([^\s\p{L}]+|(?i:K)|[\]\-a]{2,})", true, "a \u212a--a]12k"),
            (Words{"a ", "\u212a", "--", "a]", "12", "k"}));
  // White space is Unicode's: U+180E was it once, and PCRE2 still counts it.
  EXPECT_EQ(words_of(R"(\s+)", true, "a\u180eb\u2028\u0085c"), (Words{"a\u180eb", "\u2028\u0085", "c"}));
  EXPECT_EQ(words_of(R"(\S)", true, " \u180e "), (Words{" ", "\u180e", " "}));
}

TEST(RegexSplitter, RefusesWhatTheTwoLibrariesReadDifferently) {
  const auto refused = [](const std::string& pattern, const std::string& part) {
    test::expect_error(ExitCode::data, {"x.json: the pattern", part},
                       [&] { RegexSplitter(pattern, "x.json", ExitCode::data); });
  };
  refused(R"(\h+)", R"(uses '\\h')");
  refused(R"(\w+)", R"(uses '\\w')");
  refused(R"(\bx)", R"(uses '\\b')");
  refused(R"([\S])", R"(uses '\\S')");
  refused(R"(\x41)", R"(uses '\\x')");
  refused(R"(\p{^L})", "uses '");
  refused(R"(\pL)", "uses '");
  refused(R"(\p{L)", "uses '");
  refused("a^", "uses '^'");
  refused("a$", "uses '$'");
  refused("a.", "uses '.'");
  refused("[a[bc]]", "uses '");
  refused("[a&&b]", "uses '");
  refused("[]a]", "uses '");
  refused("[a", "uses '");
  refused("(*ACCEPT)", "uses '(*'");
  refused("(?m:a)", "uses '(?m'");
  refused("(?#a)", "uses '");
  refused("a{2}+", "uses '{2}+'");
  refused("a{,2}", "uses '");
  refused("a{", "uses '{'");
  refused("a\\", "uses '");
  refused("a)", "is not a regular expression");
  refused("\\p{Nonsense}", "is not a regular expression");
  refused("[b-a]", "is not a regular expression");
  refused("\xFF", "is not UTF-8");
}

TEST(RegexSplitter, GivesUpSearchesWithoutEnd) {
  const RegexSplitter splitter("(?:a+)+[cd]", "x", ExitCode::data);
  RegexSplitter::Matcher matcher(splitter);
  std::vector<size_t> ends;
  const std::string hopeless(64, 'a');
  test::expect_error(ExitCode::data, {"(?:a+)+[cd]", "cannot be searched", "limit"},
                     [&] { matcher.split(hopeless, ends); });
  ends.clear();
  matcher.split("aac", ends);
  EXPECT_EQ(ends, std::vector<size_t>{3});
}

}  // namespace
}  // namespace hrm::data
