#pragma once
// The border between the launcher, which knows tensors, and the kernel, which knows pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct SoftmaxLoss {
  void* logits;          // element v of row n is at n * pitch + v; overwritten where there are weights
  const void* labels;    // (rows) int32, or int64 with wide_labels
  const float* weights;  // (rows), or null
  float* loss;           // (rows)
  int64_t rows, vocab, pitch;
  bool wide_labels;
  Element element;
};

// Starts the kernel on the stream and returns the error of the launch. A block, of long rows on GPUs that have them a
// cluster of blocks, owns a row, in registers or in shared memory where it fits and pointer and pitch are multiples of
// 16 bytes; otherwise a block reads it three times.
cudaError_t launch(const SoftmaxLoss& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
