#include "data/language/language_rows.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace hrm::data::internal {

LanguageBatch allocate_batch(int64_t rows, const LanguageShape& shape, bool packed, bool pinned) {
  const auto longs = at::TensorOptions().dtype(at::kLong).pinned_memory(pinned);
  LanguageBatch batch;
  if (shape.encoder_len > 0) {
    batch.encoder_ids = at::empty({rows, shape.encoder_len}, longs);
    batch.encoder_mask = at::empty({rows, shape.encoder_len}, longs.dtype(at::kBool));
  }
  batch.decoder_ids = at::empty({rows, shape.decoder_len}, longs);
  batch.labels = at::empty({rows, shape.decoder_len}, longs);
  if (packed) {
    batch.document_ids = at::empty({rows, shape.decoder_len}, longs.dtype(at::kInt));
    batch.position_ids = at::empty({rows, shape.decoder_len}, longs.dtype(at::kInt));
  }
  batch.valid_rows = rows;
  return batch;
}

LanguageRow row_of(const LanguageBatch& batch, int64_t row) {
  LanguageRow result;
  result.shape = {batch.encoder_ids.defined() ? batch.encoder_ids.size(1) : 0, batch.decoder_ids.size(1)};
  if (batch.encoder_ids.defined()) {
    result.encoder_ids = batch.encoder_ids.data_ptr<int64_t>() + row * result.shape.encoder_len;
    result.encoder_mask = batch.encoder_mask.data_ptr<bool>() + row * result.shape.encoder_len;
  }
  const int64_t at = row * result.shape.decoder_len;
  result.decoder_ids = batch.decoder_ids.data_ptr<int64_t>() + at;
  result.labels = batch.labels.data_ptr<int64_t>() + at;
  if (batch.document_ids.defined()) {
    result.document_ids = batch.document_ids.data_ptr<int32_t>() + at;
    result.position_ids = batch.position_ids.data_ptr<int32_t>() + at;
  }
  return result;
}

void add_counts(LanguageBatch& batch, const LanguageCounts& counts) {
  batch.encoder_tokens += counts.encoder_tokens;
  batch.decoder_tokens += counts.decoder_tokens;
  batch.label_tokens += counts.label_tokens;
}

int64_t bucket_length(int64_t length, int64_t most, int64_t buckets, int64_t multiple) {
  for (int64_t i = 1; i < buckets; ++i) {
    const int64_t size = (most * i / buckets + multiple - 1) / multiple * multiple;
    if (size >= length && size > 0) return std::min(size, most);
  }
  return most;
}

}  // namespace hrm::data::internal
