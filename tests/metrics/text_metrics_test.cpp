#include "hrm/metrics/text_metrics.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace hrm::metrics {
namespace {

using Texts = std::vector<std::string>;

TEST(TextMetrics, Words) {
  EXPECT_EQ(words("It's 3_4 o'clock!?"), (Texts{"it", "'", "s", "3_4", "o", "'", "clock", "!", "?"}));
  EXPECT_EQ(words(" \t\n"), Texts());
  EXPECT_EQ(words("\xc3\x9c"
                  "ber \xe4\xb8\xad\xe6\x96\x87"),
            (Texts{"\xc3\xbc"
                   "ber",
                   "\xe4\xb8\xad\xe6\x96\x87"}));
  EXPECT_EQ(words("a\xff"
                  "b")
                .size(),
            3u)
      << "U+FFFD is no word character";
  EXPECT_EQ(words("a\x1c\x1f"
                  "b\x1b"),
            (Texts{"a", "b", "\x1b"}))
      << "separators of ASCII are white space, other control characters are not";
}

TEST(TextMetrics, Distinct) {
  EXPECT_DOUBLE_EQ(distinct_n({"a b a b", "a b"}, 1), 2.0 / 6);
  EXPECT_DOUBLE_EQ(distinct_n({"a b a b", "a b"}, 2), 2.0 / 4);
  EXPECT_DOUBLE_EQ(distinct_n({"a", ""}, 2), 0);
}

// A group's metric without one text is that of the other texts.
TEST(TextMetrics, LeaveOneOut) {
  const Texts texts{"a b c d", "a b c e", "x y", "a b c d", ""};
  for (const auto metric :
       {+[](const Texts& t) { return bleu_diversity(t); }, +[](const Texts& t) { return distinct_diversity(t, 2); }}) {
    const TextDiversity whole = metric(texts);
    for (size_t i = 0; i < texts.size(); ++i) {
      Texts others = texts;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_NEAR(whole.loo[i], metric(others).total, 1e-12) << i;
    }
    EXPECT_EQ(metric({"a b", "a b"}).loo, (std::vector<double>{0, 0})) << "one text has no diversity";
    EXPECT_EQ(metric({"a b"}).total, 0);
    EXPECT_TRUE(metric({}).rows.empty());
  }
  EXPECT_DOUBLE_EQ(bleu_diversity({"a b", "a b"}).total, 0);
  EXPECT_DOUBLE_EQ(bleu_diversity({"yes", "yes", "yes"}).total, 0) << "words alone are alike, too";
  EXPECT_DOUBLE_EQ(bleu_diversity({"", "", " "}).total, 0);
  EXPECT_DOUBLE_EQ(bleu_diversity({"!", "!"}).total, 0);
  EXPECT_DOUBLE_EQ(bleu_diversity({"yes", "no"}).total, 1);
  EXPECT_DOUBLE_EQ(bleu_diversity({"yes", ""}).total, 1);
  EXPECT_DOUBLE_EQ(bleu2({"a b c d", "a b c d e", "a b c"})[0], 1) << "of two lengths equally near, the shorter";
  EXPECT_DOUBLE_EQ(bleu_diversity({"a b", "c d"}).total, 1);
  const TextDiversity distinct = distinct_diversity({"a b c", "b c d"}, 2);
  EXPECT_DOUBLE_EQ(distinct.total, 3.0 / 4);
  EXPECT_EQ(distinct.rows, (std::vector<double>{0.5, 0.5}));
}

// Several texts that have an n-gram equally often, nearest lengths that are shared, texts shorter than the order.
TEST(TextMetrics, LeaveOneOutOfManyGroups) {
  uint32_t state = 1;
  const auto draw = [&state](uint32_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 16) % below;
  };
  for (int group = 0; group < 200; ++group) {
    Texts texts(3 + draw(5));
    const uint32_t letters = 1 + draw(6);
    for (std::string& text : texts) {
      for (uint32_t left = draw(9); left > 0; --left) text += std::string{static_cast<char>('a' + draw(letters)), ' '};
    }
    const TextDiversity whole = bleu_diversity(texts);
    for (size_t i = 0; i < texts.size(); ++i) {
      Texts others = texts;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      ASSERT_NEAR(whole.loo[i], bleu_diversity(others).total, 1e-12) << "group " << group << ", without " << i;
    }
  }
}

TEST(TextMetrics, RefusesNGramsOfNoWords) {
  test::expect_error(ExitCode::usage, {"n-grams of 0 words"}, [] { distinct_n({"a"}, 0); });
  test::expect_error(ExitCode::usage, {"n-grams of -1 words"}, [] { distinct_diversity({"a"}, -1); });
  test::expect_error(ExitCode::usage, {"n-grams of 0 words"}, [] { rouge_n("a", "a", 0); });
}

TEST(TextMetrics, Rouge) {
  const Rouge one = rouge_n("the cat sat", "the cat ate the mat", 1);
  EXPECT_DOUBLE_EQ(one.precision, 2.0 / 3);
  EXPECT_DOUBLE_EQ(one.recall, 2.0 / 5);
  EXPECT_DOUBLE_EQ(one.f1, 0.5);
  EXPECT_DOUBLE_EQ(rouge_n("the cat sat", "the cat ate the mat", 2).recall, 1.0 / 4);
  const Rouge l = rouge_l("a x b y c", "a b c d");
  EXPECT_DOUBLE_EQ(l.precision, 3.0 / 5);
  EXPECT_DOUBLE_EQ(l.recall, 3.0 / 4);
  EXPECT_EQ(rouge_l("", "a").f1, 0);
  EXPECT_EQ(rouge_n("a", "b", 1).f1, 0);
}

TEST(TextMetrics, TypeTokenRatio) {
  EXPECT_DOUBLE_EQ(type_token_ratio("a b A c"), 0.75);
  EXPECT_EQ(type_token_ratio(" "), 0);
}

}  // namespace
}  // namespace hrm::metrics
