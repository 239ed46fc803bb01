#include "data/tokenizer/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>

#include "data/tokenizer/tokenizer_cases.h"
#include "hrm/base/text.h"

namespace hrm::data {
namespace {

TEST(Unicode, KnowsItsClasses) {
  const UnicodeTable& table = UnicodeTable::get();
  const auto is = [&](char32_t c) { return table.classes(c) & ~kComposes; };
  for (const char32_t c : U"aZ\u00e9\u00aa\u01c5\u4e2d\U0001d518\U0003134a") {
    if (c == 0) continue;  // the literal's end
    EXPECT_EQ(is(c), kLetter | kWord) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U'7', U'\u0663', U'\u2167'}) EXPECT_EQ(is(c), kNumber | kWord);
  for (const char32_t c : {U'\u00b2', U'\u00bd', U'\u2460'}) EXPECT_EQ(is(c), kNumber);
  for (const char32_t c : {U'\u200d', U'\u24b6', U'\U0001f130'}) EXPECT_EQ(is(c), kWord);
  for (const char32_t c : {U'\u0301', U'\u0903', U'\u20dd'}) EXPECT_EQ(is(c), kMark | kWord);
  for (const char32_t c : {U'_', U'\u203f'}) EXPECT_EQ(is(c), kPunctuation | kWord);
  for (const char32_t c : U".!~^`$+<=>|\u00ab\u2014\u3002") {
    if (c == 0) continue;
    EXPECT_EQ(is(c), kPunctuation) << static_cast<uint32_t>(c);
  }
  for (const char32_t c : {U'\u180e', U'\u200b', U'\U0001f600', U'\U0010ffff', U'\ufeff', U'\x1c', U'\u20ac'})
    EXPECT_EQ(is(c), 0);
  int spaces = 0;
  for (char32_t c = 0; c < 0x110000; ++c) spaces += (table.classes(c) & kSpace) != 0;
  EXPECT_EQ(spaces, 25);
  EXPECT_EQ(table.classes(0x110000), 0);
  EXPECT_EQ(table.classes(0xFFFFFFFF), 0);
}

TEST(Unicode, FindsTheFirstByteThatIsNoUtf8) {
  CounterRng rng(2, Stream::generate, 0);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint32_t i = rng.below(20); i > 0; --i) {
      char32_t c = rng.below(rng.below(2) ? 0x110000 : 0x80);
      if (c >= 0xD800 && c < 0xE000) c = 'x';
      append_utf8(c, text);
    }
    ASSERT_EQ(utf8_prefix(text), text.size());
    if (text.empty()) continue;
    text[rng.below(static_cast<uint32_t>(text.size()))] = static_cast<char>(rng.next());
    const size_t valid = utf8_prefix(text);
    EXPECT_EQ(valid == text.size(), is_utf8(text));
    EXPECT_TRUE(is_utf8(std::string_view(text).substr(0, valid)));
    if (valid < text.size()) {
      for (size_t more = 1; more <= 4 && valid + more <= text.size(); ++more) {
        EXPECT_FALSE(is_utf8(std::string_view(text).substr(valid, more)));
      }
    }
  }
}

std::string library_form(const std::string& text, NormalizationForm form) {
  const bool composes = form == NormalizationForm::nfc || form == NormalizationForm::nfkc;
  const bool compatible = form == NormalizationForm::nfkc || form == NormalizationForm::nfkd;
  const int options =
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* made = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &made, static_cast<utf8proc_option_t>(options));
  EXPECT_GE(length, 0);
  std::string out(reinterpret_cast<const char*>(made), static_cast<size_t>(length));
  std::free(made);
  return out;
}

std::string our_form(const std::string& text, NormalizationForm form) {
  std::string out = "before";
  const bool changed = normalize(text, form, out);
  EXPECT_EQ(changed, out != "before");
  return changed ? out : text;
}

class NormalizationForms : public testing::TestWithParam<NormalizationForm> {};

// Parts at a time give what the library makes of the whole.
TEST_P(NormalizationForms, EqualTheLibrarys) {
  const auto ours = [](const std::string& text) { return our_form(text, GetParam()); };
  const auto library = [](const std::string& text) { return library_form(text, GetParam()); };
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text = "a";
    append_utf8(c, text);
    ASSERT_EQ(ours(text), library(text)) << static_cast<uint32_t>(c);
    std::string marked;
    append_utf8(c, marked);
    marked += "\u0323\u0301";
    ASSERT_EQ(ours(marked), library(marked)) << static_cast<uint32_t>(c);
  }
  CounterRng rng(4, Stream::generate, 0);
  const std::u32string marks =
      U"\u0301\u0323\u0327\u0345\u0344\u0340\u1161\u11a8\u1100\uac00\uac01\u0958\u09c7\u09be\u0b47\u0b3ee\u00e9 "
      U"oA\u212b\u1e9b\u0f73\u0dd9\u0dca\u3099\u304b\U000110ba\U0001d15e";
  for (int round = 0; round < 50000; ++round) {
    std::string text;
    for (uint32_t i = rng.below(12); i > 0; --i) {
      char32_t c = rng.below(3) > 0 ? marks[rng.below(static_cast<uint32_t>(marks.size()))] : 1 + rng.below(0x3000);
      append_utf8(c, text);
    }
    ASSERT_EQ(ours(text), library(text)) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Unicode, NormalizationForms,
                         testing::Values(NormalizationForm::nfc, NormalizationForm::nfd, NormalizationForm::nfkc,
                                         NormalizationForm::nfkd));

TEST(Unicode, LowerCaseOfOneCharacterCanBeTwo) {
  std::string text;
  for (const char32_t c : {U'A', U'\u0130', U'\u03a3', U'\u00df', U'\u4e2d'}) append_lower_case(c, text);
  EXPECT_EQ(text, "ai\u0307\u03c3\u00df\u4e2d");
}

}  // namespace
}  // namespace hrm::data
