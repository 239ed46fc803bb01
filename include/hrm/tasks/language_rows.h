#pragma once
// A batch of language data as the model of a configuration takes it.

#include "hrm/config/config.h"
#include "hrm/data/language_batch.h"
#include "hrm/models/language_model.h"

namespace hrm::tasks {

struct LanguageRows {
  models::LanguageInputs inputs;
  at::Tensor labels;  // (B, T), of inputs.ids
};

// `batch`: on the model's device. Of arch hrm the prompt is an input of its own; of a plain decoder it stands in front
// of the answer, without padding in between, and nothing is learned from it: rows of S + T tokens, padding behind.
// Device work that reads nothing back.
LanguageRows language_rows(const data::LanguageBatch& batch, const config::LmConfig& lm);

}  // namespace hrm::tasks
