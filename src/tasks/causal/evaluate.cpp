// The evaluation of a trained causal language model: its responses, and answers that it samples.
#include <memory>
#include <numeric>

#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/tasks/answer_eval.h"
#include "hrm/tasks/causal_inference.h"
#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/language_eval.h"
#include "tasks/causal/spec.h"

namespace hrm::tasks {
namespace {

// --data: a file of JSON lines, or a folder. Otherwise the run's data.test, or the test side of its data, or its
// validation data. Folders that no run of ours wrote have none.
std::shared_ptr<const data::ChatSource> open_chat_eval_data(const EvalRequest& request, const CausalInference& loaded) {
  const std::string path = request.data.empty() ? loaded.config.data.test : request.data;
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
  data::ChatSides sides = open_chat_data(loaded.config, *loaded.chat, loaded.config.grpo.start_step != 1);
  const auto is_there = [](const data::ChatSide& side) { return side.dataset && !side.examples.empty(); };
  const bool has_test = is_there(sides.test);
  data::ChatSide& side = has_test ? sides.test : sides.validation;
  require(is_there(side), ExitCode::usage,
          "the run has no data for this (chat.val_share and chat.test_share are 0, data.test is empty); give --data "
          "FILE");
  return std::make_shared<data::ChatSource>(side.dataset, std::move(side.examples), has_test ? "test" : "validation");
}

// The last token of an answer is not read again.
int64_t prompts_without_room(const data::ChatSource& source, int64_t positions, int64_t answer_tokens) {
  int64_t count = 0;
  for (int64_t i = 0; i < source.num_samples(1); ++i) {
    count += static_cast<int64_t>(source.example(i).prompt_ids.size()) + answer_tokens - 1 > positions ? 1 : 0;
  }
  return count;
}

CausalInference open_answering(const StoredModel& stored) {
  if (stored.foreign) {
    const int64_t positions = causal_positions(stored.config, read_hf_config(stored.config.hf.model));
    return open_model_folder(stored, positions);
  }
  return open_causal_checkpoint(stored, weights_to_evaluate(stored.config));
}

// Of a folder, which belongs to no run, its own; unless it is given.
std::string causal_model_name(const CausalInference& loaded) {
  const std::string& name = loaded.config.run.name;
  if (loaded.step >= 0 || name != config::RunConfig().name) return name;
  return std::filesystem::absolute(loaded.checkpoint / "").lexically_normal().parent_path().filename().string();
}

}  // namespace

// Cross-entropy of the responses, and the metrics of completions.
EvalOutcome evaluate_causal(const StoredModel& stored, const EvalRequest& request) {
  CausalInference loaded = open_answering(stored);
  const config::Config& config = loaded.config;
  const auto source = open_chat_eval_data(request, loaded);
  log::info("evaluating ", loaded.checkpoint.string(), " (", loaded.averaged ? "averaged" : "raw", " weights) on ",
            source->origin(), ", ", loaded.runtime.device_name);
  EvalOutcome outcome;
  outcome.name = causal_model_name(loaded);
  outcome.head = eval_head(loaded);
  nlohmann::ordered_json& json = outcome.head;
  json["data"] = source->origin();
  if (loaded.lm.lora) {
    loaded.lm.lora->merge();
    loaded.lm.lora->set_mode(nn::LoraMode::merged);
  }
  const LanguageEvalOptions rows{.shape = {0, config.chat.max_length - 1},
                                 .rows = config.eval.batch_size > 0 ? config.eval.batch_size : 8,
                                 .chunk = config.objective.chunk};
  LanguageEvaluation evaluation(*loaded.lm.model, rows, {{"validation", source, config.eval.max_samples}},
                                loaded.chat->encoder(), loaded.runtime.device);
  outcome.values = evaluation.run(request.progress);
  outcome.text = language_eval_text(outcome.values);
  if (config.eval.answers > 0) {
    std::unique_ptr<AnswerDiversity> diversity;
    if (config.polychromic.diversity_metric != config::DiversityMetric::semantic ||
        !config.polychromic.diversity_encoder_model.empty()) {
      diversity =
          std::make_unique<AnswerDiversity>(config.polychromic, loaded.runtime.device, loaded.runtime.compute_dtype);
    }
    const AnswerEvalOptions wanted{
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
    AnswerSampler sampler(*loaded.lm.model, nullptr, *loaded.chat, loaded.lm.facts.eos_ids,
                          wanted.batch * wanted.samples, 0, config.runtime.cuda_graphs);
    const auto found = std::make_shared<const AnswerEvaluation>(
        evaluate_answers(*source, sampler, diversity.get(), wanted, request.progress));
    nlohmann::ordered_json intervals;
    for (const auto& [name, interval] : found->metrics) {
      intervals[name] = {{"mean", interval.mean}, {"low", interval.low}, {"high", interval.high}};
    }
    json["prompts"] = found->prompts.size();
    json["answers_to_each"] = wanted.samples;
    json["diversity_metric"] = diversity ? diversity->describe() : "distinct pairs of words";
    json["answers"] = std::move(intervals);
    json["temperature"] = wanted.sampling.temperature;
    json["top_p"] = wanted.sampling.top_p;
    outcome.answers = found;
  }
  return outcome;
}

}  // namespace hrm::tasks
