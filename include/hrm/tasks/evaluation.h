#pragma once
// Evaluation of a trained model, as `hrm_train eval` asks a task for it.

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "hrm/tasks/task.h"
#include "hrm/tasks/trained_model.h"

namespace hrm::tasks {

struct AnswerEvaluation;

struct EvalRequest {
  std::string data;  // what to evaluate on; empty: what the run set apart for this
  std::function<void(const EvalProgress&)> progress;
  // Task puzzle: no puzzle has an embedding of its own; for ARC data, file for the submission and folder for pictures
  // of the answers (empty: none).
  bool blank_identifier = false;
  std::string submission = {};
  std::string pictures = {};
};

struct EvalOutcome {
  std::string name;             // of the model in comparisons; empty: the run's
  nlohmann::ordered_json head;  // of eval.json: checkpoint, step, weights, data and how it was evaluated
  NamedValues values;
  std::string text;                                 // one line for the log
  std::shared_ptr<const AnswerEvaluation> answers;  // sampled ones; null: the task samples none
};

// checkpoint, step, weights: what every head begins with.
nlohmann::ordered_json eval_head(const TrainedModel& model);
// eval.weights, for one evaluation: a run that evaluates both sets is measured as it is used, by its average.
std::string weights_to_evaluate(const config::Config& config);

}  // namespace hrm::tasks
