#pragma once
// Special tokens for transformers, of a tokenizer that a model was trained with. Private to tasks/.

#include <filesystem>

#include "hrm/checkpoint/export.h"
#include "hrm/data/language_meta.h"
#include "hrm/tasks/export_request.h"

namespace hrm::tasks {

// `tokenizer_file` may be empty: there is none.
checkpoint::HfTokens hf_tokens(const data::LanguageMeta& meta, const std::filesystem::path& tokenizer_file);
checkpoint::HfFormat hf_format(const ExportRequest& request);

}  // namespace hrm::tasks
