#pragma once
// Parts of a block that write rows of e4m3 with a scale for each, and the rows in the compute dtype beside them. All
// pointers are aligned to 16 bytes. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/attention/cuda/qkv_heads.h"
#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Rows in 8 bits.
struct QuantisedRows {
  void* wide;            // the rows in the compute dtype, or null: not written
  uint8_t* values;       // (rows, columns)
  float* scales;         // (rows)
  const float* factors;  // (columns), what columns are multiplied by before they are quantised; or null
};

// y = x * rstd * weight of each row.
struct WeightedRmsNormRows {
  const void* x;        // (rows, width) f32, bf16 or f16
  const float* weight;  // (width)
  QuantisedRows y;
  float* rstd;  // (rows)
  int64_t rows, width;
  float eps;
  Element element;
};

// silu(gate) * up.
struct SwigluRows {
  const void* gate_up;  // (rows, 2 width)
  QuantisedRows act;
  int64_t rows, width;
  Element element;
};

// The gradients of gate and up.
struct SwigluBackwardRows {
  const void* gate_up;   // (rows, 2 width)
  const void* grad_act;  // (rows, width)
  QuantisedRows grad;
  int64_t rows, width;
  Element element;
};

// The gradient of a projection's rows from those of its heads, without gradients of the norms' weights. Strides are
// multiples of 16 bytes.
struct QkvBackwardRows {
  QkvHeadsBackward heads;  // grad_qkv, partial and grad_weight are null
  QuantisedRows grad;
};

// Whether a kernel takes these sizes: rows that the registers of a block hold.
bool fits(const WeightedRmsNormRows& params);
bool fits(const SwigluRows& params);
bool fits(const SwigluBackwardRows& params);
bool fits(const QkvBackwardRows& params);

// Start one kernel on the stream and return the error of the launch; with no rows, start none.
cudaError_t launch(const WeightedRmsNormRows& params, cudaStream_t stream);
cudaError_t launch(const SwigluRows& params, cudaStream_t stream);
cudaError_t launch(const SwigluBackwardRows& params, cudaStream_t stream);
cudaError_t launch(const QkvBackwardRows& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
