#pragma once
// Products of the experts of hrm/ops/moe.h on a Hopper GPU. R rows of which each 128 belong to one expert.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda::sm90 {

struct ExpertTiles {
  const int* tile_experts;  // (R / 128)
  const int* starts;        // (experts + 1)
  int64_t rows;             // R
  int64_t experts;
};

// out (R, width) = x (R, inner) @ weight[e]^T, weight (experts, width, inner); with `transposed` @ weight[e], weight
// (experts, inner, width).
struct ExpertLinear {
  ExpertTiles tiles;
  const void* x;
  const void* weight;
  void* out;
  int64_t width, inner;
  bool transposed;
  Element element;
};

// pre = x @ up[e]^T, act = gelu(pre), slope = gelu'(pre), both (R, width); up (experts, width, inner).
struct ExpertUp {
  ExpertTiles tiles;
  const void* x;
  const void* up;
  void* act;
  void* slope;
  int64_t width, inner;
  Element element;
};

// grad_pre (R, width) = (grad_y (R, inner) @ down[e]) * slope, down (experts, inner, width).
struct ExpertUpBackward {
  ExpertTiles tiles;
  const void* grad_y;
  const void* down;
  const void* slope;
  void* grad_pre;
  int64_t width, inner;
  Element element;
};

// act (R, width) = silu(gate) * up of [gate, up] = x @ weight[e]^T, weight (experts, 2 * width, inner): the rows of
// an expert's gate, then those of its up projection. gate_up (R, 2 * width): gates and ups themselves, or null.
struct ExpertSwiglu {
  ExpertTiles tiles;
  const void* x;
  const void* weight;
  void* act;
  void* gate_up;
  int64_t rows;  // R
  int64_t width, inner;
  Element element;
};

// The gradients (R, 2 * width) of gate and up, where that of act is grad_out (R, inner) @ weight_down[e], weight_down
// (experts, inner, width).
struct ExpertSwigluBackward {
  ExpertTiles tiles;
  const void* grad_out;
  const void* weight_down;
  const void* gate_up;
  void* grad_gate_up;
  int64_t rows;  // R
  int64_t width, inner;
  Element element;
};

// grad[e] (M, N) float32 += a[rows of e] (., M)^T @ b[rows of e] (., N).
struct ExpertGradient {
  ExpertTiles tiles;
  const void* a;
  const void* b;
  float* grad;
  int64_t m, n;
  Element element;
  bool overwrite;  // grad = instead of +=
};

// Whether the kernels take the sizes and this GPU.
bool fits(const ExpertLinear& p);
bool fits(const ExpertUp& p);
bool fits(const ExpertUpBackward& p);
bool fits(const ExpertSwiglu& p);
bool fits(const ExpertSwigluBackward& p);
bool fits(const ExpertGradient& p);

// Queue; all pointers aligned to 16 bytes. cudaErrorInvalidValue where they do not fit.
cudaError_t launch(const ExpertLinear& p, cudaStream_t stream);
cudaError_t launch(const ExpertUp& p, cudaStream_t stream);
cudaError_t launch(const ExpertUpBackward& p, cudaStream_t stream);
cudaError_t launch(const ExpertSwiglu& p, cudaStream_t stream);
cudaError_t launch(const ExpertSwigluBackward& p, cudaStream_t stream);
cudaError_t launch(const ExpertGradient& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda::sm90
