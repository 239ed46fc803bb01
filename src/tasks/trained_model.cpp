#include "hrm/tasks/trained_model.h"

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/export_request.h"

namespace hrm::tasks {

ChosenWeights choose_weights(const std::filesystem::path& checkpoint, const std::string& wanted) {
  ChosenWeights chosen{.stored = checkpoint::load_weights(checkpoint)};
  const bool has_average = chosen.stored.only_average || !chosen.stored.ema.empty();
  require(wanted != "ema" || has_average, ExitCode::checkpoint, "'", checkpoint.string(),
          "' holds no averaged weights (optim.ema was 0, or an export chose one set); use --weights raw or "
          "eval.weights=raw");
  require(wanted != "raw" || !chosen.stored.only_average, ExitCode::checkpoint, "'", checkpoint.string(),
          "' holds only averaged weights, which an export chose; use --weights auto or eval.weights=auto");
  chosen.averaged = wanted != "raw" && has_average;
  return chosen;
}

void begin_opening(TrainedModel& model, const StoredModel& stored, const char* task, const char* otherwise) {
  require(stored.config.task == task, ExitCode::usage, "'", stored.folder.string(), "' holds a model of task ",
          stored.config.task, ", ", otherwise);
  model.config = stored.config;
  model.checkpoint = stored.folder;
  model.step = stored.meta.step;
}

nlohmann::ordered_json eval_head(const TrainedModel& model) {
  nlohmann::ordered_json json;
  json["checkpoint"] = model.checkpoint.string();
  json["step"] = model.step;
  json["weights"] = model.averaged ? "ema" : "raw";
  return json;
}

std::string exported_text(const StoredModel& stored, bool averaged) {
  return cat("the ", averaged ? "averaged" : "raw", " weights of step ", stored.meta.step);
}

std::string weights_to_evaluate(const config::Config& config) {
  const config::EvalWeights weights = config.eval.weights;
  return name_of(weights == config::EvalWeights::both ? config::EvalWeights::automatic : weights);
}

}  // namespace hrm::tasks
