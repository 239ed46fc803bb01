#pragma once
// A generated task whose prompts have several right answers: split a number into two parts, the first a multiple of
// another number. "Split 57, first part a multiple of 9." has the answers "9 + 48", "18 + 39", ..., "54 + 3".
// This header does not depend on torch.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hrm::data {

inline constexpr int64_t kFewestAnswers = 4, kMostAnswers = 12;

// number = a + b, where a is step, 2 step, ... and a < number.
struct AnswersProblem {
  int64_t number = 0;
  int64_t step = 0;
  int64_t answers() const { return (number - 1) / step; }
  bool operator==(const AnswersProblem&) const = default;
};

// All problems with numbers up to `largest` that have 4 to 12 answers.
std::vector<AnswersProblem> answers_problems(int64_t largest);

std::string answers_prompt(const AnswersProblem& problem);
// All right answers, ordered by their first part.
std::vector<std::string> right_answers(const AnswersProblem& problem);
// Returns whether the answer is right, ignoring surrounding white space. Throws Error(data) if the prompt does not have
// the form above.
bool is_right_answer(std::string_view prompt, std::string_view answer);

struct AnswersOptions {
  int64_t largest = 200;  // largest number to split, 12 to 10,000
  // Prompts in each split; no prompt occurs twice.
  int64_t train = 2000;
  int64_t validation = 200;
  int64_t test = 200;
  int64_t responses = 4;  // records per prompt, each with its own response
  // The i-th answer is drawn with probability proportional to skew^i. 1 is uniform. With a small skew, a model that
  // memorizes the data mostly gives the first answers.
  double skew = 0.5;
  uint64_t seed = 0;
};

// The splits as JSON lines {"prompt", "response", "answers"} (hrm/formats/chat_record.h).
struct AnswersCorpus {
  std::string train, validation, test;
  int64_t problems = 0;  // problems that exist; the splits use some of them
};

// Throws Error(usage) for invalid options, or if the splits need more prompts than there are problems.
AnswersCorpus make_answers_corpus(const AnswersOptions& options);

}  // namespace hrm::data
