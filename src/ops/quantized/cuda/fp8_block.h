#pragma once
// Parts of a block that write their results in 8 bits; slots as in fp8.h. All sizes are multiples of 16, and all
// pointers are aligned to 16 bytes. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// y = x * rstd * weight of each row, in e4m3.
struct RmsNormFp8 {
  const void* x;        // (rows, width) f32, bf16 or f16
  const float* weight;  // (width)
  void* values;         // (rows, width)
  void* transposed;     // (width, rows), or null
  float* rstd;          // (rows)
  float* slot;
  int64_t rows, width;
  float eps;
  Element element;
};

// The same once more from its rstd, transposed only.
struct RmsNormTransposedFp8 {
  const void* x;        // (rows, width) f32, bf16 or f16
  const float* weight;  // (width)
  const float* rstd;    // (rows)
  void* transposed;     // (width, rows)
  const float* slot;    // only its scale is read
  int64_t rows, width;
  Element element;
};

// silu(gate) * up, in e4m3.
struct SwigluFp8 {
  const void* gate_up;  // (rows, 2 width)
  void* values;         // (rows, width)
  float* slot;
  int64_t rows, width;
  Element element;
};

// The gradients of gate and up, in e4m3 or e5m2, and, since it is at hand, what SwigluFp8 wrote, transposed.
struct SwigluGradientFp8 {
  const void* gate_up;   // (rows, 2 width)
  const void* grad_act;  // (rows, width)
  void* values;          // (rows, 2 width), or null
  void* transposed;      // (2 width, rows), or null
  void* act_transposed;  // (width, rows) e4m3, or null
  float* slot;
  const float* act_slot;  // only its scale is read
  int64_t rows, width;
  Element element;
  bool e5m2;
};

// The gradient of a projection's rows from those of its heads, rotated back.
struct QkvGradientFp8 {
  const void* grads[3];                                    // of q, k and v: the last dimension contiguous
  int64_t batch_stride[3], row_stride[3], head_stride[3];  // multiples of 16 bytes
  const float* cos;                                        // (table_rows, head_dim / 2), or null: no rotation
  const float* sin;
  void* values;      // (rows, (heads + 2 kv_heads) head_dim), or null
  void* transposed;  // the other way round, or null
  float* slot;
  int64_t rows, length, table_rows;
  int heads, kv_heads, head_dim;  // head_dim a multiple of 16; rows and columns below 2^31
  Element element;
  bool e5m2;
};

// Start one kernel on the stream and return the error of the launch; with nothing to do, start none.
cudaError_t launch(const RmsNormFp8& params, cudaStream_t stream);
cudaError_t launch(const RmsNormTransposedFp8& params, cudaStream_t stream);
cudaError_t launch(const SwigluFp8& params, cudaStream_t stream);
cudaError_t launch(const SwigluGradientFp8& params, cudaStream_t stream);
cudaError_t launch(const QkvGradientFp8& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
