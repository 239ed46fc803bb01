#pragma once
// The recurrence of Mamba2, a state space model with one decay per head (Dao and Gu, "Transformers are SSMs", arXiv
// 2405.21060), in its chunked form of matrix products. Shapes: B rows, T positions, H heads of P channels, N state, G
// groups that share B and C (head h reads group h / (H / G)).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace hrm::ops {

// For each row and head, with S_0 = initial_state or zeros, S (P, N):
//   S_t = exp(dt_t * A) * S_(t-1) + dt_t * x_t B_t^T      y_t = S_t C_t + D * x_t
//
//   x: (B, T, H, P), float32, bfloat16 or float16 (float64 for tests), any strides.
//   dt: (B, T, H) float32 (float64 with float64 x), not negative.
//   A: (H), negative, and D: (H), both of dt's type.
//   B, C: (B, T, G, N) of x's type.
//   chunk: the positions of one matrix product, at least 1. It changes only rounding.
//   initial_state: (B, H, P, N) of dt's type.
//   Returns y (B, T, H, P) in x's type, and the state after the last position, (B, H, P, N) in dt's type.
//
// Intermediate values are of dt's type. Exponents are sums of dt * A inside a chunk, at most 0 when they are used, so
// nothing overflows. Differentiable once in all tensors; keeps its inputs and recomputes the states of the chunks.
// Deterministic. Runs on the current stream; can be captured. ops.backend=reference runs the recurrence position by
// position. Throws c10::Error that names the shapes.
//
// On a GPU, bfloat16 and float16 with heads of 64 channels and a state of 64 or 128 have kernels, forward and backward.
// Everything else, including float32, uses ATen's chunked form. The kernels' chunks always have 64 positions, summed in
// float32. Every operand of a product is of x's type: C_i . B_j times its decay, the state before a chunk and its
// gradient too. In float16 these overflow above 65504. The kernels' bits depend on the shapes and on the GPU's number
// of multiprocessors.
std::tuple<at::Tensor, at::Tensor> ssd_scan(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A,
                                            const at::Tensor& B, const at::Tensor& C, const at::Tensor& D,
                                            int64_t chunk, const std::optional<at::Tensor>& initial_state = {});

// Gradients of (x, dt, A, B, C, D, initial_state), contiguous and each of its input's type. The last is of dt's type
// even without an initial_state. grad_final_state: undefined means zeros.
using SsdScanGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
SsdScanGradients ssd_scan_backward(const at::Tensor& grad_y, const std::optional<at::Tensor>& grad_final_state,
                                   const at::Tensor& x, const at::Tensor& dt, const at::Tensor& A, const at::Tensor& B,
                                   const at::Tensor& C, const at::Tensor& D, int64_t chunk,
                                   const std::optional<at::Tensor>& initial_state = {});

}  // namespace hrm::ops
