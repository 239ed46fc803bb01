#include "hrm/tasks/answer_text.h"

#include <gtest/gtest.h>

namespace hrm::tasks {
namespace {

struct Pieces {
  std::vector<std::string> each;
  std::string all;
  bool stopped = false;
};

// A byte at a time, as the byte tokenizer gives them.
Pieces pieces_of(const std::string& bytes, const std::vector<std::string>& stops) {
  AnswerText text(data::byte_encoder(), stops);
  Pieces result;
  for (const char byte : bytes) {
    result.each.push_back(text.push(static_cast<unsigned char>(byte)));
    result.all += result.each.back();
  }
  result.stopped = text.stopped();
  result.all += text.finish();
  return result;
}

TEST(AnswerText, WholeCharactersAlone) {
  const Pieces pieces = pieces_of("a\u00e9\u20ac!", {});
  EXPECT_EQ(pieces.each, (std::vector<std::string>{"a", "", "\u00e9", "", "", "\u20ac", "!"}));
  EXPECT_EQ(pieces.all, "a\u00e9\u20ac!");
  EXPECT_EQ(pieces_of("a\xe2\x82", {}).all, "a\uFFFD") << "a character that was never finished";
  EXPECT_EQ(pieces_of("a\xff"
                      "b",
                      {})
                .all,
            "a\uFFFD"
            "b");
}

TEST(AnswerText, EndsInFrontOfAStopString) {
  const Pieces pieces = pieces_of("one two\n\nthree", {"\n\n", "###"});
  EXPECT_TRUE(pieces.stopped);
  EXPECT_EQ(pieces.all, "one two");
  const Pieces none = pieces_of("one\ntwo ## three\n", {"\n\n", "###"});
  EXPECT_FALSE(none.stopped);
  EXPECT_EQ(none.all, "one\ntwo ## three\n") << "what was held back comes in the end";
  EXPECT_EQ(none.each[3], "") << "a line feed may be the first of two";
  EXPECT_EQ(none.each[4], "\nt");
  EXPECT_EQ(pieces_of("aaab", {"aab"}).all, "a");
  EXPECT_EQ(pieces_of("abcabd", {"abd", "bca"}).all, "a");
  EXPECT_EQ(pieces_of("x\u20acy", {"\u20ac"}).all, "x");
}

TEST(AnswerText, IdsWithoutText) {
  AnswerText text(data::byte_encoder(), {});
  EXPECT_EQ(text.push(256), "");
  EXPECT_EQ(text.push('a'), "a");
}

// Of the template first, then what the tokenizer and the model's own files say, nothing twice.
TEST(AnswerEnds, OfTemplateTokenizerAndModel) {
  const auto ends = [](const data::ChatTemplateOptions& options, const std::vector<int64_t>& eos_ids) {
    return answer_ends(data::ChatEncoder(data::byte_encoder(), options), eos_ids);
  };
  const AnswerEnds plain = ends({.name = config::ChatTemplateKind::plain}, {});
  EXPECT_EQ(plain.ids, (std::vector<int64_t>{257}));
  EXPECT_TRUE(plain.texts.empty());
  EXPECT_EQ(ends({.name = config::ChatTemplateKind::plain}, {7, 257, 9}).ids, (std::vector<int64_t>{257, 7, 9}));
  const AnswerEnds custom = ends(
      {.name = config::ChatTemplateKind::custom, .prompt_template = "{prompt}", .response_template = "{response}\n##"},
      {7});
  EXPECT_EQ(custom.ids, (std::vector<int64_t>{257, 7}));
  EXPECT_EQ(custom.texts, (std::vector<std::string>{"\n##"}));
  const AnswerEnds both = ends({.name = config::ChatTemplateKind::custom,
                                .prompt_template = "{prompt}",
                                .response_template = "{response}.{eos}"},
                               {});
  EXPECT_EQ(both.ids, (std::vector<int64_t>{257}));
  EXPECT_EQ(both.texts, (std::vector<std::string>{"."})) << "what stands in front of EOS ends it, too";
}

}  // namespace
}  // namespace hrm::tasks
