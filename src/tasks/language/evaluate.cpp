// The evaluation of a trained language model.
#include "hrm/base/error.h"
#include "hrm/base/log.h"
#include "hrm/data/language_open.h"
#include "hrm/tasks/evaluation.h"
#include "hrm/tasks/language_eval.h"
#include "hrm/tasks/language_inference.h"
#include "tasks/language/spec.h"

namespace hrm::tasks {

EvalOutcome evaluate_language(const StoredModel& stored, const EvalRequest& request) {
  std::vector<std::string> overrides;
  if (!request.data.empty()) overrides.push_back("data.test=" + request.data);
  const LanguageInference loaded =
      open_language_model(with_overrides(stored, overrides), weights_to_evaluate(stored.config));
  auto slices = data::open_validation_slices(loaded.config.data, loaded.meta, loaded.config.eval.max_samples);
  require(!slices.empty(), ExitCode::usage, "the run has no validation data; give --data FOLDER");
  std::vector<std::string> origins;
  for (const data::ValidationSlice& slice : slices) origins.push_back(slice.source->origin());
  log::info("evaluating ", loaded.checkpoint.string(), " (", loaded.averaged ? "averaged" : "raw", " weights), ",
            slices.size(), slices.size() == 1 ? " slice, " : " slices, ", loaded.runtime.device_name);

  LanguageEvaluation evaluation(*loaded.model, language_eval_options(loaded.config, 1), std::move(slices), loaded.text,
                                loaded.runtime.device);
  EvalOutcome outcome;
  outcome.head = eval_head(loaded);
  outcome.values = evaluation.run(request.progress);
  outcome.text = language_eval_text(outcome.values);
  outcome.head["data"] = origins;
  return outcome;
}

}  // namespace hrm::tasks
