#pragma once
// Allocation of language batches, and access to their rows.

#include <cstdint>

#include "hrm/data/language_batch.h"
#include "hrm/data/language_source.h"

namespace hrm::data::internal {

// Tensors for `rows` rows, with document tensors if packed, in page-locked memory if pinned.
LanguageBatch allocate_batch(int64_t rows, const LanguageShape& shape, bool packed, bool pinned);
// Pointers to row `row` of such a batch.
LanguageRow row_of(const LanguageBatch& batch, int64_t row);
void add_counts(LanguageBatch& batch, const LanguageCounts& counts);
// The smallest of `buckets` lengths that holds `length`. The lengths are equally spaced up to `most` and rounded up to
// multiples of `multiple`.
int64_t bucket_length(int64_t length, int64_t most, int64_t buckets, int64_t multiple);

}  // namespace hrm::data::internal
