#include "hrm/tasks/trained_model.h"

#include "hrm/base/error.h"
#include "hrm/base/text.h"
#include "hrm/models/language_model.h"
#include "hrm/ops/start.h"
#include "hrm/parallel/cut_entries.h"
#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/export_request.h"
#include "hrm/tasks/task.h"

namespace hrm::tasks {
namespace {

// Whether the average is what `wanted` names.
bool chooses_average(const std::filesystem::path& checkpoint, const std::string& wanted, bool has_average,
                     bool only_average) {
  require(wanted != "ema" || has_average, ExitCode::checkpoint, "'", checkpoint.string(),
          "' holds no averaged weights (optim.ema was 0, or an export chose one set); use --weights raw or "
          "eval.weights=raw");
  require(wanted != "raw" || !only_average, ExitCode::checkpoint, "'", checkpoint.string(),
          "' holds only averaged weights, which an export chose; use --weights auto or eval.weights=auto");
  return wanted != "raw" && has_average;
}

// Entries of a model that may be a part, as boxes of the whole.
class PartEntries : public Stateful {
 public:
  PartEntries(Stateful& inner, const torch::nn::Module& model) : inner_(inner), cuts_(cut_weights_of(model)) {}
  void visit_state(StateVisitor& visitor) override {
    parallel::CutEntries parts(cuts_, visitor);
    inner_.visit_state(parts);
  }

 private:
  Stateful& inner_;
  parallel::NamedCuts cuts_;
};

}  // namespace

Runtime ModelPlace::start(const config::Config& config) const {
  return runtime ? *runtime : ops::start_runtime_and_ops(config);
}

ChosenWeights choose_weights(const std::filesystem::path& checkpoint, const std::string& wanted) {
  ChosenWeights chosen{.stored = checkpoint::load_weights(checkpoint)};
  const bool only_average = chosen.stored.only_average, has_average = only_average || !chosen.stored.ema.empty();
  chosen.averaged = chooses_average(checkpoint, wanted, has_average, only_average);
  return chosen;
}

bool load_chosen_weights(const std::filesystem::path& checkpoint, const std::string& wanted, Stateful& weights,
                         models::LanguageModel& model) {
  const checkpoint::StoredSets sets = checkpoint::stored_sets(checkpoint);
  const bool averaged = chooses_average(checkpoint, wanted, sets.average, sets.only_average);
  PartEntries entries(weights, model);
  using checkpoint::WeightSet;
  checkpoint::load_weights_into(checkpoint, entries, averaged && !sets.only_average ? WeightSet::ema : WeightSet::raw);
  return averaged;
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
