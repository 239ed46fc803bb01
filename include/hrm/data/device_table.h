#pragma once
// The examples of a training set on the device, and batches drawn from them there: the host says only which rows.

#include "hrm/config/config.h"
#include "hrm/data/batch.h"
#include "hrm/data/dataset.h"
#include "hrm/data/stream.h"
#include "hrm/ops/augment.h"

namespace hrm::data {

class DeviceTable {
 public:
  // Reads all examples. Throws Error(usage) for options that do not fit the data, Error(data) for a token outside the
  // vocabulary.
  DeviceTable(const PuzzleDataset& dataset, const TrainStreamOptions& options, at::Device device);

  // Writes the rows that `picks` names (StreamBatch::picks on any device; n of them) into the n rows of `batch`, which
  // are on the table's device. They equal the rows of a stream without picks_only, bit for bit. On the current stream;
  // the picks must live until their copy is done.
  void load(const at::Tensor& picks, const PuzzleBatch& batch) const;

  // Bytes that the table of a data set takes.
  static int64_t bytes(const PuzzleDataset& dataset);

 private:
  ops::Augmentation how_;
  at::Tensor inputs_, labels_;  // (examples, S) int32
};

// Copies a stream's rows into `batch`, or draws them there by `table`, which is null for a stream without picks_only.
// On the current stream; `rows` must be held until that is done.
void load_rows(const StreamBatch& rows, const PuzzleBatch& batch, const DeviceTable* table);

// Whether batches are to be drawn on the device: data.augmentation_device, where auto means on a GPU with our kernels
// when the table is small.
bool use_device_table(const config::Config& config, const PuzzleDataset& dataset, at::Device device);

}  // namespace hrm::data
