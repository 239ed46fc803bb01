#pragma once
// Memory of language batches, and its rows.

#include <cstdint>

#include "hrm/data/language_batch.h"
#include "hrm/data/language_source.h"

namespace hrm::data::internal {

// Tensors of `rows` rows; documents where rows are packed; page-locked when asked.
LanguageBatch allocate_batch(int64_t rows, const LanguageShape& shape, bool packed, bool pinned);
// Where row `row` of such a batch lies.
LanguageRow row_of(const LanguageBatch& batch, int64_t row);
void add_counts(LanguageBatch& batch, const LanguageCounts& counts);

}  // namespace hrm::data::internal
