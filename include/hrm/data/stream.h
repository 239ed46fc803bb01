#pragma once
// Training batches, prefetched by a thread. The rows depend only on dataset, seed, augmentation and position, not on
// the prefetch depth. A rank's rows are its slice of the global batch.

#include <cstdint>
#include <memory>
#include <string>

#include "hrm/config/config.h"
#include "hrm/data/batch.h"
#include "hrm/data/dataset.h"
#include "hrm/data/sudoku.h"
#include "hrm/ops/augment.h"

namespace hrm::data {

struct TrainStreamOptions {
  uint64_t seed = 0;
  int64_t global_batch_size = 0;
  int64_t rank = 0;   // this rank reads a contiguous slice of the global batch
  int64_t ranks = 1;  // must divide global_batch_size
  int64_t prefetch_batches = 4;
  bool pinned = false;  // page-locked buffers, for asynchronous copies to a GPU
  config::Augmentation augmentation = config::Augmentation::none;
  int64_t box_rows = 0;  // box shape of a Sudoku; 0 = square boxes, or 2x3 for 6x6
  int64_t box_cols = 0;
  // Return only row indices; a DeviceTable (hrm/data/device_table.h) reads and augments the rows.
  bool picks_only = false;
};
// Seed, prefetch depth, augmentation and box shape from the configuration.
TrainStreamOptions train_stream_options(const config::Config& config, int64_t global_batch_size, bool pinned);

// The augmentation for this dataset. Throws Error(usage) for options that do not fit the data.
ops::Augmentation augmentation_of(const PuzzleDataset& dataset, const TrainStreamOptions& options);

// Digest (XXH3-128, in hex) of the global batch that begins at `position`: its augmented rows with their identifiers.
// Throws like a stream of this dataset.
std::string batch_digest(const std::shared_ptr<const PuzzleDataset>& dataset, const TrainStreamOptions& options,
                         int64_t position);

// The position after the next `count` global batches.
int64_t position_after(const std::shared_ptr<const PuzzleDataset>& dataset, const TrainStreamOptions& options,
                       int64_t position, int64_t count);

namespace internal {
class BatchRing;
struct BatchBuffer;
}  // namespace internal

// A batch in one of the stream's buffers. Hold it until nothing reads the tensors; for an asynchronous copy, until its
// event has completed. The buffer is reused after release() or destruction. Movable.
class StreamBatch {
 public:
  PuzzleBatch batch;  // on the CPU; this rank's rows, all valid; undefined with picks_only
  at::Tensor picks;   // with picks_only: (B, 3) int64, CPU: stored row, sample (SampleRef) or copy, puzzle identifier
  int64_t position_before = 0;  // group visits before this batch
  int64_t position_after = 0;   // position of the next batch; save it once the batch has been used

  StreamBatch() = default;
  StreamBatch(StreamBatch&&) noexcept = default;
  StreamBatch& operator=(StreamBatch&&) noexcept = default;
  // Returns the buffer; do not touch the tensors afterwards.
  void release();

 private:
  friend class TrainStream;
  friend class RowStream;
  std::shared_ptr<internal::BatchBuffer> buffer_;
};

// The constructor allocates, and pins, all memory in the calling thread. The prefetch thread makes no CUDA calls, so it
// need not pause during graph capture. There are prefetch_batches + 2 buffers, so the caller may hold two batches.
class TrainStream {
 public:
  // Starts at `position` (in group visits; 0 at the beginning). Throws Error(usage) for options that do not fit the
  // data.
  TrainStream(std::shared_ptr<const PuzzleDataset> dataset, const TrainStreamOptions& options, int64_t position);
  ~TrainStream();
  TrainStream(const TrainStream&) = delete;
  TrainStream& operator=(const TrainStream&) = delete;

  // Returns the next batch and waits until it is ready. Rethrows errors of the prefetch thread, e.g. Error(data).
  // Throws Error(unexpected) if the caller holds more than two batches.
  StreamBatch next();

  // Milliseconds that the last next() waited.
  double wait_ms() const { return wait_ms_; }

 private:
  class Producer;
  std::unique_ptr<Producer> producer_;
  double wait_ms_ = 0;
};

// The same stream in single rows, for slots that receive new rows as they halt (data.reference_semantics = false).
// Throws Error(usage) unless the dataset has one example per puzzle. Every rank reads all rows: rank must be 0 and
// ranks 1.
class RowStream {
 public:
  // Starts at row `position`, counted from the beginning of training.
  RowStream(std::shared_ptr<const PuzzleDataset> dataset, const TrainStreamOptions& options, int64_t position);
  ~RowStream();

  // Rows position() .. position() + n - 1, with 1 <= n <= global_batch_size. Waits until they are ready.
  StreamBatch next_rows(int64_t n);
  int64_t position() const { return position_; }
  double wait_ms() const { return wait_ms_; }

 private:
  TrainStream source_;
  std::shared_ptr<internal::BatchRing> out_;
  StreamBatch chunk_;
  int64_t chunk_rows_;
  int64_t used_ = 0;  // rows of chunk_ already returned
  int64_t position_ = 0;
  double wait_ms_ = 0;
};

}  // namespace hrm::data
