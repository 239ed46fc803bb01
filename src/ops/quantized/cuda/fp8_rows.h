#pragma once
// Parameters of the kernels of fp8_rows. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// The arguments of quantize_fp8_rows (hrm/ops/fp8_rows.h). Any width and alignment.
struct QuantizeFp8Rows {
  const void* from;      // (rows, width)
  const float* factors;  // (width) or null
  uint8_t* values;       // (rows, width)
  float* scales;         // (rows)
  int64_t rows, width;
  Element element;  // of from
};

// to = from^T, and `columns` ones. Both sizes are multiples of 16, pointers to matrices are aligned to 16 bytes.
struct TransposeFp8 {
  const uint8_t* from;  // (rows, columns)
  uint8_t* to;          // (columns, rows)
  float* ones;          // (columns)
  int64_t rows, columns;
};

cudaError_t launch(const QuantizeFp8Rows& params, cudaStream_t stream);
cudaError_t launch(const TransposeFp8& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
