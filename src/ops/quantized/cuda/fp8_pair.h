#pragma once
// Quantisation of a matrix to 8 bits as it stands and transposed, in one pass; slots as in fp8.h. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct QuantizeFp8Pair {
  const void* from;  // (rows, columns) f32, bf16 or f16
  void* values;      // (rows, columns), or null
  void* transposed;  // (columns, rows), or null
  float* slot;
  int64_t rows, columns;
  Element element;
  bool e5m2;
};

// Starts one kernel on the stream and returns the error of the launch; with nothing to do, starts none.
cudaError_t launch(const QuantizeFp8Pair& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
