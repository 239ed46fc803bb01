#include "hrm/data/test_reader.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "hrm/base/error.h"

namespace hrm::data {

TestReader::TestReader(std::shared_ptr<const PuzzleDataset> dataset, const TestReaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  require(options.global_batch_size >= 1 && options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks &&
              options.global_batch_size % options.ranks == 0,
          ExitCode::usage, "an evaluation batch of ", options.global_batch_size, " cannot be split over ",
          options.ranks, " ranks: choose a multiple of the ranks");
  samples_ = dataset_->num_examples();
  if (options.max_samples > 0) samples_ = std::min(samples_, options.max_samples);
}

int64_t TestReader::num_batches() const {
  return (samples_ + options_.global_batch_size - 1) / options_.global_batch_size;
}

int64_t TestReader::example_of(int64_t sample) const {
  // 128 bits: the product of two sizes may overflow 64 bits.
  return static_cast<int64_t>(static_cast<__int128>(sample) * dataset_->num_examples() / samples_);
}

TestBatch TestReader::batch(int64_t index) const {
  require(index >= 0 && index < num_batches(), ExitCode::unexpected, "evaluation batch ", index, " of ", num_batches());
  const PuzzleMeta& meta = dataset_->meta();
  const int64_t local = options_.global_batch_size / options_.ranks;
  const int64_t global_begin = index * options_.global_batch_size;
  const int64_t global_end = std::min(global_begin + options_.global_batch_size, samples_);
  const int64_t begin = global_begin + options_.rank * local;
  const auto ints = at::TensorOptions().dtype(at::kInt).pinned_memory(options_.pinned);
  TestBatch result;
  result.global_valid_rows = global_end - global_begin;
  result.batch.inputs = at::full({local, meta.seq_len}, meta.pad_id, ints);
  result.batch.labels = at::full({local, meta.seq_len}, kIgnoreLabel, ints);
  result.batch.puzzle_identifiers = at::full({local}, meta.blank_identifier_id, ints);
  result.batch.valid_rows = std::clamp<int64_t>(global_end - begin, 0, local);
  int32_t* inputs = result.batch.inputs.data_ptr<int32_t>();
  int32_t* labels = result.batch.labels.data_ptr<int32_t>();
  int32_t* identifiers = result.batch.puzzle_identifiers.data_ptr<int32_t>();
  for (int64_t row = 0; row < result.batch.valid_rows; ++row) {
    const int64_t example = example_of(begin + row);
    dataset_->example(example, inputs + row * meta.seq_len, labels + row * meta.seq_len);
    identifiers[row] = dataset_->puzzle_identifier(dataset_->puzzle_of_example(example));
    result.examples.push_back(example);
  }
  return result;
}

}  // namespace hrm::data
