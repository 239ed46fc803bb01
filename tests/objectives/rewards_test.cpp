// Rewards of groups of answers, alone and together.

#include "hrm/objectives/rewards.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hrm/formats/safetensors.h"
#include "hrm/objectives/policy_gradient.h"
#include "hrm/objectives/text_heuristics.h"
#include "hrm/state/tensor_bytes.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace hrm::objectives {
namespace {

using test::expect_error;
using Values = std::vector<double>;

Values run(const RewardOptions& options, const AnswerGroup& group) {
  return make_reward(options)->of(group);
}

AnswerGroup texts(std::vector<std::string> answers) {
  return {.prompt = "p", .texts = std::move(answers)};
}

TEST(Rewards, AreNamedAsTheyAreCalled) {
  const test::TempDir folder;
  for (const std::string& name : reward_names()) {
    if (name == "learned") continue;  // needs a file, see below
    RewardOptions options{.name = name};
    if (name == "format") options.prefix = "x";
    if (name == "overlong") options.max_tokens = 1;
    EXPECT_EQ(make_reward(options)->name(), name);
  }
  EXPECT_EQ(reward_names().size(), 13U);
}

TEST(Rewards, Answer) {
  AnswerGroup group =
      texts({"Paris", " paris. ", "\"PARIS\"!", "Paris, France", "", "It is\nParis", "\n Paris \nwhy?"});
  group.references = {"paris", "Lutetia"};
  EXPECT_EQ(run({.name = "answer"}, group), (Values{1, 1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(run({.name = "answer", .first_line = true}, group), (Values{1, 1, 1, 0, 0, 0, 1}));
  group.references.clear();
  expect_error(ExitCode::usage, {"'answer'", "'p'", "none"}, [&] { run({.name = "answer"}, group); });
}

TEST(Rewards, SameAnswer) {
  EXPECT_TRUE(same_answer("New \t York", "new york"));
  EXPECT_TRUE(same_answer("CAFE\u0301", "caf\u00E9"));  // composed or not
  EXPECT_TRUE(same_answer("STRASSE", "stra\u00DFe"));   // case folding, not lower case
  EXPECT_TRUE(same_answer("\u201CYes\u201D.", "yes"));
  EXPECT_FALSE(same_answer("-5", "5"));
  EXPECT_FALSE(same_answer("3.5", "35"));
  EXPECT_TRUE(same_answer("?", "?"));
  EXPECT_FALSE(same_answer("?", "!"));
  EXPECT_FALSE(same_answer("", "a"));
  EXPECT_TRUE(same_answer("", " \n"));
  EXPECT_TRUE(same_answer("a\xFF", "A\uFFFD"));  // not UTF-8
}

TEST(Rewards, Format) {
  const AnswerGroup group = texts({"<a>1</a>", "<a></a>", "<a>1</a> ", "1", "<a>", ""});
  EXPECT_EQ(run({.name = "format", .pattern = "<a>\\d+</a>"}, group), (Values{1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(run({.name = "format", .prefix = "<a>", .suffix = "</a>"}, group), (Values{1, 1, 0, 0, 0, 0}));
  EXPECT_EQ(run({.name = "format", .pattern = ".*1.*", .suffix = "</a>"}, group), (Values{1, 0, 0, 0, 0, 0}));
  const AnswerGroup overlapping = texts({"aba", "ababa"});
  EXPECT_EQ(run({.name = "format", .prefix = "ab", .suffix = "ba"}, overlapping), (Values{0, 1}));
  const AnswerGroup json = texts({R"({"a": [1, 2]})", R"([1])", R"({"a": 1,})", R"({"a": 1, "a": 2})", "", " {} "});
  EXPECT_EQ(run({.name = "format", .json_object = true}, json), (Values{1, 0, 0, 0, 0, 1}));
  expect_error(ExitCode::usage, {"'format'", "grpo.reward_pattern"}, [] { make_reward({.name = "format"}); });
  expect_error(ExitCode::usage, {"'format'", "'(a'", "not a regular expression"},
               [] { make_reward({.name = "format", .pattern = "(a"}); });
}

// An answer on which a pattern takes for ever costs its reward, not the run.
TEST(Rewards, FormatGivesUp) {
  const AnswerGroup group = texts({std::string(5000, 'a'), "aac"});
  EXPECT_EQ(run({.name = "format", .pattern = "(a|aa)+(b|a)+c"}, group), (Values{0, 1}));
}

TEST(Rewards, LengthsInTokens) {
  AnswerGroup group = texts({"a", "b", "c", "d"});
  group.tokens = {80, 90, 100, 120};
  group.finished = {true, true, false, false};
  EXPECT_EQ(run({.name = "overlong", .max_tokens = 100, .margin = 20}, group), (Values{0, -0.5, -1, -1}));
  EXPECT_EQ(run({.name = "overlong", .max_tokens = 90}, group), (Values{0, 0, -1, -1}));
  EXPECT_EQ(run({.name = "finished"}, group), (Values{1, 1, 0, 0}));
  group.tokens.pop_back();
  expect_error(ExitCode::usage, {"'overlong'", "tokens", "4 completions", "has only 3"},
               [&] { run({.name = "overlong", .max_tokens = 100}, group); });
  expect_error(ExitCode::usage, {"'overlong'", "not 10 and 11"},
               [] { make_reward({.name = "overlong", .max_tokens = 10, .margin = 11}); });
}

TEST(Rewards, Diversity) {
  AnswerGroup group = texts({"a", "b"});
  expect_error(ExitCode::usage, {"'diversity'", "2 completions", "has only 0"},
               [&] { run({.name = "diversity"}, group); });
  group.diversity = {0.25, 0.75};
  EXPECT_EQ(run({.name = "diversity"}, group), group.diversity);
}

TEST(Rewards, UnknownNamesAndOptions) {
  expect_error(ExitCode::usage, {"unknown reward 'lenght'", "did you mean 'length'", "punctuation"},
               [] { make_reward({.name = "lenght"}); });
  expect_error(ExitCode::usage, {"unknown reward ''", "must be one of answer, diversity"}, [] { make_reward({}); });
  expect_error(ExitCode::usage, {"'length'", "no option pattern", "'format' has it"},
               [] { make_reward({.name = "length", .pattern = "a"}); });
  expect_error(ExitCode::usage, {"'format'", "no option first_line", "'answer' has it"},
               [] { make_reward({.name = "format", .first_line = true}); });
}

TEST(Heuristics, Length) {
  const auto of = [](size_t n) { return length_score(std::string(n, 'x')); };
  EXPECT_EQ((Values{of(0), of(19), of(20), of(49), of(50), of(150), of(151), of(280), of(281)}),
            (Values{0.3, 0.3, 0.6, 0.6, 1, 1, 0.8, 0.8, 0.4}));
  std::string smiles = "  ";
  for (int i = 0; i < 20; ++i) smiles += "🙂";
  EXPECT_EQ(length_score(smiles + "\n"), 0.6);  // characters, not bytes, without the space around them
}

TEST(Heuristics, Words) {
  EXPECT_EQ(lower_words("Don't STOP, \u00C9t\u00E9 - 'x' a_b 2nd!"),
            (std::vector<std::string>{"don't", "stop", "\u00E9t\u00E9", "x", "a_b", "2nd"}));
  EXPECT_TRUE(lower_words(" ... ").empty());
  EXPECT_EQ(lexical_score("one two three four"), 1);
  EXPECT_EQ(lexical_score("one One two two"), 0.5);
  EXPECT_NEAR(lexical_score("a a a"), 0.7 / 3, 1e-12);
  EXPECT_EQ(lexical_score(""), 0);
}

TEST(Heuristics, Punctuation) {
  const auto of = [](int marks, int all) {
    return punctuation_score(std::string(all - marks, 'x') + std::string(marks, '!'));
  };
  EXPECT_EQ((Values{of(0, 50), of(1, 99), of(1, 50), of(8, 100), of(9, 100), of(15, 100), of(16, 100)}),
            (Values{0.7, 0.8, 1, 1, 0.8, 0.8, 0.3}));
  EXPECT_EQ(punctuation_score(""), 0.7);
}

// Phrases are whole words: "no" is not in "know".
TEST(Heuristics, Engagement) {
  EXPECT_EQ(engagement_score("I know a place"), 1);
  EXPECT_EQ(engagement_score("No, a place"), 0.5);
  EXPECT_EQ(engagement_score("Thank you"), 0.5);
  EXPECT_EQ(engagement_score("thank heavens, you came"), 1);
  EXPECT_EQ(engagement_score("no, and here are more than thirty characters"), 1);
  EXPECT_NEAR(engagement_score("nice?"), 0.55, 1e-12);
  EXPECT_NEAR(engagement_score("nice. ok."), 0.525, 1e-12);
  EXPECT_NEAR(engagement_score("A PLACE"), 0.6, 1e-12);
  EXPECT_EQ(engagement_score("123"), 1);         // no letters, so no capitals
  EXPECT_EQ(engagement_score("Why? When?"), 1);  // at most 1
}

TEST(Heuristics, Sentiment) {
  EXPECT_EQ(polarity("What a lovely day"), 1);
  EXPECT_EQ(polarity("awful, terrible and good"), -1.0 / 3);
  EXPECT_EQ(polarity("a chair"), 0);
  EXPECT_EQ(sentiment_score("lovely", "awful"), 0);
  EXPECT_EQ(sentiment_score("lovely", "a chair"), 0.5);
  EXPECT_EQ(run({.name = "sentiment"}, {.prompt = "lovely", .texts = {"great", "sad"}}), (Values{1, 0}));
}

TEST(Heuristics, Sum) {
  const std::string reply = "A place by the river, where herons stand all day long";  // 53 characters, one mark
  EXPECT_NEAR(heuristic_score("a chair", reply, 0.4), 0.3 * 0.4 + 0.15 + 0.15 + 0.10 + 0.10 * 0.8 + 0.20, 1e-12);
  EXPECT_EQ(heuristic_score("p", "ab", 1), 0);
  EXPECT_EQ(heuristic_score("p", "  ", 1), 0);
  EXPECT_EQ(heuristic_score("p", std::string(501, 'x'), 1), 0.3);

  AnswerGroup group = texts({reply, reply, "ab"});
  expect_error(ExitCode::usage, {"'heuristic'", "embeddings", "encoder"}, [&] { run({.name = "heuristic"}, group); });
  group.prompt_embedding = at::tensor({2.0F, 0.0F});
  group.embeddings = at::tensor({1.0F, 0.0F, 0.0F, 3.0F, 0.0F, 0.0F}).view({3, 2});
  EXPECT_EQ(run({.name = "relevance"}, group), (Values{1, 0.5, 0.5}));  // the last vector is zero
  const Values got = run({.name = "heuristic"}, group);
  EXPECT_NEAR(got[0], heuristic_score("p", reply, 1), 1e-12);
  EXPECT_NEAR(got[0] - got[1], 0.15, 1e-12);
  EXPECT_EQ(got[2], 0);
}

// The file of a head with three layers of these shapes (out, in), random.
std::vector<at::Tensor> write_head(const std::string& file, const std::vector<std::array<int64_t, 2>>& shapes,
                                   at::ScalarType type = at::kFloat) {
  std::vector<at::Tensor> tensors;
  std::vector<SafetensorsEntry> entries;
  for (size_t i = 0; i < shapes.size(); ++i) {
    tensors.push_back(at::randn({shapes[i][0], shapes[i][1]}).to(type));
    tensors.push_back(at::randn({shapes[i][0]}).to(type));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    entries.push_back({.name = cat("layers.", i / 2, i % 2 == 0 ? ".weight" : ".bias"),
                       .dtype = dtype_of(type),
                       .shape = tensors[i].sizes().vec(),
                       .bytes = bytes_of(tensors[i])});
  }
  write_safetensors(file, entries, {});
  return tensors;
}

TEST(Rewards, LearnedHead) {
  const test::TempDir folder;
  const std::string file = folder / "head.safetensors";
  const auto w = write_head(file, {{8, 6}, {4, 8}, {1, 4}});
  AnswerGroup group = texts({"a", "b"});
  group.prompt_embedding = at::randn({3});
  group.embeddings = at::randn({2, 3});
  const Values got = run({.name = "learned", .head = file}, group);
  for (int64_t i = 0; i < 2; ++i) {
    at::Tensor x = at::cat({group.prompt_embedding, group.embeddings[i]});
    x = (at::mv(w[0], x) + w[1]).relu();
    x = (at::mv(w[2], x) + w[3]).relu();
    const double want = (at::mv(w[4], x) + w[5]).sigmoid().item<double>();
    EXPECT_NEAR(got[static_cast<size_t>(i)], want, 1e-6);
  }
  EXPECT_NE(got[0], got[1]);
  group.embeddings = at::randn({2, 5});
  group.prompt_embedding = at::randn({5});
  expect_error(ExitCode::usage, {"head.safetensors", "embeddings of width 3", "width is 5"},
               [&] { run({.name = "learned", .head = file}, group); });
}

TEST(Rewards, LearnedHeadFiles) {
  const test::TempDir folder;
  const std::string file = folder / "head.safetensors";
  const auto refuse = [&](const std::vector<std::array<int64_t, 2>>& shapes, const std::vector<std::string>& parts,
                          at::ScalarType type = at::kFloat) {
    write_head(file, shapes, type);
    expect_error(ExitCode::data, parts, [&] { LearnedHead{file}; });
  };
  write_head(file, {{8, 6}, {4, 8}, {1, 4}}, at::kBFloat16);
  EXPECT_NO_THROW(LearnedHead{file});
  refuse({{8, 6}, {4, 7}, {1, 4}}, {"'layers.1.weight' is [4, 7]", "the 8 outputs"});
  refuse({{8, 5}, {4, 8}, {1, 4}}, {"5 -> 1"});
  refuse({{8, 6}, {4, 8}, {2, 4}}, {"6 -> 2"});
  refuse({{8, 6}, {4, 8}}, {"layers.2.weight", "head.safetensors"});
  refuse({{8, 6}, {4, 8}, {1, 4}}, {"layers.0.weight", "not I32"}, at::kInt);
  expect_error(ExitCode::data, {"missing.safetensors"}, [&] { LearnedHead{folder / "missing.safetensors"}; });
  expect_error(ExitCode::usage, {"'learned'", "head"}, [] { make_reward({.name = "learned"}); });
}

class Constant : public Reward {
 public:
  explicit Constant(Values values) : values_(std::move(values)) {}
  std::string name() const override { return "constant"; }
  Values of(const AnswerGroup&) const override { return values_; }

 private:
  Values values_;
};

TEST(ScoreGroups, FillsUpSmallGroups) {
  std::vector<std::unique_ptr<Reward>> rewards;
  rewards.push_back(make_reward({.name = "lexical"}));
  rewards.push_back(make_reward({.name = "format", .prefix = "b"}));
  const at::Tensor got = score_groups(rewards, {texts({"a a", "b"}), texts({"b b", "b c", "d"}), texts({})});
  const at::Tensor want = at::tensor(
      {0.5, 1.0, 0.0, 0.5, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0}, at::kDouble);
  EXPECT_TRUE(at::equal(got, want.view({2, 3, 3})));
  EXPECT_EQ(score_groups(rewards, {}).numel(), 0);
}

TEST(ScoreGroups, RefusesWhatIsNoReward) {
  std::vector<std::unique_ptr<Reward>> rewards;
  rewards.push_back(std::make_unique<Constant>(Values{1, NAN}));
  expect_error(ExitCode::data, {"'constant'", "nan", "'b'"}, [&] { score_groups(rewards, {texts({"a", "b"})}); });
  rewards[0] = std::make_unique<Constant>(Values{1});
  expect_error(ExitCode::unexpected, {"1 values for 2"}, [&] { score_groups(rewards, {texts({"a", "b"})}); });
}

TEST(CombineRewards, Sums) {
  const at::Tensor rewards = at::randn({2, 3, 4}, at::kDouble);
  const at::Tensor sum = combine_rewards(rewards, {0.5, -2}, RewardCombination::weighted_sum);
  EXPECT_TRUE(at::allclose(sum, rewards[0] * 0.5 - rewards[1] * 2));
  const at::Tensor counts = at::tensor({4, 1, 0}, at::kInt);
  const at::Tensor cut = combine_rewards(rewards, {0.5, -2}, RewardCombination::weighted_sum, counts);
  EXPECT_TRUE(at::equal(cut.ne(0).sum(1), counts.to(at::kLong)));
  expect_error(ExitCode::usage, {"2 rewards and 1 weights"},
               [&] { combine_rewards(rewards, {1}, RewardCombination::weighted_sum); });
}

// A reward in thousands does not drown one in tenths.
TEST(CombineRewards, SeparatelyNormalised) {
  const at::Tensor a = at::tensor({0.0, 1.0, 0.0, 1.0}, at::kDouble), b = at::tensor({0.0, 0.0, 1.0, 1.0}, at::kDouble);
  const at::Tensor rewards = at::stack({a * 0.1, b * 5000}).unsqueeze(1);
  const at::Tensor got = combine_rewards(rewards, {1, 1}, RewardCombination::separately_normalised, {}, /*eps=*/0)[0];
  const at::Tensor signs = a * 2 - 1 + b * 2 - 1;
  EXPECT_TRUE(at::allclose(got, signs * (0.5 / std::sqrt(1.0 / 3))));
  // Equal rewards of one kind leave the other alone.
  const at::Tensor half = at::stack({a, at::full({4}, 0.1, at::kDouble)}).unsqueeze(1);
  EXPECT_TRUE(at::allclose(combine_rewards(half, {1, 9}, RewardCombination::separately_normalised),
                           group_advantages(a.unsqueeze(0), {}, AdvantageScale::group).values));
}

}  // namespace
}  // namespace hrm::objectives
