#pragma once
// Training rows for slots that receive new ones as they halt (data.reference_semantics = false): a ring of rows and its
// read cursor on the device, so that choosing rows needs no host synchronisation.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "hrm/data/device_table.h"
#include "hrm/data/stream.h"
#include "hrm/runtime/async_read.h"
#include "hrm/tasks/staged_batches.h"

namespace hrm::tasks {

class RowPool {
 public:
  // The ring has room for the rows of this many steps.
  static constexpr int64_t kBatches = 4;

  // `slots`: rows that one step can take at most. The pool starts at row `position` of the stream. `table`, or null:
  // draws the rows on the device (options.picks_only); it must live as long as the pool.
  RowPool(std::shared_ptr<const data::PuzzleDataset> dataset, const data::TrainStreamOptions& options, int64_t slots,
          int64_t position, at::Device device, const data::DeviceTable* table);

  // Before a step: makes sure that the next `slots` rows are on the device. Returns the milliseconds it waited for
  // data. The host learns the cursor with a delay of up to kLag steps, so the ring holds rows for all steps in between.
  double prepare();
  // After a step: starts the copy of the cursor to the host.
  void finish();

  // Ring of capacity() rows; row r of the stream is at r modulo capacity().
  const data::PuzzleBatch& rows() const { return ring_; }
  at::Tensor& cursor() { return cursor_; }  // 0-dim int64 on the device: rows consumed since the start of training
  int64_t capacity() const { return capacity_; }

 private:
  static constexpr int64_t kLag = kBatches - 2;

  std::unique_ptr<data::RowStream> stream_;
  const data::DeviceTable* table_;
  int64_t slots_, capacity_;
  int64_t known_;   // cursor, as last seen by the host
  int64_t loaded_;  // rows of the stream that were put into the ring
  StagedBatches<data::StreamBatch> staged_;
  data::PuzzleBatch ring_;
  at::Tensor cursor_;
  AsyncReader reader_;
};

}  // namespace hrm::tasks
