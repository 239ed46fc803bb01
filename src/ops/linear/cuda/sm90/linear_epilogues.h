#pragma once
// Matrix products, most with an epilogue, for Hopper. No torch headers.
//
// Every `launch` encodes its tensor maps on the host, starts one kernel on the stream and returns the launch's error.
// Rows of all tensors are contiguous and follow each other; pointers are aligned to 16 bytes; elements are bf16 or f16.
// `fits` says whether a launch takes these sizes on the current device.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda::sm90 {

// out = x * weight^T. inner and width multiples of 8.
struct LinearForward {
  const void* x;       // (rows, inner)
  const void* weight;  // (width, inner)
  void* out;           // (rows, width)
  int64_t rows;
  int64_t width;
  int64_t inner;
  Element element;
};

bool fits(const LinearForward& params);
cudaError_t launch(const LinearForward& params, cudaStream_t stream);

// Whether tiles of 128 rows x 256 columns leave few multiprocessors idle in the last round. With smaller tiles, or sums
// over parts of inner, cuBLAS fills the chip better.
bool fills_the_chip(int64_t rows, int64_t width);

// The same with heads of 64 columns, the first ones of each row, rotated by the row's position: as if the product were
// rounded and then taken by QkvHeadsForward (ops/attention/cuda/qkv_heads.h) with the table, row r of it for row r %
// table_rows.
struct LinearRotated {
  const void* x;       // (rows, inner)
  const void* weight;  // (width, inner)
  const float* cos;    // (table_rows, 32), aligned to 8 bytes
  const float* sin;
  void* out;  // (rows, width)
  int64_t rows;
  int64_t width;
  int64_t inner;
  int64_t table_rows;
  int64_t turned;  // columns that are rotated, a multiple of 64
  Element element;
};

bool fits(const LinearRotated& params);
cudaError_t launch(const LinearRotated& params, cudaStream_t stream);

// act = silu(x * W_gate^T) * (x * W_up^T), weight = [W_gate; W_up].
struct LinearSwigluForward {
  const void* x;       // (rows, inner)
  const void* weight;  // (2 * width, inner)
  void* act;           // (rows, width)
  void* gate_up;       // (rows, 2 * width), or null: do not write
  uint32_t* draws;     // 0, or null: blocks do not draw their tiles (ops/cuda/sm90/tile_draws.cuh)
  int64_t rows;
  int64_t width;
  int64_t inner;
  Element element;
};

bool fits(const LinearSwigluForward& params);
bool worth_draws(const LinearSwigluForward& params);
cudaError_t launch(const LinearSwigluForward& params, cudaStream_t stream);

// The gradients of gate and up where that of silu(gate) * up is grad_out * weight_down.
struct LinearSwigluBackward {
  const void* grad_out;     // (rows, inner)
  const void* weight_down;  // (inner, width)
  const void* gate_up;      // (rows, 2 * width)
  void* grad_gate_up;       // (rows, 2 * width)
  uint32_t* draws;          // as above
  int64_t rows;
  int64_t width;
  int64_t inner;
  Element element;
};

bool fits(const LinearSwigluBackward& params);
bool worth_draws(const LinearSwigluBackward& params);
cudaError_t launch(const LinearSwigluBackward& params, cudaStream_t stream);

// h = residual + x * weight^T, y = h * rstd, rstd = 1 / sqrt(mean(h^2) + eps). With an addend, y + addend (both
// rounded) takes y's place; few rows do not fit then.
struct LinearRmsNorm {
  const void* x;         // (rows, inner)
  const void* weight;    // (width, inner)
  const void* residual;  // (rows, width)
  const void* addend;    // (rows, width), or null
  void* y;               // (rows, width)
  float* rstd;           // (rows), or null: do not write
  int64_t rows;
  int64_t width;
  int64_t inner;
  float eps;
  Element element;
};

bool fits(const LinearRmsNorm& params);
cudaError_t launch(const LinearRmsNorm& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda::sm90
