#pragma once
// A batch of language data as the model of a configuration takes it.

#include "hrm/data/language_batch.h"
#include "hrm/models/language_model.h"

namespace hrm::tasks {

struct LanguageRows {
  models::LanguageInputs inputs;
  at::Tensor labels;  // (B, T), of inputs.ids
};

// `batch`: on the model's device. A model that reads prompts apart (models::LanguageLimits::prompted) has them as an
// input of their own; of a plain decoder they are in front of the answer, without padding in between, and nothing is
// learned from them: rows of S + T tokens, padding behind. Device work that reads nothing back.
LanguageRows language_rows(const data::LanguageBatch& batch, bool prompted);

}  // namespace hrm::tasks
