#pragma once
// TRM's MLP over positions (arXiv 2510.04871) with its residual and norm. It replaces attention in attention-free
// models.

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

// For every sample b and channel d, the column h[b, :, d] of L positions goes through a SwiGLU layer and is normalised:
//
//   G = weight_gate_up @ h[b]                   (2F, D), the first F rows are the gate
//   z = weight_down @ (silu(G[:F]) * G[F:])     (L, D)
//   y[b, :, d] = v * rstd,  v = h[b, :, d] + z[:, d],  rstd = 1 / sqrt(mean over L of v^2 + eps)
//
// h: (B, L, D). weight_gate_up: (2F, L), weight_down: (L, F), both contiguous and of h's dtype (float32, bfloat16,
// float16; float64 for tests). eps > 0. Returns y, (B, L, D) in h's dtype. Nothing is transposed.
//
// The fused kernel (Hopper, 16-bit, L <= 128, D a multiple of 64, F of 256) reads and writes only h and y. It rounds
// silu * gate, which a tensor core reads, and y to the dtype; the rest stays in float32. Otherwise batched library
// products work on parts of the batch and round every intermediate result.
//
// Deterministic. With the fused kernels, a sample's y and its gradient of h do not depend on the rest of the batch.
// Runs on the current stream without synchronisation; can be captured. Throws c10::Error that names the shapes. This
// overload has no derivative.
at::Tensor mlp_mix(const at::Tensor& h, const at::Tensor& weight_gate_up, const at::Tensor& weight_down, double eps);

// The same, with what the backward pass needs in addition to h: y, and rstd (B, D) in float32 (float64 for float64 h).
std::tuple<at::Tensor, at::Tensor> mlp_mix_forward(const at::Tensor& h, const at::Tensor& weight_gate_up,
                                                   const at::Tensor& weight_down, double eps);

// Returns the gradient of h, (B, L, D) in h's dtype. Adds in place to grad_weight_gate_up and grad_weight_down, of the
// weights' shapes, float32 (float64 for float64 h), contiguous. G is recomputed, because it would take 10 times h's
// size. The norm's part uses y, so h + z need not be kept.
//
// The weights' gradients are sums over the batch. Their order depends only on the shapes and on the GPU's number of
// multiprocessors. On an H200, the fused kernels' scratch memory is about 50 MB plus F / 2048 of h's bytes for L <= 112
// and F <= 1,792 (and for some F above). Otherwise it is up to 0.8 MB times F.
at::Tensor mlp_mix_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& y, const at::Tensor& rstd,
                            const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                            const at::Tensor& grad_weight_gate_up, const at::Tensor& grad_weight_down);

// Differentiable. The masters are the float32 leaves behind the weights, or the same tensors. As with hrm::linear,
// their gradients are added to master.grad() in float32 and not returned to autograd.
at::Tensor mlp_mix(const at::Tensor& h, const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                   const at::Tensor& master_gate_up, const at::Tensor& master_down, double eps);

}  // namespace hrm::ops
