#include "hrm/data/answers.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/base/philox.h"
#include "hrm/base/text.h"
#include "hrm/data/sampler.h"

namespace hrm::data {
namespace {

// "Split 57, first part a multiple of 9."
constexpr std::string_view kBefore = "Split ", kBetween = ", first part a multiple of ", kAfter = ".", kPlus = " + ";
constexpr int64_t kSmallest = 12, kLargest = 10'000;

// Parses a positive number without leading zeros and advances `text` past it.
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || text[0] == '0' || value <= 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

bool take_answer(std::string_view& text, std::string_view part) {
  if (!text.starts_with(part)) return false;
  text.remove_prefix(part.size());
  return true;
}

AnswersProblem parse_prompt(std::string_view prompt) {
  std::string_view rest = prompt;
  std::optional<int64_t> number, step;
  const bool good = take_answer(rest, kBefore) && (number = take_number(rest)) && take_answer(rest, kBetween) &&
                    (step = take_number(rest)) && rest == kAfter;
  require(good, ExitCode::data, "'", printable_start(prompt), "' is no prompt of the form '", answers_prompt({57, 9}),
          "'");
  return {*number, *step};
}

std::string answer_text(const AnswersProblem& problem, int64_t i) {
  const int64_t first = (i + 1) * problem.step;
  return cat(first, kPlus, problem.number - first);
}

// The answer that record `record` contains.
int64_t drawn_answer(const AnswersProblem& problem, const AnswersOptions& options, uint64_t record) {
  double sum = 0;
  for (int64_t i = 0; i < problem.answers(); ++i) sum += std::pow(options.skew, i);
  CounterRng rng(options.seed, Stream::generate, record);
  double left = static_cast<double>(rng.uniform()) * sum;
  int64_t answer = 0;
  for (; answer + 1 < problem.answers(); ++answer) {
    left -= std::pow(options.skew, answer);
    if (left < 0) break;
  }
  return answer;
}

void check(const AnswersOptions& options) {
  require(options.largest >= kSmallest && options.largest <= kLargest, ExitCode::usage, "the largest number is ",
          options.largest, "; it must be within ", kSmallest, " to ", kLargest);
  require(options.train >= 1 && options.validation >= 0 && options.test >= 0, ExitCode::usage, "a corpus of ",
          options.train, " prompts for training, ", options.validation, " for validation and ", options.test,
          " for a test");
  require(options.responses >= 1 && options.responses <= 1000, ExitCode::usage, options.responses,
          " responses to a prompt; choose 1 to 1000");
  require(options.skew > 0 && options.skew <= 1, ExitCode::usage, "the skew ", options.skew,
          " must be above 0 and at most 1");
}

}  // namespace

std::vector<AnswersProblem> answers_problems(int64_t largest) {
  std::vector<AnswersProblem> problems;
  for (int64_t number = 1; number <= largest; ++number) {
    for (int64_t step = 1; step < number; ++step) {
      const AnswersProblem problem{number, step};
      if (problem.answers() < kFewestAnswers) break;
      if (problem.answers() <= kMostAnswers) problems.push_back(problem);
    }
  }
  return problems;
}

std::string answers_prompt(const AnswersProblem& problem) {
  return cat(kBefore, problem.number, kBetween, problem.step, kAfter);
}

std::vector<std::string> right_answers(const AnswersProblem& problem) {
  std::vector<std::string> answers;
  for (int64_t i = 0; i < problem.answers(); ++i) answers.push_back(answer_text(problem, i));
  return answers;
}

bool is_right_answer(std::string_view prompt, std::string_view answer) {
  const AnswersProblem problem = parse_prompt(prompt);
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = std::min(answer.find_first_not_of(kSpace), answer.size());
  answer = answer.substr(begin, answer.find_last_not_of(kSpace) + 1 - begin);
  const std::optional<int64_t> first = take_number(answer);
  if (!first || !take_answer(answer, kPlus)) return false;
  const std::optional<int64_t> second = take_number(answer);
  // Compares the difference, because a sum of user input may overflow int64.
  return second && answer.empty() && *first < problem.number && *second == problem.number - *first &&
         *first % problem.step == 0;
}

AnswersCorpus make_answers_corpus(const AnswersOptions& options) {
  check(options);
  const std::vector<AnswersProblem> problems = answers_problems(options.largest);
  AnswersCorpus corpus;
  corpus.problems = static_cast<int64_t>(problems.size());
  // Compares each size separately, because a sum of user input may overflow int64.
  const bool enough = options.train <= corpus.problems && options.validation <= corpus.problems &&
                      options.test <= corpus.problems &&
                      options.train + options.validation + options.test <= corpus.problems;
  require(enough, ExitCode::usage, "there are ", corpus.problems, " prompts of numbers up to ", options.largest,
          ", fewer than the ", options.train, ", ", options.validation, " and ", options.test,
          " of the splits; choose fewer, or a larger number");
  const CounterPermutation order(options.seed, 0, problems.size());
  uint64_t next = 0, record = 0;
  const auto add = [&](std::string& split, int64_t prompts) {
    for (int64_t i = 0; i < prompts; ++i) {
      const AnswersProblem& problem = problems[order(next++)];
      const std::vector<std::string> answers = right_answers(problem);
      for (int64_t k = 0; k < options.responses; ++k) {
        const nlohmann::ordered_json line = {{"prompt", answers_prompt(problem)},
                                             {"response", answers[drawn_answer(problem, options, record++)]},
                                             {"answers", answers}};
        split += line.dump() + "\n";
      }
    }
  };
  add(corpus.train, options.train);
  add(corpus.validation, options.validation);
  add(corpus.test, options.test);
  return corpus;
}

}  // namespace hrm::data
