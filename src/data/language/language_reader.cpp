#include <algorithm>

#include "data/language/language_rows.h"
#include "hrm/base/error.h"
#include "hrm/data/language_stream.h"

namespace hrm::data {
namespace {

constexpr int64_t kMultiple = 8;

int64_t bucket(int64_t length, int64_t most, int64_t buckets) {
  return internal::bucket_length(length, most, buckets, kMultiple);
}

}  // namespace

LanguageReader::LanguageReader(ValidationSlice slice, const LanguageReaderOptions& options)
    : slice_(std::move(slice)), options_(options) {
  require(options.global_batch_size >= 1 && options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks &&
              options.global_batch_size % options.ranks == 0,
          ExitCode::usage, "an evaluation batch of ", options.global_batch_size, " cannot be split over ",
          options.ranks, " ranks: choose a multiple of the ranks");
  require(options.shape.encoder_len >= 0 && options.shape.decoder_len >= 1 && options.buckets >= 1, ExitCode::usage,
          "evaluation rows of ", options.shape.encoder_len, " encoder and ", options.shape.decoder_len,
          " decoder positions in ", options.buckets, " sizes");
  samples_ = slice_.source->num_samples(options.shape.decoder_len);
  require(samples_ >= 1, ExitCode::data, slice_.source->origin(), ": has no sample of ", options.shape.decoder_len,
          " positions; it is too short");
  if (slice_.max_samples > 0) samples_ = std::min(samples_, slice_.max_samples);
}

int64_t LanguageReader::num_batches() const {
  return (samples_ + options_.global_batch_size - 1) / options_.global_batch_size;
}

int64_t LanguageReader::sample_of(int64_t number) const {
  // 128 bits: the product of two sizes may overflow 64 bits.
  const __int128 all = slice_.source->num_samples(options_.shape.decoder_len);
  return static_cast<int64_t>(number * all / samples_);
}

LanguageShape LanguageReader::bucket_of(int64_t begin, int64_t end) const {
  LanguageShape longest;
  for (int64_t number = begin; number < end; ++number) {
    const LanguageShape one = slice_.source->lengths(sample_of(number), options_.shape);
    longest.encoder_len = std::max(longest.encoder_len, one.encoder_len);
    longest.decoder_len = std::max(longest.decoder_len, one.decoder_len);
  }
  // Packed rows are always full, and their number depends on the length.
  if (slice_.source->packed()) return options_.shape;
  return {
      options_.shape.encoder_len == 0 ? 0 : bucket(longest.encoder_len, options_.shape.encoder_len, options_.buckets),
      bucket(longest.decoder_len, options_.shape.decoder_len, options_.buckets)};
}

LanguageTestBatch LanguageReader::batch(int64_t index) const {
  require(index >= 0 && index < num_batches(), ExitCode::unexpected, "evaluation batch ", index, " of ", num_batches());
  const int64_t local = options_.global_batch_size / options_.ranks;
  const int64_t global_begin = index * options_.global_batch_size;
  const int64_t global_end = std::min(global_begin + options_.global_batch_size, samples_);
  const int64_t begin = global_begin + options_.rank * local;
  LanguageTestBatch result;
  result.global_valid_rows = global_end - global_begin;
  // The shape of the global batch, so that all ranks have the same shape.
  const LanguageShape shape = bucket_of(global_begin, global_end);
  result.batch = internal::allocate_batch(local, shape, slice_.source->packed(), options_.pinned);
  result.batch.valid_rows = std::clamp<int64_t>(global_end - begin, 0, local);
  for (int64_t row = 0; row < local; ++row) {
    const LanguageRow to = internal::row_of(result.batch, row);
    if (row >= result.batch.valid_rows) {
      blank_row(to, slice_.source->meta().pad_id);
      if (to.encoder_mask != nullptr) to.encoder_mask[0] = true;
      continue;
    }
    const int64_t sample = sample_of(begin + row);
    internal::add_counts(result.batch, slice_.source->row(sample, to));
    result.samples.push_back(sample);
  }
  return result;
}

}  // namespace hrm::data
