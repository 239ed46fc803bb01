#pragma once
// Vectors with a class each, for example images: rows of a folder's splits, their scaling, and training batches that
// the device gathers.
//
// Layout: <root>/<split>/inputs.npy, (rows, ...) of float32, float64 or a type of whole numbers, and
// <root>/<split>/labels.npy, (rows) whole numbers from 0. A split is "train" or "test". row_shape() keeps further
// dimensions of the inputs, as those of images; everything else sees one dimension of F features in C order.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hrm/data/sampler.h"

namespace hrm::data {

// One split in host memory. Immutable and safe to read from several threads.
class VectorDataset {
 public:
  // `inputs`: (N, F) float32; `labels`: (N) int64, both on the CPU and contiguous; `row_shape`: F as the product of the
  // dimensions in the file. `origin` names the source in errors. Throws Error(data) for no rows or no features, a
  // number that is not finite, and a label below 0 or above 65,535.
  VectorDataset(at::Tensor inputs, at::Tensor labels, std::vector<int64_t> row_shape, std::string origin);

  int64_t rows() const { return labels_.size(0); }
  int64_t features() const { return inputs_.size(1); }
  // The largest label + 1.
  int64_t classes() const { return classes_; }
  const std::vector<int64_t>& row_shape() const { return row_shape_; }
  const at::Tensor& inputs() const { return inputs_; }  // (N, F) float32, CPU, as in the file
  const at::Tensor& labels() const { return labels_; }  // (N) int64, CPU
  const std::string& origin() const { return origin_; }

  // XXH3-128, in hex, of everything that training sees: shape, inputs in float32 and labels, but not the path.
  std::string digest() const;

 private:
  at::Tensor inputs_, labels_;
  std::vector<int64_t> row_shape_;
  std::string origin_;
  int64_t classes_ = 0;
};

// Whether a folder has a split in this layout.
bool is_vector_folder(const std::filesystem::path& root);

// Reads a split into memory, its inputs as float32: float64 and whole numbers above 2^24 are rounded. Throws
// Error(data), one sentence that names file and row, for missing or malformed files.
std::shared_ptr<const VectorDataset> open_vectors(const std::filesystem::path& root, const std::string& split);

// Checks that a test set has the features of the training set and none but its classes. Throws Error(data).
void check_same_vectors(const VectorDataset& train, const VectorDataset& test);

// How inputs become those of a model: (x - mean) / deviation. Keep both in the checkpoint, since they belong to the
// weights.
struct VectorScaling {
  at::Tensor mean;       // (F) float32: of each feature over the training rows
  at::Tensor deviation;  // 0-dim float32: root mean square of (x - mean) over all rows and features
};

// On the CPU, summed in float64 in the order of the rows, so it does not depend on the number of threads. Throws
// Error(data) if all rows are equal.
VectorScaling vector_scaling(const VectorDataset& train);

// Inputs (..., F) float32 and the scaling on the same device.
at::Tensor scaled(const at::Tensor& inputs, const VectorScaling& scaling);

// The rows of a training step, in memory with fixed addresses.
struct VectorBatch {
  at::Tensor inputs;  // (B, F) float32, scaled
  at::Tensor labels;  // (B) int64
};
VectorBatch empty_vector_batch(int64_t rows, int64_t features, at::Device device);

// A split on the device, as two tensors. A batch is a gather there, so the host sends row numbers only.
class VectorTable {
 public:
  // Copies and scales all rows. Needs bytes() on the device.
  VectorTable(const VectorDataset& dataset, const VectorScaling& scaling, at::Device device);

  const at::Tensor& inputs() const { return inputs_; }  // (N, F) float32, scaled
  const at::Tensor& labels() const { return labels_; }  // (N) int64

  // Writes the rows `picks` (VectorPicks::rows, on any device) into `batch`, which is on the table's device. Runs on
  // the current stream and waits for nothing if the picks are page-locked; they must stay alive until their copy has
  // completed.
  void load(const at::Tensor& picks, const VectorBatch& batch) const;

  static int64_t bytes(const VectorDataset& dataset);

 private:
  at::Tensor inputs_, labels_;
};

struct VectorStreamOptions {
  uint64_t seed = 0;
  int64_t global_batch_size = 0;
  int64_t rank = 0;     // this rank reads a contiguous slice of the global batch
  int64_t ranks = 1;    // must divide global_batch_size
  bool pinned = false;  // page-locked row numbers, for asynchronous copies to a GPU
};

namespace internal {
struct PicksBuffer;
class PicksRing;
}  // namespace internal

// The rows of one training batch, in a buffer of the stream. Hold it until nothing reads the tensor; for an
// asynchronous copy, until its event has completed. Movable.
class VectorPicks {
 public:
  at::Tensor rows;              // (B) int64, CPU: row numbers in the data set
  int64_t position_before = 0;  // rows of all ranks before this batch
  int64_t position_after = 0;   // position of the next batch; save it once the batch has been used

 private:
  friend class VectorStream;
  std::shared_ptr<internal::PicksBuffer> buffer_;
};

// The order of training rows: each epoch visits every row once, in the order of a CounterPermutation of (seed, epoch).
// Batches go on over the end of an epoch. The only state is the position; a batch costs microseconds, so no thread
// prepares it.
class VectorStream {
 public:
  // Starts at row `position`, counted over all ranks from the beginning of training. Throws Error(usage) for a batch
  // that the ranks cannot share.
  VectorStream(int64_t dataset_rows, const VectorStreamOptions& options, int64_t position);
  ~VectorStream();

  // This rank's part of the next global batch. There are three buffers: throws Error(unexpected) if the caller holds
  // them all.
  VectorPicks next();
  int64_t position() const { return position_; }

 private:
  uint64_t dataset_rows_;
  VectorStreamOptions options_;
  int64_t position_;
  int64_t epoch_;
  CounterPermutation order_;
  std::shared_ptr<internal::PicksRing> ring_;
};

// Digest (XXH3-128, in hex) of the global batch that begins at `position`: its inputs before scaling, and its labels.
std::string batch_digest(const VectorDataset& dataset, const VectorStreamOptions& options, int64_t position);

}  // namespace hrm::data
