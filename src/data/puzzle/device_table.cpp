#include "hrm/data/device_table.h"

#include <ATen/ATen.h>

namespace hrm::data {
namespace {

// A larger table is not put on the GPU unless requested.
constexpr int64_t kSmallTable = int64_t{256} << 20;

}  // namespace

DeviceTable::DeviceTable(const PuzzleDataset& dataset, const TrainStreamOptions& options, at::Device device)
    : how_(augmentation_of(dataset, options)) {
  const int64_t rows = dataset.num_stored(), length = dataset.meta().seq_len;
  const at::Tensor inputs = at::empty({rows, length}, at::kInt), labels = at::empty_like(inputs);
  for (int64_t i = 0; i < rows; ++i) {
    dataset.stored_row(i, inputs.data_ptr<int32_t>() + i * length, labels.data_ptr<int32_t>() + i * length);
  }
  inputs_ = inputs.to(device);
  labels_ = labels.to(device);
}

void DeviceTable::load(const at::Tensor& picks, const PuzzleBatch& batch) const {
  const at::Tensor on_device = picks.to(inputs_.device(), /*non_blocking=*/true);
  ops::augment_rows_(batch.inputs, batch.labels, batch.puzzle_identifiers, inputs_, labels_, on_device, how_);
}

int64_t DeviceTable::bytes(const PuzzleDataset& dataset) {
  return 2 * dataset.num_stored() * dataset.meta().seq_len * static_cast<int64_t>(sizeof(int32_t));
}

void load_rows(const StreamBatch& rows, const PuzzleBatch& batch, const DeviceTable* table) {
  if (table != nullptr) return table->load(rows.picks, batch);
  batch.inputs.copy_(rows.batch.inputs, /*non_blocking=*/true);
  batch.labels.copy_(rows.batch.labels, /*non_blocking=*/true);
  batch.puzzle_identifiers.copy_(rows.batch.puzzle_identifiers, /*non_blocking=*/true);
}

bool use_device_table(const config::Config& config, const PuzzleDataset& dataset, at::Device device) {
  const config::AugmentationDevice wanted = config.data.augmentation_device;
  if (wanted != config::AugmentationDevice::automatic) return wanted == config::AugmentationDevice::device;
  return device.is_cuda() && config.ops.backend == config::OpsBackend::fused &&
         DeviceTable::bytes(dataset) <= kSmallTable;
}

}  // namespace hrm::data
