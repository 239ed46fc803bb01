#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "commands/report_files.h"
#include "hrm/base/error.h"
#include "hrm/base/file.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/commands/commands.h"
#include "hrm/data/dataset.h"
#include "hrm/data/language_open.h"
#include "hrm/tasks/answer_eval.h"
#include "hrm/tasks/causal_inference.h"
#include "hrm/tasks/language_eval.h"
#include "hrm/tasks/language_inference.h"
#include "hrm/tasks/puzzle.h"
#include "hrm/tasks/puzzle_inference.h"
#include "hrm/train/eval_reporter.h"

namespace hrm::commands {
namespace {

// The data that --data names, or else the test data of the run.
std::shared_ptr<const data::PuzzleDataset> open_eval_data(const EvalOptions& options, const config::Config& config) {
  const std::string path = options.data.empty() ? config.data.test : options.data;
  require(!path.empty(), ExitCode::usage, "the run has no test data (data.test is empty); give --data DIR or CSV");
  return data::open_dataset(path, "test", config.data);
}

template <class Inference>
nlohmann::ordered_json eval_head_json(const Inference& loaded) {
  nlohmann::ordered_json json;
  json["checkpoint"] = loaded.checkpoint.string();
  json["step"] = loaded.step;
  json["weights"] = loaded.averaged ? "ema" : "raw";
  return json;
}

void write_evaluation(nlohmann::ordered_json json, const tasks::NamedValues& result, double seconds,
                      const EvalOptions& options) {
  for (const auto& [key, value] : result) json[key] = value;
  json["seconds"] = seconds;
  const std::string text = json.dump(2) + "\n";
  std::cout << text;
  if (!options.json_out.empty()) write_text_atomic(options.json_out, text);
}

// --data: folders as data.test names them.
int eval_language(const EvalOptions& options, const config::Config& stored) {
  const std::string weights = stored.eval.weights == "both" ? "auto" : stored.eval.weights;
  std::vector<std::string> overrides = options.overrides;
  if (!options.data.empty()) overrides.push_back("data.test=" + options.data);
  const tasks::LanguageInference loaded = tasks::open_language_model(options.checkpoint, overrides, weights);
  auto slices = data::open_validation_slices(loaded.config.data, loaded.meta, loaded.config.eval.max_samples);
  require(!slices.empty(), ExitCode::usage, "the run has no validation data; give --data FOLDER");
  std::vector<std::string> origins;
  for (const data::ValidationSlice& slice : slices) origins.push_back(slice.source->origin());
  log::info("evaluating ", loaded.checkpoint.string(), " (", loaded.averaged ? "averaged" : "raw", " weights), ",
            slices.size(), slices.size() == 1 ? " slice, " : " slices, ", loaded.runtime.device_name);

  train::EvalReporter reporter;
  tasks::LanguageEvaluation evaluation(*loaded.model, tasks::language_eval_options(loaded.config, 1), std::move(slices),
                                       loaded.text, loaded.runtime.device);
  const tasks::NamedValues result =
      evaluation.run([&](const tasks::EvalProgress& progress) { reporter.report(progress); });
  const double seconds = reporter.seconds();
  log::info(tasks::language_eval_text(result), " | ", human_seconds(seconds));
  nlohmann::ordered_json json = eval_head_json(loaded);
  json["data"] = origins;
  write_evaluation(std::move(json), result, seconds, options);
  return static_cast<int>(ExitCode::done);
}

// --data: a file of JSON lines, or a folder; else what the run set apart for this: data.test, or the test side of its
// data, or, where there is none, what it was validated on. Folders that no run of ours wrote have none.
std::shared_ptr<const data::ChatSource> open_chat_eval_data(const EvalOptions& options,
                                                            const tasks::CausalInference& loaded) {
  const std::string path = options.data.empty() ? loaded.config.data.test : options.data;
  if (!path.empty()) {
    auto dataset = std::make_shared<data::ChatDataset>(path, *loaded.chat,
                                                       data::chat_data_options(loaded.config, /*need_response=*/false));
    std::vector<int64_t> examples(static_cast<size_t>(dataset->size()));
    std::iota(examples.begin(), examples.end(), int64_t{0});
    return std::make_shared<data::ChatSource>(std::move(dataset), std::move(examples), "test");
  }
  require(!loaded.config.data.train.empty(), ExitCode::usage, "'", loaded.checkpoint.string(),
          "' has no data of its own; give --data FILE");
  // Records are dropped as in the training, so that the sides are the same.
  data::ChatSides sides = tasks::open_chat_data(loaded.config, *loaded.chat, loaded.config.grpo.start_step != 1);
  const auto is_there = [](const data::ChatSide& side) { return side.dataset && !side.examples.empty(); };
  const bool has_test = is_there(sides.test);
  data::ChatSide& side = has_test ? sides.test : sides.validation;
  require(is_there(side), ExitCode::usage,
          "the run has no data for this (chat.val_share and chat.test_share are 0, data.test is empty); give --data "
          "FILE");
  return std::make_shared<data::ChatSource>(side.dataset, std::move(side.examples), has_test ? "test" : "validation");
}

// eval.json with the answers to each prompt, and the report of it alone.
void write_report(nlohmann::ordered_json json, const tasks::NamedValues& result, const tasks::AnswerEvaluation& found,
                  const std::string& name, const std::filesystem::path& folder) {
  for (const auto& [key, value] : result) json[key] = value;
  json["samples"] = nlohmann::ordered_json::array();
  for (const tasks::EvaluatedPrompt& p : found.prompts) {
    json["samples"].push_back({{"prompt", p.prompt},
                               {"reference", p.reference},
                               {"answers", p.answers},
                               {"greedy", p.greedy},
                               {"sampled", p.sampled},
                               {"right", p.right},
                               {"finished", p.finished},
                               {"values", p.values}});
  }
  // Bytes of a cut answer may be no UTF-8.
  const std::string text = json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::string file = (folder / kEvaluationFile).string();
  // First what was measured: a report can be made of it again.
  std::error_code said_by_what_writes;
  std::filesystem::create_directories(folder, said_by_what_writes);
  write_text_atomic(file, text);
  log::info("wrote ", file, ", ",
            write_answer_report(compare_answers({{name, {parse_evaluation(text, file)}}}), folder));
}

// The last token of an answer is not read again.
int64_t prompts_without_room(const data::ChatSource& source, int64_t positions, int64_t answer_tokens) {
  int64_t count = 0;
  for (int64_t i = 0; i < source.num_samples(1); ++i) {
    count += static_cast<int64_t>(source.example(i).prompt_ids.size()) + answer_tokens - 1 > positions ? 1 : 0;
  }
  return count;
}

tasks::CausalInference open_answering(const EvalOptions& options, const config::Config& stored) {
  if (tasks::is_model_folder(options.checkpoint)) {
    const int64_t positions = tasks::causal_positions(stored, read_hf_config(stored.hf.model));
    return tasks::open_model_folder(options.checkpoint, options.overrides, positions);
  }
  const std::string weights = stored.eval.weights == "both" ? "auto" : stored.eval.weights;
  return tasks::open_causal_checkpoint(options.checkpoint, options.overrides, weights);
}

// Of a folder, which belongs to no run, its own; unless it is given.
std::string causal_model_name(const tasks::CausalInference& loaded) {
  const std::string& name = loaded.config.run.name;
  if (loaded.step >= 0 || name != config::RunConfig().name) return name;
  return std::filesystem::absolute(loaded.checkpoint / "").lexically_normal().parent_path().filename().string();
}

// Cross-entropy of the responses, and what sampled answers are worth.
int eval_answers(const EvalOptions& options, const config::Config& stored) {
  tasks::CausalInference loaded = open_answering(options, stored);
  const config::Config& config = loaded.config;
  const auto source = open_chat_eval_data(options, loaded);
  log::info("evaluating ", loaded.checkpoint.string(), " (", loaded.averaged ? "averaged" : "raw", " weights) on ",
            source->origin(), ", ", loaded.runtime.device_name);
  nlohmann::ordered_json json = eval_head_json(loaded);
  json["data"] = source->origin();
  train::EvalReporter reporter;
  const auto progress = [&](const tasks::EvalProgress& at) { reporter.report(at); };
  if (loaded.lm.lora) {
    loaded.lm.lora->merge();
    loaded.lm.lora->set_mode(nn::LoraMode::merged);
  }
  const tasks::LanguageEvalOptions rows{.shape = {0, config.chat.max_length - 1},
                                        .rows = config.eval.batch_size > 0 ? config.eval.batch_size : 8,
                                        .chunk = config.objective.chunk};
  tasks::LanguageEvaluation evaluation(*loaded.lm.model, rows, {{"validation", source, config.eval.max_samples}},
                                       loaded.chat->encoder(), loaded.runtime.device);
  tasks::NamedValues result = evaluation.run(progress);
  log::info(tasks::language_eval_text(result));
  if (config.eval.answers > 0) {
    std::unique_ptr<tasks::AnswerDiversity> diversity;
    if (config.polychromic.diversity_metric != "semantic" || !config.polychromic.diversity_encoder_model.empty()) {
      diversity = std::make_unique<tasks::AnswerDiversity>(config.polychromic, loaded.runtime.device,
                                                           loaded.runtime.compute_dtype);
    }
    const tasks::AnswerEvalOptions wanted{
        .samples = config.eval.answers,
        .prompts = config.eval.max_samples,
        .max_new_tokens = config.eval.answer_tokens,
        .sampling = {.temperature = config.eval.answer_temperature, .top_p = config.eval.answer_top_p},
        .seed = static_cast<uint64_t>(config.run.seed),
        .response_model = loaded.lm.model.get(),
        .device = loaded.runtime.device,
        .response_positions = rows.shape.decoder_len,
        .response_rows = rows.rows,
        .chunk = rows.chunk};
    if (const int64_t cut = prompts_without_room(*source, loaded.lm.model->limits().max_tokens, wanted.max_new_tokens);
        cut > 0) {
      log::warn("answers      ", cut, " of ", source->num_samples(rows.shape.decoder_len),
                " prompts leave room for fewer than eval.answer_tokens = ", wanted.max_new_tokens,
                " tokens in the model's ", loaded.lm.model->limits().max_tokens, "; their answers are cut there");
    }
    tasks::AnswerSampler sampler(*loaded.lm.model, nullptr, *loaded.chat, loaded.lm.facts.eos_ids,
                                 wanted.batch * wanted.samples, 0, config.runtime.cuda_graphs);
    const tasks::AnswerEvaluation found = tasks::evaluate_answers(*source, sampler, diversity.get(), wanted, progress);
    nlohmann::ordered_json intervals;
    for (const auto& [name, interval] : found.metrics) {
      intervals[name] = {{"mean", interval.mean}, {"low", interval.low}, {"high", interval.high}};
    }
    json["prompts"] = found.prompts.size();
    json["answers_to_each"] = wanted.samples;
    json["diversity_metric"] = diversity ? diversity->describe() : "distinct pairs of words";
    json["answers"] = std::move(intervals);
    json["temperature"] = wanted.sampling.temperature;
    json["top_p"] = wanted.sampling.top_p;
    if (!options.report.empty()) write_report(json, result, found, causal_model_name(loaded), options.report);
  }
  write_evaluation(std::move(json), result, reporter.seconds(), options);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_eval(const EvalOptions& given) {
  EvalOptions options = given;
  if (options.early_halt) options.overrides.emplace_back("eval.early_halt=true");
  std::vector<std::string> overrides = options.overrides;
  if (!options.base.empty()) overrides.push_back("hf.model=" + options.base);
  const config::Config stored = tasks::is_model_folder(options.checkpoint)
                                    ? tasks::model_folder_config(options.checkpoint, overrides)
                                    : tasks::stored_config(options.checkpoint, options.overrides);
  tasks::check_base(options.base, options.checkpoint, stored);
  options.overrides = std::move(overrides);
  require(options.report.empty() || (stored.task == "polychromic" && stored.eval.answers > 0), ExitCode::usage,
          "--report is of sampled answers, and ",
          stored.task == "polychromic" ? "eval.answers is 0" : cat("task ", stored.task, " samples none"));
  if (!options.report.empty()) require_new_report("--report", options.report, kEvaluationFile);
  if (stored.task == "polychromic") return eval_answers(options, stored);
  if (stored.task == "language") return eval_language(options, stored);
  const auto dataset = open_eval_data(options, stored);
  // A run that evaluates both sets is measured here as it is used: by its average, where it has one.
  const std::string weights = stored.eval.weights == "both" ? "auto" : stored.eval.weights;
  const tasks::PuzzleInference loaded =
      tasks::open_puzzle_model(options.checkpoint, options.overrides, weights, dataset->meta().seq_len);
  const auto& dims = loaded.model->dims();
  require(dataset->meta().seq_len == dims.seq_len, ExitCode::data, "'", dataset->origin(), "' has puzzles of ",
          dataset->meta().seq_len, " cells, the model of '", loaded.checkpoint.string(), "' takes ", dims.seq_len);
  require(dataset->meta().vocab_size == dims.vocab_size, ExitCode::data, "'", dataset->origin(), "' has ",
          dataset->meta().vocab_size, " tokens, the model of '", loaded.checkpoint.string(), "' ", dims.vocab_size,
          "; they are not the same kind of puzzle");
  require(dims.puzzle_emb_ndim == 0 || dataset->meta().num_puzzle_identifiers <= dims.num_puzzle_identifiers,
          ExitCode::data, "'", dataset->origin(), "' has ", dataset->meta().num_puzzle_identifiers,
          " puzzle identifiers, the model of '", loaded.checkpoint.string(), "' ", dims.num_puzzle_identifiers,
          "; to fine-tune it on them: hrm_train train --init ", loaded.checkpoint.string());

  const tasks::PuzzleEvalOptions eval =
      tasks::puzzle_eval_options(loaded.config, *loaded.model, loaded.runtime, /*training_batch=*/0);
  log::info("evaluating ", loaded.checkpoint.string(), " (", loaded.averaged ? "averaged" : "raw", " weights) on ",
            dataset->origin(), ", ", eval.segments, eval.early_halt ? " segments at most, " : " segments, ",
            loaded.runtime.device_name);

  train::EvalReporter reporter;
  tasks::PuzzleEvaluation evaluation(*loaded.model, dataset, loaded.config.objective, eval, loaded.runtime.device);
  const tasks::NamedValues result =
      evaluation.run([&](const tasks::EvalProgress& progress) { reporter.report(progress); });
  const double seconds = reporter.seconds();
  log::info(tasks::puzzle_eval_text(result), " | ", human_seconds(seconds));

  nlohmann::ordered_json json = eval_head_json(loaded);
  json["data"] = dataset->origin();
  json["segments"] = eval.segments;
  json["early_halt"] = eval.early_halt;
  write_evaluation(std::move(json), result, seconds, options);
  return static_cast<int>(ExitCode::done);
}

}  // namespace hrm::commands
