#pragma once
// The measuring of a puzzle model on a test set: in a training and by `hrm_train eval`.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "hrm/config/config.h"
#include "hrm/data/dataset.h"
#include "hrm/models/puzzle_model.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/puzzle_evaluator.h"
#include "hrm/tasks/puzzle_rules.h"
#include "hrm/tasks/rollouts.h"
#include "hrm/tasks/task.h"

namespace hrm::data {
class TestReader;
struct TestBatch;
}  // namespace hrm::data

namespace hrm::tasks {

// The answers to some samples, on the host.
struct PuzzleAnswers {
  at::Tensor identifiers;  // (N) int32, of the samples
  at::Tensor inputs;       // (N, S) int32
  at::Tensor tokens;       // (N, S) int32: the answers; with rollouts the chosen ones
  at::Tensor q_halt;       // (N) float32
};

struct PuzzleEvalOptions {
  // Samples that run at a time. 0 = the samples in equal parts, none larger than largest_batch, or half of it with
  // early_halt, where a call should have samples in waiting.
  int64_t batch_size = 0;
  int64_t max_samples = 0;  // 0 = all, otherwise spread evenly over the set
  int64_t segments = 0;
  bool early_halt = false;  // PuzzleEvaluatorOptions
  bool cuda_graphs = true;
  config::RolloutSelector selector = config::RolloutSelector::q;  // with rollouts
  PuzzleRules rules = {};  // with rollouts: how well a choice by the rules would do; empty: is not reported
  int64_t largest_batch = 2048;
  // The model gets the blank identifier for every sample, so that no puzzle has an embedding of its own.
  bool blank_identifier = false;
  // Gets this rank's answers, batch by batch; for it the host reads them. Empty: nobody does.
  std::function<void(const PuzzleAnswers&)> on_answers = {};
  // With rollouts.rollouts above 1 each sample has several; rows, segments and cuda_graphs of it follow from the above.
  RolloutOptions rollouts{.rollouts = 1};
};

// As configured. On a GPU the largest batch is what half of the free memory holds. `training_batch`: rows of a training
// that continues meanwhile, or 0. With it, an evaluation uses no more memory than the training's steps.
PuzzleEvalOptions puzzle_eval_options(const config::Config& config, models::PuzzleModel& model, const Runtime& runtime,
                                      int64_t training_batch);

// Evaluations of a model on a set of puzzles. Keeps its captured segments and their buffers (the carry of a batch and
// its answers) from one to the next.
class PuzzleEvaluation {
 public:
  // `model` must live as long. Error(data) when the set has no sample. `comm`: the ranks that share the samples, each
  // with batches of options.batch_size; null = this one alone.
  PuzzleEvaluation(models::PuzzleModel& model, std::shared_ptr<const data::PuzzleDataset> dataset,
                   const config::ObjectiveConfig& objective, const PuzzleEvalOptions& options, at::Device device,
                   std::shared_ptr<parallel::Comm> comm = nullptr);
  ~PuzzleEvaluation();
  PuzzleEvaluation(const PuzzleEvaluation&) = delete;
  PuzzleEvaluation& operator=(const PuzzleEvaluation&) = delete;

  // Sums over one pass, by the official definitions (last segment's values, means over all samples): count, accuracy
  // (cells of a sample, mean), exact_accuracy, q_halt_accuracy, steps (with early_halt fewer than segments), lm_loss,
  // q_halt_loss. Uses the current weights. The host reads nothing before a batch is done. An exception from `progress`
  // ends it. It is called equally often on every rank, with the samples of all.
  //
  // With rollouts: count, accuracy, exact_accuracy and q_halt_accuracy of the chosen ones, steps, and the shares of
  // samples that each selector gets right (exact_q, exact_majority, ...) and that some rollout gets right (exact_any),
  // the mean over rollouts (exact_mean), and the share whose rollouts disagree (answers_differ). Means of the chosen
  // ones: residual and settled (RolloutEvaluator::Answers). With rules also exact_valid: the largest Q value among
  // answers that obey them; for that the host reads the answers of each batch.
  NamedValues run(const std::function<void(const EvalProgress&)>& progress);

 private:
  NamedValues run_rollouts(const std::function<void(const EvalProgress&)>& progress);
  at::Tensor take_identifiers(data::TestBatch& test) const;
  void hand_over(const data::TestBatch& test, const at::Tensor& identifiers, const at::Tensor& tokens,
                 const at::Tensor& q_halt) const;

  models::PuzzleModel& model_;
  config::ObjectiveConfig objective_;
  at::Device device_;
  std::shared_ptr<parallel::Comm> comm_;
  std::unique_ptr<data::TestReader> reader_;
  std::unique_ptr<PuzzleEvaluator> evaluator_;  // or, with rollouts:
  std::unique_ptr<RolloutEvaluator> rollouts_;
  config::RolloutSelector selector_ = config::RolloutSelector::q;
  PuzzleRules rules_;
  std::optional<int64_t> blank_;  // the identifier that the model gets instead of a sample's own
  std::function<void(const PuzzleAnswers&)> on_answers_;
};

// "exact 61.2 % | cells 93.4 % | Q right 88.0 %", also used by `hrm_train eval`.
std::string puzzle_eval_text(const NamedValues& result);

}  // namespace hrm::tasks
