// The row of task=contrastive.
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/ops/start.h"
#include "hrm/tasks/contrastive.h"
#include "hrm/tasks/contrastive_compat.h"
#include "hrm/tasks/evaluation.h"
#include "tasks/specs.h"
#include "tasks/task_settings.h"

namespace hrm::tasks {
namespace {

bool is_compat(const config::Config& config) {
  return config.contrastive.mode == config::ContrastiveMode::compat;
}

std::unique_ptr<Task> make_contrastive(const config::Config& config, const Runtime& runtime,
                                       std::shared_ptr<parallel::Comm> comm) {
  if (is_compat(config)) return std::make_unique<CompatTask>(config, runtime, std::move(comm));
  return std::make_unique<ContrastiveTask>(config, runtime, std::move(comm));
}

int64_t size_of(const StoredModel& stored, const char* key) {
  const auto found = stored.meta.info.find(key);
  require(found != stored.meta.info.end(), ExitCode::checkpoint, "the manifest of '", stored.folder.string(),
          "' lacks ", key, ", so it is not a checkpoint of a geometric memory");
  const auto value = whole_number(found->second);
  require(value && *value >= 1 && *value <= static_cast<uint64_t>(INT32_MAX), ExitCode::checkpoint, "the manifest of '",
          stored.folder.string(), "' gives ", key, " = '", printable_start(found->second),
          "', which is not a whole number of one or more");
  return static_cast<int64_t>(*value);
}

EvalOutcome evaluate_contrastive(const StoredModel& stored, const EvalRequest& request) {
  TrainedModel trained;
  require(!is_compat(stored.config), ExitCode::usage, "'", stored.folder.string(),
          "' was trained with contrastive.mode=compat, whose window predicts nothing; evaluate a run of ",
          "contrastive.mode=sound");
  begin_opening(trained, stored, config::contrastive_settings().name, "which is no geometric memory");
  trained.runtime = ops::start_runtime_and_ops(trained.config);
  const ChosenWeights chosen = choose_weights(stored.folder, weights_to_evaluate(stored.config));
  trained.averaged = chosen.averaged;
  const config::Config& config = trained.config;
  models::GeometricMemory memory(
      memory_options(config.contrastive, size_of(stored, "features"), size_of(stored, "classes")), /*seed=*/0,
      trained.runtime.device);
  ModelState state(memory);
  checkpoint::load_weights_into(stored.folder, state, chosen.set());

  std::string path = request.data.empty() ? config.data.test : request.data;
  if (path.empty()) path = config.data.train;
  require(!path.empty() && path != "none", ExitCode::usage, "the run has no test data; give --data FOLDER");
  const auto source = open_contrastive_test(
      config, path, {.mean = memory.input_mean(), .deviation = memory.input_deviation()}, trained.runtime.device);
  require(source->features() == memory.options().features && source->classes() <= memory.options().classes,
          ExitCode::data, "'", source->origin(), "' has ", source->features(), " features and ", source->classes(),
          " classes, the memory of '", stored.folder.string(), "' ", memory.options().features, " and ",
          memory.options().classes);
  log::info("evaluating ", stored.folder.string(), " on ", source->origin(), ", ", trained.runtime.device_name);
  const int64_t batch = config.eval.batch_size > 0 ? config.eval.batch_size : config.train.global_batch_size;
  EvalOutcome outcome;
  outcome.head = eval_head(trained);
  outcome.values = evaluate_memory(memory, config.contrastive, *source, batch, trained.runtime.device,
                                   *parallel::make_single_comm(), request.progress);
  outcome.text = samples_eval_text(outcome.values);
  outcome.head["data"] = source->origin();
  return outcome;
}

}  // namespace

const TaskSpec& contrastive_spec() {
  static const TaskSpec spec{.settings = &config::contrastive_settings(),
                             .make = make_contrastive,
                             .model_name =
                                 [](const config::Config& config) {
                                   return std::string(is_compat(config) ? "Trainer2's window" : "geometric memory");
                                 },
                             .evaluate = evaluate_contrastive};
  return spec;
}

}  // namespace hrm::tasks
