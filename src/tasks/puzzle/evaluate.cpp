// The evaluation of a trained puzzle model.
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/data/dataset.h"
#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/puzzle.h"
#include "hrm/tasks/puzzle_inference.h"
#include "tasks/puzzle/spec.h"

namespace hrm::tasks {
namespace {

// The data that --data names, or else the test data of the run.
std::shared_ptr<const data::PuzzleDataset> open_eval_data(const EvalRequest& request, const config::Config& config) {
  const std::string path = request.data.empty() ? config.data.test : request.data;
  require(!path.empty(), ExitCode::usage, "the run has no test data (data.test is empty); give --data DIR or CSV");
  return data::open_dataset(path, "test", config.data);
}

void check_fits(const data::PuzzleDataset& dataset, const PuzzleInference& loaded) {
  const models::PuzzleModelDims& dims = loaded.model->dims();
  const data::PuzzleMeta& meta = dataset.meta();
  require(meta.seq_len == dims.seq_len, ExitCode::data, "'", dataset.origin(), "' has puzzles of ", meta.seq_len,
          " cells, the model of '", loaded.checkpoint.string(), "' takes ", dims.seq_len);
  require(meta.vocab_size == dims.vocab_size, ExitCode::data, "'", dataset.origin(), "' has ", meta.vocab_size,
          " tokens, the model of '", loaded.checkpoint.string(), "' ", dims.vocab_size,
          "; they are not the same kind of puzzle");
  const auto& trained = loaded.vocabulary;
  require(!trained || !dataset.vocabulary() || trained->tokens == dataset.vocabulary()->tokens, ExitCode::data, "'",
          dataset.origin(), "' has other symbols than the data of the model of '", loaded.checkpoint.string(),
          "'; build it with --alphabet, or in one call of hrm_train data with the training puzzles");
  require(dims.puzzle_emb_ndim == 0 || meta.num_puzzle_identifiers <= dims.num_puzzle_identifiers, ExitCode::data, "'",
          dataset.origin(), "' has ", meta.num_puzzle_identifiers, " puzzle identifiers, the model of '",
          loaded.checkpoint.string(), "' ", dims.num_puzzle_identifiers,
          "; to fine-tune it on them: hrm_train train --init ", loaded.checkpoint.string());
}

}  // namespace

EvalOutcome evaluate_puzzles(const StoredModel& stored, const EvalRequest& request) {
  const auto dataset = open_eval_data(request, stored.config);
  const PuzzleInference loaded = open_puzzle_model(stored, weights_to_evaluate(stored.config), dataset->meta().seq_len);
  check_fits(*dataset, loaded);
  PuzzleEvalOptions options = puzzle_eval_options(loaded.config, *loaded.model, loaded.runtime, /*training_batch=*/0);
  if (dataset->vocabulary()) options.rules = {};  // sizes say nothing about these tokens
  log::info("evaluating ", loaded.checkpoint.string(), " (", loaded.averaged ? "averaged" : "raw", " weights) on ",
            dataset->origin(), ", ",
            options.rollouts.rollouts > 1 ? cat(options.rollouts.rollouts, " rollouts of ") : std::string(),
            options.segments, options.early_halt ? " segments at most, " : " segments, ", loaded.runtime.device_name);
  PuzzleEvaluation evaluation(*loaded.model, dataset, loaded.config.objective, options, loaded.runtime.device);
  EvalOutcome outcome;
  outcome.head = eval_head(loaded);
  outcome.values = evaluation.run(request.progress);
  outcome.text = puzzle_eval_text(outcome.values);
  outcome.head["data"] = dataset->origin();
  outcome.head["segments"] = options.segments;
  outcome.head["early_halt"] = options.early_halt;
  outcome.head["rollouts"] = options.rollouts.rollouts;
  if (options.rollouts.rollouts > 1) {
    outcome.head["noise"] = options.rollouts.noise;
    outcome.head["noisy_state"] = config::name_of(options.rollouts.noisy_state);
    outcome.head["selector"] = config::name_of(options.selector);
  }
  // Of the products of matrices; with early_halt at most.
  outcome.head["flops_per_puzzle"] =
      loaded.model->flops_per_sample_segment() * static_cast<double>(options.segments * options.rollouts.rollouts);
  return outcome;
}

}  // namespace hrm::tasks
