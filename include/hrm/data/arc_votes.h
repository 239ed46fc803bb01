#pragma once
// Voting over augmented copies: the answers to one test input, brought back to the task's own frame, are counted (HRM,
// arXiv 2506.21734; TRM, arXiv 2510.04871).

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hrm/data/arc.h"

namespace hrm::data {

class ArcVotes {
 public:
  // `identifiers`: names by puzzle identifier, 0 is blank (identifiers.json). `tasks`: with their answers
  // (test_puzzles.json). Throws Error(data) for a name that neither a task nor a copy has.
  ArcVotes(const std::vector<std::string>& identifiers, std::vector<ArcTask> tasks);

  // One answer: puzzle identifier, (900) tokens of question and answer, Q value of halting (a logit; NaN counts as
  // probability 0). Identifier 0 is padding and does not count, nor do tasks that are not among `tasks`.
  void add(int32_t identifier, const int32_t* question, const int32_t* answer, float q_halt);

  struct Candidate {
    ArcGrid grid;
    int64_t votes = 0;
    double mean_q = 0;  // mean of sigmoid(q_halt)
  };
  // The candidates for a test input of a task, the best first: more votes, then the larger mean_q. `copies`: only
  // answers to the task itself and to its first copies - 1 copies by identifier count; 0 = all.
  std::vector<Candidate> ranking(const std::string& task, const ArcGrid& input, int64_t copies = 0) const;

  // Share of solved test inputs, each task weighing 1: for a test input, the answer is among its best `k` candidates.
  double pass(int64_t k, int64_t copies = 0) const;
  // The same, where a task counts only if all of its test inputs are solved.
  double pass_whole(int64_t k, int64_t copies = 0) const;

  // submission.json of the ARC Prize: two attempts for each test input; the first twice where there is one candidate,
  // and [[0]] where there is none.
  std::string submission() const;

  const std::vector<ArcTask>& tasks() const { return tasks_; }

 private:
  struct Answer {
    ArcGrid grid;
    int64_t copy;  // 0 = the task itself, then in the order of the identifiers
    double q;
  };
  double mean_over_tasks(int64_t k, int64_t copies, bool whole) const;

  std::vector<ArcTask> tasks_;
  std::vector<ArcName> names_;                                              // by identifier
  std::vector<int64_t> copies_;                                             // by identifier
  std::map<std::pair<std::string, ArcGrid>, std::vector<Answer>> answers_;  // by task and input, in order of arrival
};

}  // namespace hrm::data
