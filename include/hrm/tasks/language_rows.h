#pragma once
// A batch of language data as the model of a configuration takes it.

#include "hrm/data/language_batch.h"
#include "hrm/models/language_model.h"

namespace hrm::tasks {

struct LanguageRows {
  models::LanguageInputs inputs;
  at::Tensor labels;  // (B, T), of inputs.ids
};

// `batch`: on the model's device. A model that reads prompts separately (models::LanguageLimits::prompted) has them as
// an input. For a plain decoder they come before the answer, without padding in between, and are not learned: rows of
// S + T tokens with padding at the end. Device work that reads nothing back.
LanguageRows language_rows(const data::LanguageBatch& batch, bool prompted);

}  // namespace hrm::tasks
