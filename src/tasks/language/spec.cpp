// The row of task=language.
#include "tasks/language/spec.h"

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/data/language_open.h"
#include "hrm/models/make_language_model.h"
#include "hrm/parallel/tensor_across.h"
#include "hrm/tasks/language.h"
#include "tasks/language/plan.h"
#include "tasks/specs.h"
#include "tasks/task_settings.h"

namespace hrm::tasks {
namespace {

constexpr int64_t kTimedVocabulary = 32000;

PlannedModel plan_language(const config::Config& config, const PlanData& data) {
  require(data.seq_len == 0, ExitCode::usage,
          "--seq-len is the size of a puzzle; rows of text are as long as data.encoder_len and data.decoder_len say");
  int64_t vocabulary = data.vocab_size;
  if (vocabulary == 0) {
    require(!config.data.train.empty(), ExitCode::usage, "data.train is empty; give data, or --vocab-size");
    vocabulary = data::open_language_training(config.data).front().source->meta().vocab_size;
  }
  return {std::make_shared<LanguagePlan>(config.lm, models::language_sizes(config.data, vocabulary))};
}

std::unique_ptr<Task> make_language(const config::Config& config, const Runtime& runtime,
                                    std::shared_ptr<parallel::Comm> comm) {
  return std::make_unique<LanguageTask>(config, runtime, std::move(comm));
}

std::unique_ptr<Task> make_cut_language(const config::Config& config, const Runtime& runtime,
                                        std::shared_ptr<parallel::Comm> comm, std::shared_ptr<parallel::Comm> tensor) {
  return std::make_unique<LanguageTask>(config, runtime, std::move(comm), std::move(tensor));
}

// With random weights.
std::shared_ptr<models::LanguageModel> timed_language_writer(const config::Config& config, const Runtime& runtime,
                                                             const TimedRows& rows,
                                                             std::shared_ptr<parallel::Comm> tensor) {
  const int64_t vocabulary = rows.vocabulary > 0 ? rows.vocabulary : kTimedVocabulary;
  return models::make_language_model(config, models::language_sizes(config.data, vocabulary),
                                     static_cast<uint64_t>(config.run.seed), runtime.device, runtime.compute_dtype,
                                     parallel::across_of(std::move(tensor)));
}

std::vector<std::string> timed_language_settings(const TimedRows& rows) {
  return {cat("data.encoder_len=", rows.prompt), cat("data.decoder_len=", rows.new_tokens)};
}

}  // namespace

const TaskSpec& language_spec() {
  static const TaskSpec spec{
      .settings = &config::language_settings(),
      .make = make_language,
      .make_cut = make_cut_language,
      .model_name = [](const config::Config& config) { return std::string(name_of(config.lm.arch)); },
      .check_data = data::check_language_settings,
      .evaluate = evaluate_language,
      .export_as = export_language,
      .open_writer = open_language_writer,
      .plan = plan_language,
      .timed_writer = timed_language_writer,
      .timed_settings = timed_language_settings};
  return spec;
}

}  // namespace hrm::tasks
