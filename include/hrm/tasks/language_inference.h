#pragma once
// A trained language model, ready to answer: what `eval`, `generate` and exports start from.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hrm/data/text_encoder.h"
#include "hrm/models/language_model.h"
#include "hrm/tasks/trained_model.h"

namespace hrm::tasks {

struct LanguageInference : TrainedModel {
  std::shared_ptr<models::LanguageModel> model;
  data::LanguageMeta meta;                // vocabulary and special ids that it was trained with
  std::optional<data::TextEncoder> text;  // nullopt where its data did not say what made their ids
};

// `run_or_step`: a run folder (its newest valid checkpoint) or a checkpoint folder. `weights`: auto (the EMA if there
// is one), raw or ema. The tokenizer is in the run folder, or beside the weights. Throws Error(checkpoint) or
// Error(usage) with one sentence, also for a puzzle model. With stored.place.tensor each rank opens its part.
LanguageInference open_language_model(const std::filesystem::path& run_or_step,
                                      const std::vector<std::string>& overrides, const std::string& weights);
LanguageInference open_language_model(const StoredModel& stored, const std::string& weights);

// The tokenizer file of a checkpoint's model, beside its weights or in the run folder. Empty for bytes, and if its data
// did not say what made their ids. Error(checkpoint) if it is missing or another one.
std::filesystem::path tokenizer_of_checkpoint(const data::LanguageMeta& meta, const std::filesystem::path& step_folder);

}  // namespace hrm::tasks
