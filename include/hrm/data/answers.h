#pragma once
// A task whose prompts have several known right answers: to split a number into two parts, the first a multiple of
// another number. "Split 57, first part a multiple of 9." has the answers "9 + 48", "18 + 39", ..., "54 + 3". No torch
// here.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hrm::data {

inline constexpr int64_t kFewestAnswers = 4, kMostAnswers = 12;

// number = a + b with a = step, 2 step, ... below number.
struct AnswersProblem {
  int64_t number = 0;
  int64_t step = 0;
  int64_t answers() const { return (number - 1) / step; }
  bool operator==(const AnswersProblem&) const = default;
};

// All problems of numbers up to `largest` with 4 to 12 answers.
std::vector<AnswersProblem> answers_problems(int64_t largest);

std::string answers_prompt(const AnswersProblem& problem);
// All right answers, the smallest first part first.
std::vector<std::string> right_answers(const AnswersProblem& problem);
// Whether an answer, without white space around it, is right. Throws Error(data) for a prompt of another form.
bool is_right_answer(std::string_view prompt, std::string_view answer);

struct AnswersOptions {
  int64_t largest = 200;  // number to be split, 12 to 10,000
  // Prompts of the splits, all different.
  int64_t train = 2000;
  int64_t validation = 200;
  int64_t test = 200;
  int64_t responses = 4;  // records of each prompt, each with a response of its own
  // How much rarer an answer is shown than the one before: the i-th with a probability in proportion to skew^i. 1: all
  // alike. So a model that learns the data by heart says the first answers mostly.
  double skew = 0.5;
  uint64_t seed = 0;
};

// JSON lines {"prompt", "response", "answers"} (hrm/formats/chat_record.h) of the splits.
struct AnswersCorpus {
  std::string train, validation, test;
  int64_t problems = 0;  // that there are, of which the splits take some
};

// Throws Error(usage) for options that are none, or more prompts than there are problems.
AnswersCorpus make_answers_corpus(const AnswersOptions& options);

}  // namespace hrm::data
