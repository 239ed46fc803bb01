// The row of task=contrastive.
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/base/text.h"
#include "hrm/ops/start.h"
#include "hrm/tasks/contrastive.h"
#include "hrm/tasks/contrastive_compat.h"
#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/layered_task.h"
#include "tasks/contrastive/plan.h"
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
  if (config.contrastive.network == config::ContrastiveNetwork::layered) {
    return std::make_unique<LayeredTask>(config, runtime, std::move(comm));
  }
  return std::make_unique<ContrastiveTask>(config, runtime, std::move(comm));
}

PlannedModel plan_contrastive(const config::Config& config, const PlanData& data) {
  const config::ContrastiveConfig& c = config.contrastive;
  require(!is_compat(config) && c.network == config::ContrastiveNetwork::memory, ExitCode::usage,
          "'hrm_train plan' knows the geometric memory alone, but the configuration has ",
          is_compat(config) ? "contrastive.mode=compat" : "contrastive.network=layered",
          "; 'hrm_train bench step' measures its memory and time");
  require(data.seq_len == 0, ExitCode::usage,
          "--seq-len is the size of a puzzle; a sample of text has the tokens that contrastive.context says");
  return {std::make_shared<ContrastivePlan>(config.contrastive, contrastive_sizes(config, data.vocab_size))};
}

int64_t size_of(const StoredModel& stored, const char* key) {
  const auto found = stored.meta.info.find(key);
  require(found != stored.meta.info.end(), ExitCode::checkpoint, "the manifest of '", stored.folder.string(),
          "' lacks ", key, ", so it is not a checkpoint of the contrastive trainer");
  const auto value = whole_number(found->second);
  require(value && *value >= 1 && *value <= static_cast<uint64_t>(INT32_MAX), ExitCode::checkpoint, "the manifest of '",
          stored.folder.string(), "' gives ", key, " = '", printable_start(found->second),
          "', which is not a whole number of one or more");
  return static_cast<int64_t>(*value);
}

// Loads the weights and evaluates. `name` of the model, for messages; `evaluate`: of the source, the batch and the
// progress.
template <class Model, class Evaluate>
EvalOutcome evaluate_model(TrainedModel& trained, const StoredModel& stored, const EvalRequest& request,
                           const char* name, Model& model, const Evaluate& evaluate) {
  const config::Config& config = trained.config;
  const ChosenWeights chosen = choose_weights(stored.folder, weights_to_evaluate(stored.config));
  trained.averaged = chosen.averaged;
  ModelState state(model);
  checkpoint::load_weights_into(stored.folder, state, chosen.set());

  std::string path = request.data.empty() ? config.data.test : request.data;
  if (path.empty()) path = config.data.train;
  require(!path.empty() && path != "none", ExitCode::usage, "the run has no test data; give --data FOLDER");
  const auto source = open_contrastive_test(
      config, path, {.mean = model.input_mean(), .deviation = model.input_deviation()}, trained.runtime.device);
  const int64_t features = size_of(stored, "features"), classes = size_of(stored, "classes");
  require(source->features() == features && source->classes() <= classes, ExitCode::data, "'", source->origin(),
          "' has ", source->features(), " features and ", source->classes(), " classes, the ", name, " of '",
          stored.folder.string(), "' ", features, " and ", classes);
  log::info("evaluating ", stored.folder.string(), " on ", source->origin(), ", ", trained.runtime.device_name);
  EvalOutcome outcome;
  outcome.head = eval_head(trained);
  outcome.values =
      evaluate(*source, config.eval.batch_size > 0 ? config.eval.batch_size : config.train.global_batch_size);
  outcome.text = samples_eval_text(outcome.values);
  outcome.head["data"] = source->origin();
  return outcome;
}

EvalOutcome evaluate_contrastive(const StoredModel& stored, const EvalRequest& request) {
  require(!is_compat(stored.config), ExitCode::usage, "'", stored.folder.string(),
          "' was trained with contrastive.mode=compat, whose window predicts nothing; evaluate a run of ",
          "contrastive.mode=sound");
  TrainedModel trained;
  begin_opening(trained, stored, config::contrastive_settings().name, "which is no model of the contrastive trainer");
  trained.runtime = ops::start_runtime_and_ops(trained.config);
  const config::ContrastiveConfig& config = trained.config.contrastive;
  const at::Device device = trained.runtime.device;
  const int64_t features = size_of(stored, "features"), classes = size_of(stored, "classes");
  const auto alone = parallel::make_single_comm();
  if (config.network == config::ContrastiveNetwork::layered) {
    models::LayeredEnergy network(layered_options(config, features, classes), device);
    return evaluate_model(trained, stored, request, "network", network, [&](const auto& source, int64_t batch) {
      return evaluate_layered(network, config, source, batch, device, *alone, request.progress);
    });
  }
  models::GeometricMemory memory(memory_options(config, features, classes), /*seed=*/0, device);
  return evaluate_model(trained, stored, request, "memory", memory, [&](const auto& source, int64_t batch) {
    return evaluate_memory(memory, config, source, batch, device, *alone, request.progress);
  });
}

}  // namespace

const TaskSpec& contrastive_spec() {
  static const TaskSpec spec{.settings = &config::contrastive_settings(),
                             .make = make_contrastive,
                             .model_name =
                                 [](const config::Config& config) {
                                   if (is_compat(config)) return std::string("Trainer2's window");
                                   return std::string(config.contrastive.network == config::ContrastiveNetwork::layered
                                                          ? "layered network"
                                                          : "geometric memory");
                                 },
                             .evaluate = evaluate_contrastive,
                             .plan = plan_contrastive};
  return spec;
}

}  // namespace hrm::tasks
