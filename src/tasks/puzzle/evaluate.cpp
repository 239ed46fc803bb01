// The evaluation of a trained puzzle model.
#include <algorithm>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/data/arc_picture.h"
#include "hrm/data/arc_votes.h"
#include "hrm/data/dataset.h"
#include "hrm/metrics/metric_text.h"
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

void check_fits(const data::PuzzleDataset& dataset, const PuzzleInference& loaded, bool blank_identifier) {
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
  const int64_t identifiers = blank_identifier ? meta.blank_identifier_id + 1 : meta.num_puzzle_identifiers;
  require(dims.puzzle_emb_ndim == 0 || identifiers <= dims.num_puzzle_identifiers, ExitCode::data, "'",
          dataset.origin(), "' has ", meta.num_puzzle_identifiers, " puzzle identifiers, the model of '",
          loaded.checkpoint.string(), "' ", dims.num_puzzle_identifiers,
          "; to fine-tune it on them: hrm_train train --init ", loaded.checkpoint.string());
}

// Where the data are ARC tasks with their answers.
std::optional<data::ArcVotes> arc_votes(const data::PuzzleDataset& dataset, const EvalRequest& request,
                                        const config::Config& config) {
  const bool arc = dataset.kind() == data::PuzzleKind::arc;
  for (const auto& [option, path] :
       {std::pair("--submission", &request.submission), {"--pictures", &request.pictures}}) {
    if (path->empty()) continue;
    require(arc, ExitCode::usage, option, ": '", dataset.origin(),
            "' is no folder of ARC tasks, as 'hrm_train data arc' makes it");
    require(config.eval.max_samples == 0, ExitCode::usage, option,
            " needs the answers to all samples, and eval.max_samples is ", config.eval.max_samples, "; leave it out");
  }
  if (!arc) return std::nullopt;
  const auto root = std::filesystem::path(dataset.origin()).parent_path();
  const auto file = root / data::kArcTestPuzzles;
  const std::vector<std::string>& names = dataset.identifiers();
  require(static_cast<int64_t>(names.size()) == dataset.meta().num_puzzle_identifiers, ExitCode::data,
          (root / "identifiers.json").string(), ": names ", names.size(), " identifiers, but ", dataset.origin(),
          " has ", dataset.meta().num_puzzle_identifiers, "; build the folder again");
  std::vector<data::ArcTask> tasks = data::read_arc_test_puzzles(file);
  require(!tasks.empty(), ExitCode::data, file.string(), ": has no task, but ", dataset.origin(),
          " has samples; build the folder again");
  for (const data::ArcTask& task : tasks) {
    require(std::find(names.begin(), names.end(), task.name) != names.end(), ExitCode::data, file.string(), ": task ",
            printable_start(task.name), " is not in identifiers.json beside it; build the folder again");
  }
  if (!request.pictures.empty()) data::require_new_arc_pictures(request.pictures, tasks);
  return data::ArcVotes(names, std::move(tasks));
}

void add_votes(data::ArcVotes& votes, const PuzzleAnswers& answers) {
  const int64_t cells = answers.inputs.size(1);
  for (int64_t row = 0; row < answers.inputs.size(0); ++row) {
    votes.add(answers.identifiers.const_data_ptr<int32_t>()[row],
              answers.inputs.const_data_ptr<int32_t>() + row * cells,
              answers.tokens.const_data_ptr<int32_t>() + row * cells, answers.q_halt.const_data_ptr<float>()[row]);
  }
}

// pass@K of all votes, and of those of the task itself and its first copies alone.
void report_votes(const data::ArcVotes& votes, const EvalRequest& request, EvalOutcome& outcome) {
  outcome.values.emplace_back("tasks", static_cast<double>(votes.tasks().size()));
  for (const int64_t k : {1, 2, 5, 10, 100, 1000}) outcome.values.emplace_back(cat("pass@", k), votes.pass(k));
  outcome.values.emplace_back("whole_pass@2", votes.pass_whole(2));
  for (const int64_t copies : {1, 10, 100}) {
    for (const int64_t k : {1, 2}) {
      outcome.values.emplace_back(cat("pass@", k, "_of_", copies), votes.pass(k, copies));
    }
  }
  outcome.text += cat(" | pass@1 ", metrics::percent(votes.pass(1)), " | pass@2 ", metrics::percent(votes.pass(2)),
                      " of ", votes.tasks().size(), " tasks");
  if (!request.submission.empty()) write_text_atomic(request.submission, votes.submission() + "\n");
  if (request.pictures.empty()) return;
  const bool known = data::arc_answers_known(votes.tasks());
  data::write_arc_pictures(request.pictures, votes.tasks(), {.known = known, .votes = &votes});
}

}  // namespace

EvalOutcome evaluate_puzzles(const StoredModel& stored, const EvalRequest& request) {
  const auto dataset = open_eval_data(request, stored.config);
  const PuzzleInference loaded = open_puzzle_model(stored, weights_to_evaluate(stored.config), dataset->meta().seq_len);
  check_fits(*dataset, loaded, request.blank_identifier);
  PuzzleEvalOptions options = puzzle_eval_options(loaded.config, *loaded.model, loaded.runtime, /*training_batch=*/0);
  require(!request.blank_identifier || loaded.model->dims().puzzle_emb_ndim > 0, ExitCode::usage,
          "--blank-identifier: the model has no puzzle embedding, so no identifier changes its answers; leave it out");
  options.blank_identifier = request.blank_identifier;
  std::optional<data::ArcVotes> votes = arc_votes(*dataset, request, loaded.config);
  if (votes) options.on_answers = [&](const PuzzleAnswers& answers) { add_votes(*votes, answers); };
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
  if (votes) report_votes(*votes, request, outcome);
  outcome.head["data"] = dataset->origin();
  outcome.head["segments"] = options.segments;
  outcome.head["early_halt"] = options.early_halt;
  if (options.blank_identifier) outcome.head["blank_identifier"] = true;
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
