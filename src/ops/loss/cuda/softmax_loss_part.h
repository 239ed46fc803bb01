#pragma once
// The border between the launcher, which knows tensors, and the kernels, which know pointers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// One part's logits of the tokens `first` to first + vocab - 1.
struct SoftmaxLossPart {
  void* logits;        // element v of row n is at n * pitch + v
  const void* labels;  // (rows) int32, or int64 with wide_labels
  int64_t rows, vocab, pitch, first;
  bool wide_labels;
  Element element;
};

// facts: (rows, 3), or (rows, 4) with the mean, float32.
struct SoftmaxLossFacts {
  SoftmaxLossPart part;
  float* facts;
  bool with_mean;
};

struct SoftmaxLossOfParts {
  SoftmaxLossPart part;
  const float* facts;  // (parts, rows, values)
  int parts, values;
  const float* weights;  // (rows), or null: logits are not written
  float* loss;           // (rows)
};

// Start the kernel on the stream and return the error of the launch. A block owns a row and reads it once, 16 bytes at
// a time where pointer and pitch are multiples of them.
cudaError_t launch(const SoftmaxLossFacts& params, cudaStream_t stream);
cudaError_t launch(const SoftmaxLossOfParts& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
