#pragma once
// Training batches, prepared ahead by a thread. The rows depend only on data set, seed, augmentation and position, not
// on the prefetch depth. A rank's rows are its slice of the same global batch.

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
  int64_t rank = 0;   // this rank's contiguous slice of the global batch
  int64_t ranks = 1;  // must divide global_batch_size
  int64_t prefetch_batches = 4;
  bool pinned = false;  // page-locked buffers, for asynchronous copies to a GPU
  config::Augmentation augmentation = config::Augmentation::none;
  int64_t box_rows = 0;  // of a Sudoku; 0 = square boxes, or 2x3 for 6x6
  int64_t box_cols = 0;
  // Only say which rows these are: a DeviceTable (hrm/data/device_table.h) reads and augments them.
  bool picks_only = false;
};
// Seed, prefetch depth, augmentation and box shape from the configuration.
TrainStreamOptions train_stream_options(const config::Config& config, int64_t global_batch_size, bool pinned);

// How rows of this data set are augmented. Throws Error(usage) for options that do not fit the data.
ops::Augmentation augmentation_of(const PuzzleDataset& dataset, const TrainStreamOptions& options);

// Digest (XXH3-128, hex) of the global batch that begins at `position`: its rows after augmentation, with their
// identifiers. Throws as a stream of these data.
std::string batch_digest(const std::shared_ptr<const PuzzleDataset>& dataset, const TrainStreamOptions& options,
                         int64_t position);

// The position behind the next `count` global batches.
int64_t position_after(const std::shared_ptr<const PuzzleDataset>& dataset, const TrainStreamOptions& options,
                       int64_t position, int64_t count);

namespace internal {
class BatchRing;
struct BatchBuffer;
}  // namespace internal

// A batch in one of the stream's buffers. Hold it until nothing reads the tensors any more (for an asynchronous copy:
// until its event has completed). The buffer is reused after release() or destruction. Movable.
class StreamBatch {
 public:
  PuzzleBatch batch;            // CPU; this rank's rows, all valid; undefined with picks_only
  at::Tensor picks;             // with picks_only: (B, 3) int64, CPU: example, sample (SampleRef), puzzle identifier
  int64_t position_before = 0;  // group visits before this batch
  int64_t position_after = 0;   // where to continue: state to save once the batch has been used

  StreamBatch() = default;
  StreamBatch(StreamBatch&&) noexcept = default;
  StreamBatch& operator=(StreamBatch&&) noexcept = default;
  // Gives the buffer back; the tensors must not be touched afterwards.
  void release();

 private:
  friend class TrainStream;
  friend class RowStream;
  std::shared_ptr<internal::BatchBuffer> buffer_;
};

// The constructor allocates, and pins, all memory in the calling thread. The prefetch thread makes no CUDA calls, so it
// need not pause while a graph is captured. There are prefetch_batches + 2 buffers: the caller may hold two batches.
class TrainStream {
 public:
  // Starts at `position` (group visits; 0 at the beginning). Throws Error(usage) for options that do not fit the data.
  TrainStream(std::shared_ptr<const PuzzleDataset> dataset, const TrainStreamOptions& options, int64_t position);
  ~TrainStream();
  TrainStream(const TrainStream&) = delete;
  TrainStream& operator=(const TrainStream&) = delete;

  // The next batch; waits for it when it is not ready. Throws what went wrong in the prefetch thread, e.g. Error(data),
  // and Error(unexpected) when the caller holds more than two batches.
  StreamBatch next();

  // Milliseconds that the last next() waited.
  double wait_ms() const { return wait_ms_; }

 private:
  class Producer;
  std::unique_ptr<Producer> producer_;
  double wait_ms_ = 0;
};

// The same stream by single rows, for slots that take new rows as they halt (data.reference_semantics = false). Only
// for data with one example per puzzle: Error(usage) otherwise. Every rank reads all rows: rank and ranks must be 0
// and 1.
class RowStream {
 public:
  // Starts at row `position`; rows are counted from the beginning of training.
  RowStream(std::shared_ptr<const PuzzleDataset> dataset, const TrainStreamOptions& options, int64_t position);
  ~RowStream();

  // Rows position() .. position() + n - 1; 1 <= n <= global_batch_size. Waits when they are not ready.
  StreamBatch next_rows(int64_t n);
  int64_t position() const { return position_; }
  double wait_ms() const { return wait_ms_; }

 private:
  TrainStream source_;
  std::shared_ptr<internal::BatchRing> out_;
  StreamBatch chunk_;
  int64_t chunk_rows_;
  int64_t used_ = 0;  // rows of chunk_ that were handed out
  int64_t position_ = 0;
  double wait_ms_ = 0;
};

}  // namespace hrm::data
