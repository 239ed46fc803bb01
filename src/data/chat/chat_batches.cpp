#include "hrm/data/chat_batches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "data/language/language_rows.h"
#include "hrm/base/error.h"
#include "hrm/data/sampler.h"

namespace hrm::data {
namespace {

// CounterPermutation keys for the order of batches in a pool. They differ from the keys of epochs and mixtures
// (language_source.cpp).
constexpr uint64_t kPoolKeys = uint64_t{1} << 62;
constexpr int64_t kMostPooled = int64_t{1} << 24;

const ChatBatchOptions& checked(const ChatBatchOptions& options) {
  require(options.global_batch_size >= 1 && options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks &&
              options.global_batch_size % options.ranks == 0,
          ExitCode::usage, "a batch of ", options.global_batch_size, " samples cannot be split over ", options.ranks,
          " ranks: choose a multiple of the ranks");
  require(options.max_len >= 1 && options.buckets >= 1 && options.multiple >= 1 && options.pad_to >= 1, ExitCode::usage,
          "rows of up to ", options.max_len, " positions in ", options.buckets, " lengths, multiples of ",
          options.multiple, ", padded to multiples of ", options.pad_to);
  require(options.pool_batches >= 1 && options.pool_batches <= kMostPooled / options.global_batch_size, ExitCode::usage,
          "a pool of ", options.pool_batches, " batches of ", options.global_batch_size, " examples; at most ",
          kMostPooled, " examples are sorted together, and at least one batch");
  return options;
}

}  // namespace

ChatBatches::ChatBatches(std::shared_ptr<const ChatSource> source, const ChatBatchOptions& options)
    : source_(std::move(source)), options_(checked(options)), order_({{source_, 1}}, options.max_len, options.seed) {}

void ChatBatches::fill_pool(int64_t pool) {
  const int64_t batch = options_.global_batch_size, size = batch * options_.pool_batches;
  std::vector<int64_t> sorted(size);
  for (int64_t i = 0; i < size; ++i) sorted[i] = order_(pool * size + i).sample;
  const auto length = [&](int64_t sample) {
    return source_->lengths(sample, {0, std::numeric_limits<int64_t>::max()}).decoder_len;
  };
  std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) { return length(a) < length(b); });
  const CounterPermutation order(options_.seed, kPoolKeys + static_cast<uint64_t>(pool),
                                 static_cast<uint64_t>(options_.pool_batches));
  pooled_.clear();
  for (int64_t i = 0; i < options_.pool_batches; ++i) {
    const auto begin = sorted.begin() + static_cast<int64_t>(order(static_cast<uint64_t>(i))) * batch;
    pooled_.insert(pooled_.end(), begin, begin + batch);
  }
  pool_ = pool;
}

std::vector<int64_t> ChatBatches::samples_at(int64_t position) {
  const int64_t batch = options_.global_batch_size;
  std::vector<int64_t> samples;
  if (options_.pool_batches == 1) {
    for (int64_t i = 0; i < batch; ++i) samples.push_back(order_(position + i).sample);
    return samples;
  }
  require(position % batch == 0, ExitCode::usage, "no batch of ", batch, " examples begins at position ", position,
          "; resume with the batch size that the run had");
  const int64_t size = batch * options_.pool_batches;
  if (position / size != pool_) fill_pool(position / size);
  const auto begin = pooled_.begin() + position % size;
  return {begin, begin + batch};
}

ChatBatch ChatBatches::batch(int64_t position) {
  require(position >= 0, ExitCode::unexpected, "training cannot resume at position ", position);
  const std::vector<int64_t> samples = samples_at(position);
  // The length of the global batch, so that all ranks have the same shape.
  int64_t longest = 1;
  for (const int64_t sample : samples) {
    longest = std::max(longest, source_->lengths(sample, {0, options_.max_len}).decoder_len);
  }
  const int64_t bucket = internal::bucket_length(longest, options_.max_len, options_.buckets, options_.multiple);
  const int64_t length = (bucket + options_.pad_to - 1) / options_.pad_to * options_.pad_to;
  const int64_t rows = options_.global_batch_size / options_.ranks;
  ChatBatch result;
  result.position_before = position;
  result.position_after = position + options_.global_batch_size;
  result.rows = internal::allocate_batch(rows, {0, length}, source_->packed(), options_.pinned);
  const auto longs = at::TensorOptions().dtype(at::kLong).pinned_memory(options_.pinned);
  result.prompt_lengths = at::empty({rows}, longs);
  result.lengths = at::empty({rows}, longs);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t sample = samples[options_.rank * rows + row];
    const LanguageCounts counts = source_->row(sample, internal::row_of(result.rows, row));
    internal::add_counts(result.rows, counts);
    result.lengths.data_ptr<int64_t>()[row] = counts.decoder_tokens;
    result.prompt_lengths.data_ptr<int64_t>()[row] = static_cast<int64_t>(source_->example(sample).prompt_ids.size());
    result.examples.push_back(source_->examples_of(sample)[0]);
  }
  return result;
}

}  // namespace hrm::data
