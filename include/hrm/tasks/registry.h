#pragma once
// The table of tasks: one row for each, which the commands ask instead of its name. A new task is a folder
// tasks/<name>/, with this row and a row of settings (config/task_settings.h), and its name in tasks/builtin_tasks.h.

#include <memory>
#include <string>
#include <vector>

#include "hrm/config/load.h"
#include "hrm/config/task_settings.h"
#include "hrm/parallel/comm.h"
#include "hrm/runtime/device.h"
#include "hrm/tasks/export_request.h"
#include "hrm/tasks/plan.h"
#include "hrm/tasks/task.h"
#include "hrm/tasks/trained_model.h"

namespace hrm::models {
class LanguageModel;
}

namespace hrm::tasks {

struct EvalOutcome;    // tasks/evaluation.h
struct EvalRequest;    // tasks/evaluation.h
struct TextWriter;     // tasks/text_writer.h
struct WriterRequest;  // tasks/text_writer.h

// What `plan` is told of data that need not exist; 0: as data.train says. seq_len: cells of a puzzle, or tokens of a
// prompt that is answered.
struct PlanData {
  int64_t seq_len = 0, vocab_size = 0;
};
struct PlannedModel {
  std::shared_ptr<const ModelPlan> model;
  int64_t train_examples = 0;  // PlanInput::train_examples
};

// Rows that `bench generate` writes. vocabulary: of a model that has none of its own; 0: not given.
struct TimedRows {
  int64_t prompt = 0, new_tokens = 0, vocabulary = 0;
};

// A function that is nullptr is something that the task does not do; commands then refuse with one sentence.
struct TaskSpec {
  const config::TaskSettings* settings = nullptr;
  // Opens the data, builds the model; `config` must live as long. `comm`: null = this process alone.
  std::unique_ptr<Task> (*make)(const config::Config& config, const Runtime& runtime,
                                std::shared_ptr<parallel::Comm> comm) = nullptr;
  // The same of a model that is cut over the ranks of `tensor`, which read the same rows; those of `comm` read others.
  std::unique_ptr<Task> (*make_cut)(const config::Config& config, const Runtime& runtime,
                                    std::shared_ptr<parallel::Comm> comm,
                                    std::shared_ptr<parallel::Comm> tensor) = nullptr;
  // The architecture, or the model's folder, for benchmarks.
  std::string (*model_name)(const config::Config& config) = nullptr;

  // --- a run that begins ---
  // Error(usage) for settings of which only the data show that they have no effect.
  void (*check_data)(const config::LoadedConfig& loaded) = nullptr;
  // Whether a run may begin with the weights of another one (--init), and with which other settings of the
  // architecture.
  bool begins_with_weights = false;
  std::vector<std::string> free_at_init = {};
  // Settings that keep a checkpoint of an earlier version what it was, besides `overrides`.
  std::vector<std::string> (*settings_of_earlier)(const checkpoint::CheckpointMeta& meta,
                                                  const std::vector<std::string>& overrides) = nullptr;
  // Takes over what the checkpoint in `origin` was trained with and nobody asked otherwise.
  void (*keep_settings)(config::LoadedConfig& now, const config::Config& then, const std::string& origin) = nullptr;

  // --- a trained model ---
  EvalOutcome (*evaluate)(const StoredModel& stored, const EvalRequest& request) = nullptr;
  bool (*samples_answers)(const config::Config& config) = nullptr;  // in evaluate
  ExportFunction export_as = nullptr;
  TextWriter (*open_writer)(const StoredModel& stored, const WriterRequest& request) = nullptr;
  // Whether the weights are an adapter's, and the key of the folder with the model that it is for.
  bool (*has_adapter)(const config::Config& config) = nullptr;
  const char* base_key = nullptr;
  // Folders of another library, and what they are opened with.
  bool (*is_foreign)(const std::filesystem::path& folder) = nullptr;
  config::Config (*foreign_config)(const std::filesystem::path& folder,
                                   const std::vector<std::string>& overrides) = nullptr;

  // --- estimates and benchmarks ---
  PlannedModel (*plan)(const config::Config& config, const PlanData& data) = nullptr;
  // A language model of a configuration that no run belongs to, to time its writing; and settings that make room for
  // the rows, which the configuration may change. `tensor`: as of make_cut, or null.
  std::shared_ptr<models::LanguageModel> (*timed_writer)(const config::Config& config, const Runtime& runtime,
                                                         const TimedRows& rows,
                                                         std::shared_ptr<parallel::Comm> tensor) = nullptr;
  std::vector<std::string> (*timed_settings)(const TimedRows& rows) = nullptr;
};

// Adds a task and its settings, for tests, before the first configuration is loaded; the row must live on.
void add_task(const TaskSpec& spec);

const TaskSpec& task_spec(const config::Config& config);
const TaskSpec& task_spec(const std::string& name);

// config::validate(), and TaskSpec::check_data of the configuration's task.
void check_settings(const config::LoadedConfig& loaded);

// TaskSpec::make of the configuration's task; make_cut if `tensor` has several ranks. Throws Error(usage) where the
// task has none.
std::unique_ptr<Task> make_task(const config::Config& config, const Runtime& runtime,
                                std::shared_ptr<parallel::Comm> comm = nullptr,
                                std::shared_ptr<parallel::Comm> tensor = nullptr);

// Whether the configuration's model has an adapter.
bool has_adapter(const config::Config& config);

}  // namespace hrm::tasks
