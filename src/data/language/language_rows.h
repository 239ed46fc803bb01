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
// The smallest of `buckets` lengths, at equal distances up to `most` and rounded up to multiples of `multiple`, that
// holds `length`.
int64_t bucket_length(int64_t length, int64_t most, int64_t buckets, int64_t multiple);

}  // namespace hrm::data::internal
