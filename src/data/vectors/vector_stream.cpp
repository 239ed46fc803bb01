#include <ATen/ATen.h>

#include <cstring>
#include <span>

#include "data/buffer_ring.h"
#include "hrm/base/error.h"
#include "hrm/base/hash.h"
#include "hrm/data/vectors.h"

namespace hrm::data {
namespace {

// The batch being filled, the one in use, and the one before, whose copy may still be running.
constexpr int kBuffers = 3;

// Row numbers at positions begin .. begin + count - 1. `order` is that of `epoch`, and follows the positions.
void fill_rows(uint64_t seed, uint64_t dataset_rows, int64_t begin, int64_t count, int64_t& epoch,
               CounterPermutation& order, int64_t* rows) {
  for (int64_t i = 0; i < count; ++i) {
    const auto position = static_cast<uint64_t>(begin + i);
    const auto needed = static_cast<int64_t>(position / dataset_rows);
    if (needed != epoch) {
      epoch = needed;
      order = CounterPermutation(seed, static_cast<uint64_t>(epoch), dataset_rows);
    }
    rows[i] = static_cast<int64_t>(order(position % dataset_rows));
  }
}

}  // namespace

namespace internal {

struct PicksBuffer {
  at::Tensor rows;
};

class PicksRing : public BufferRing<PicksBuffer> {
 public:
  PicksRing(int64_t rows, bool pinned) : BufferRing("vectors") {
    for (int i = 0; i < kBuffers; ++i) {
      add(std::make_unique<PicksBuffer>(
          PicksBuffer{at::empty({rows}, at::TensorOptions().dtype(at::kLong).pinned_memory(pinned))}));
    }
  }
};

}  // namespace internal

VectorBatch empty_vector_batch(int64_t rows, int64_t features, at::Device device) {
  return {at::empty({rows, features}, at::device(device).dtype(at::kFloat)),
          at::empty({rows}, at::device(device).dtype(at::kLong))};
}

VectorTable::VectorTable(const VectorDataset& dataset, const VectorScaling& scaling, at::Device device)
    : inputs_(scaled(dataset.inputs().to(device), {scaling.mean.to(device), scaling.deviation.to(device)})),
      labels_(dataset.labels().to(device)) {}

void VectorTable::load(const at::Tensor& picks, const VectorBatch& batch) const {
  const at::Tensor on_device = picks.to(inputs_.device(), /*non_blocking=*/true);
  at::Tensor inputs = batch.inputs, labels = batch.labels;
  at::index_select_out(inputs, inputs_, 0, on_device);
  at::index_select_out(labels, labels_, 0, on_device);
}

int64_t VectorTable::bytes(const VectorDataset& dataset) {
  return static_cast<int64_t>(dataset.inputs().nbytes() + dataset.labels().nbytes());
}

VectorStream::VectorStream(int64_t dataset_rows, const VectorStreamOptions& options, int64_t position)
    : dataset_rows_(static_cast<uint64_t>(dataset_rows)),
      options_(options),
      position_(position),
      epoch_(position / dataset_rows),
      order_(options.seed, static_cast<uint64_t>(epoch_), dataset_rows_) {
  require(options.global_batch_size >= 1 && options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks &&
              options.global_batch_size % options.ranks == 0,
          ExitCode::usage, "a batch of ", options.global_batch_size, " samples cannot be split over ", options.ranks,
          " ranks: choose a multiple of the ranks");
  require(position >= 0, ExitCode::unexpected, "a training stream cannot start at position ", position);
  ring_ = std::make_shared<internal::PicksRing>(options.global_batch_size / options.ranks, options.pinned);
}

VectorStream::~VectorStream() = default;

VectorPicks VectorStream::next() {
  VectorPicks picks;
  picks.buffer_ = ring_->take_free();
  picks.rows = picks.buffer_->rows;
  picks.position_before = position_;
  const int64_t rows = picks.rows.size(0);
  fill_rows(options_.seed, dataset_rows_, position_ + options_.rank * rows, rows, epoch_, order_,
            picks.rows.data_ptr<int64_t>());
  position_ += options_.global_batch_size;
  picks.position_after = position_;
  return picks;
}

std::string batch_digest(const VectorDataset& dataset, const VectorStreamOptions& options, int64_t position) {
  VectorStreamOptions whole = options;
  whole.rank = 0;
  whole.ranks = 1;
  whole.pinned = false;
  const VectorPicks picks = VectorStream(dataset.rows(), whole, position).next();
  const int64_t features = dataset.features(), *rows = picks.rows.data_ptr<int64_t>();
  Hasher hasher;
  for (int64_t i = 0; i < picks.rows.size(0); ++i) {
    const float* inputs = dataset.inputs().data_ptr<float>() + rows[i] * features;
    hasher.update(std::as_bytes(std::span(inputs, static_cast<size_t>(features))));
    hasher.update(std::as_bytes(std::span(dataset.labels().data_ptr<int64_t>() + rows[i], 1)));
  }
  return hasher.hex();
}

}  // namespace hrm::data
