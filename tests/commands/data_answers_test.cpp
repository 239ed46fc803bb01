#include "hrm/data/answers.h"

#include <map>
#include <set>
#include <sstream>

#include "data/chat/chat_support.h"
#include "hrm/commands/language_data.h"

namespace hrm::data {
namespace {

using test::TempDir;
using Texts = std::vector<std::string>;

TEST(Answers, AreAllThatIsRight) {
  const AnswersProblem problem{57, 9};
  EXPECT_EQ(answers_prompt(problem), "Split 57, first part a multiple of 9.");
  EXPECT_EQ(right_answers(problem), (Texts{"9 + 48", "18 + 39", "27 + 30", "36 + 21", "45 + 12", "54 + 3"}));
  // By trying all.
  int right = 0;
  for (int a = -60; a <= 120; ++a) {
    for (int b = -60; b <= 120; ++b) right += is_right_answer(answers_prompt(problem), cat(a, " + ", b));
  }
  EXPECT_EQ(right, problem.answers());
  // The number itself has no second part.
  EXPECT_EQ(right_answers({12, 3}), (Texts{"3 + 9", "6 + 6", "9 + 3"}));
}

TEST(Answers, AreReadStrictly) {
  const std::string prompt = "Split 57, first part a multiple of 9.";
  EXPECT_TRUE(is_right_answer(prompt, " 9 + 48\n"));
  for (const char* wrong : {"",
                            " ",
                            "9",
                            "9 +",
                            "9 + ",
                            "9+48",
                            "9 + 48.",
                            "9  + 48",
                            "09 + 48",
                            "9 + 048",
                            "48 + 9",
                            "57 + 0",
                            "0 + 57",
                            "-9 + 66",
                            "66 + -9",
                            "9 + 47",
                            "9 + 48 + 0",
                            "+9 + 48",
                            "10 + 47",
                            "99999999999999999999 + 1",
                            "9223372036854775800 + 9223372036854775807",
                            "x"}) {
    EXPECT_FALSE(is_right_answer(prompt, wrong)) << wrong;
  }
  for (const char* bad : {"", "Split 57, first part a multiple of 9", "Split 57, first part a multiple of 9. ",
                          "Split 057, first part a multiple of 9.", "Split x, first part a multiple of 9.",
                          "Split 57, first part a multiple of .", "Split 57, first part a multiple of 0."}) {
    expect_error(ExitCode::data, {"is no prompt of the form 'Split 57, first part a multiple of 9.'"},
                 [&] { is_right_answer(bad, "9 + 48"); });
  }
}

TEST(Answers, ProblemsHaveFourToTwelve) {
  const auto problems = answers_problems(60);
  std::set<std::string> prompts;
  for (const AnswersProblem& problem : problems) {
    const auto answers = right_answers(problem);
    EXPECT_GE(answers.size(), 4u);
    EXPECT_LE(answers.size(), 12u);
    for (const std::string& answer : answers) EXPECT_TRUE(is_right_answer(answers_prompt(problem), answer));
    EXPECT_TRUE(prompts.insert(answers_prompt(problem)).second);
  }
  size_t want = 0;
  for (int number = 1; number <= 60; ++number) {
    for (int step = 1; step <= 60; ++step) {
      const int answers = (number - 1) / step;
      want += answers >= 4 && answers <= 12;
    }
  }
  EXPECT_EQ(problems.size(), want);
  EXPECT_EQ(answers_problems(200).size(), 3460u);
  EXPECT_TRUE(answers_problems(4).empty());
}

std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Answers, SplitsHaveOtherPrompts) {
  AnswersOptions options;
  options.train = 300;
  options.validation = 40;
  options.test = 30;
  options.responses = 3;
  const AnswersCorpus corpus = make_answers_corpus(options);
  EXPECT_EQ(corpus.problems, 3460);
  std::map<std::string, std::set<int>> splits_of;
  std::map<std::string, int> counts;
  int split = 0;
  for (const std::string* text : {&corpus.train, &corpus.validation, &corpus.test}) {
    for (const nlohmann::json& line : lines_of(*text)) {
      const Texts answers = line["answers"];
      EXPECT_NE(std::find(answers.begin(), answers.end(), line["response"].get<std::string>()), answers.end());
      EXPECT_TRUE(is_right_answer(line["prompt"].get<std::string>(), line["response"].get<std::string>()));
      splits_of[line["prompt"]].insert(split);
      ++counts[line["prompt"]];
    }
    ++split;
  }
  std::vector<int> prompts(3);
  for (const auto& [prompt, splits] : splits_of) {
    ASSERT_EQ(splits.size(), 1u) << prompt;
    EXPECT_EQ(counts[prompt], 3);
    ++prompts[*splits.begin()];
  }
  EXPECT_EQ(prompts, (std::vector<int>{300, 40, 30}));
  EXPECT_EQ(make_answers_corpus(options).train, corpus.train);
  options.seed = 1;
  EXPECT_NE(make_answers_corpus(options).train, corpus.train);
}

// Shares of the answers by their place, over prompts with 12 of them.
std::vector<double> shares(double skew) {
  AnswersOptions options;
  options.largest = 100;
  options.train = static_cast<int64_t>(answers_problems(100).size());
  options.validation = options.test = 0;
  options.responses = 150;
  options.skew = skew;
  std::vector<double> counts(12);
  double total = 0;
  for (const nlohmann::json& line : lines_of(make_answers_corpus(options).train)) {
    const Texts answers = line["answers"];
    if (answers.size() != 12) continue;
    ++counts[std::find(answers.begin(), answers.end(), line["response"].get<std::string>()) - answers.begin()];
    ++total;
  }
  EXPECT_GT(total, 4000);
  for (double& count : counts) count /= total;
  return counts;
}

TEST(Answers, AreShownWithTheirProbabilities) {
  const auto half = shares(0.5), even = shares(1);
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += std::pow(0.5, i);
  for (int i = 0; i < 12; ++i) {
    // Four standard deviations of a share of 4,000 draws.
    EXPECT_NEAR(half[i], std::pow(0.5, i) / sum, 0.032) << i;
    EXPECT_NEAR(even[i], 1.0 / 12, 0.018) << i;
  }
}

TEST(Answers, OptionsAreChecked) {
  const auto refused = [](auto&& change, const std::string& part) {
    AnswersOptions options;
    change(options);
    expect_error(ExitCode::usage, {part}, [&] { make_answers_corpus(options); });
  };
  refused([](AnswersOptions& o) { o.largest = 11; }, "the largest number is 11; it must be within 12 to 10000");
  refused([](AnswersOptions& o) { o.train = 0; }, "a corpus of 0 prompts for training");
  refused([](AnswersOptions& o) { o.test = -1; }, "-1 for a test");
  refused([](AnswersOptions& o) { o.responses = 0; }, "0 responses to a prompt");
  refused([](AnswersOptions& o) { o.skew = 0; }, "the skew 0 must be above 0");
  refused([](AnswersOptions& o) { o.train = 3400; },
          "there are 3460 prompts of numbers up to 200, fewer than the 3400, 200 and 200");
  refused([](AnswersOptions& o) { o.validation = INT64_MAX; }, "there are 3460 prompts");
}

TEST(Answers, TheCommandWritesWhatChatsAreReadFrom) {
  const TempDir dir;
  AnswersCommand command;
  command.options.train = 50;
  command.options.validation = 10;
  command.options.test = 0;
  command.options.responses = 2;
  command.out = dir / "d";
  write_text(dir / "d" / "test.jsonl", "of an earlier build");
  std::ostringstream out;
  run_data_answers(command, out);
  EXPECT_NE(out.str().find("train: 50 prompts, 100 records\nval: 10 prompts, 20 records\n"), std::string::npos)
      << out.str();
  EXPECT_FALSE(std::filesystem::exists(dir / "d" / "test.jsonl"));
  const ChatEncoder chat = open_chat_encoder(dir / "d", {.name = config::ChatTemplateKind::plain});
  const ChatDataset train(dir / "d" / "train.jsonl", chat, {}), val(dir / "d" / "val.jsonl", chat, {});
  EXPECT_EQ(train.counts().text(), "100 records: 100 examples of 50 prompts");
  EXPECT_EQ(val.size(), 20);
  for (const ChatExample& example : train.examples()) {
    EXPECT_EQ(example.prompt_ids.size(), example.prompt.size());
    EXPECT_EQ(example.response_ids.size(), example.response.size() + 1);
    // All of the characters stand at the beginning of the vocabulary.
    for (const int32_t id : example.prompt_ids) EXPECT_LT(id, 30) << example.prompt;
    EXPECT_EQ(example.response_ids.back(), 2);
    EXPECT_TRUE(is_right_answer(example.prompt, example.response));
  }
  EXPECT_EQ(train.meta().vocab_size, 259);
  command.out = "";
  expect_error(ExitCode::usage, {"--out"}, [&] { run_data_answers(command, out); });
}

}  // namespace
}  // namespace hrm::data
