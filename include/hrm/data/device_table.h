#pragma once
// The examples of a training set on the device, or the pairs of a compact ARC folder. Batches are gathered and
// augmented there; the host only sends row indices and codes of copies.

#include "hrm/config/config.h"
#include "hrm/data/batch.h"
#include "hrm/data/dataset.h"
#include "hrm/data/stream.h"
#include "hrm/ops/augment.h"

namespace hrm::data {

class DeviceTable {
 public:
  // Reads all stored rows. Throws Error(usage) for options that do not fit the data, and Error(data) for a token
  // outside the vocabulary.
  DeviceTable(const PuzzleDataset& dataset, const TrainStreamOptions& options, at::Device device);

  // Writes the n rows that `picks` selects (StreamBatch::picks, on any device) into the n rows of `batch`, which is on
  // the table's device. The rows equal those of a stream without picks_only, bit for bit. Runs on the current stream;
  // `picks` must stay alive until its copy has completed.
  void load(const at::Tensor& picks, const PuzzleBatch& batch) const;

  // Bytes that the table of a dataset needs.
  static int64_t bytes(const PuzzleDataset& dataset);

 private:
  ops::Augmentation how_;
  at::Tensor inputs_, labels_;  // (stored rows, S) int32
};

// Copies a stream's rows into `batch`, or gathers them on the device with `table`. `table` is null for a stream without
// picks_only. Runs on the current stream; keep `rows` until the copy has completed.
void load_rows(const StreamBatch& rows, const PuzzleBatch& batch, const DeviceTable* table);

// Whether to gather batches on the device (data.augmentation_device). auto means yes if the device is a GPU with our
// kernels and the table is small.
bool use_device_table(const config::Config& config, const PuzzleDataset& dataset, at::Device device);

}  // namespace hrm::data
