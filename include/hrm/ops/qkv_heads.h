#pragma once
// Queries, keys and values for scaled dot-product attention, from the rows of a qkv projection and without reordering
// them. Each head of q and k is normalised (Dehghani et al., arXiv 2302.05442, with RMSNorm as in Qwen3). It is then
// rotated by its position (Su et al., "RoFormer", arXiv 2104.09864, in GPT-NeoX's half-split form).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace hrm::ops {

// Hq query heads, Hkv key heads and Hkv value heads, with hd elements each.
struct QkvSizes {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

// Rotation and norm are optional. cos, sin: (T, hd / 2) float32, contiguous, or (B, 1, 1, hd / 2) if T is 1. Dimension
// i of a head is paired with i + hd / 2. q_weight, k_weight: (hd) float32, both or none.
struct QkvHeadOptions {
  at::Tensor cos = {}, sin = {}, q_weight = {}, k_weight = {};
  double eps = 1e-6;
};

struct QkvHeads {
  at::Tensor q, k, v;  // (B, T, Hq, hd), (B, T, Hkv, hd) twice: views with a contiguous last dimension
};

// qkv: (B, T, (Hq + 2 Hkv) hd), all heads of q, then of k, then of v; float32, bfloat16 or float16 (float64 for tests).
// With weights, q and k are x * rsqrt(mean(x^2) + eps) * weight; with a table they are rotated. All of this is float32
// and rounded once.
//
// v is a view of qkv. Without weights, q and k are views too, and qkv's memory is overwritten: do not read qkv again,
// and do not use it in another backward pass. With weights, qkv is unchanged.
//
// Differentiable once in qkv, whose gradient one kernel writes as contiguous rows, and in the weights, summed in
// float32 in a fixed order. Keeps the tables, and with weights also qkv. Deterministic. Runs on the current stream; can
// be captured. Throws c10::Error that names the shapes.
QkvHeads qkv_heads_(const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options);

// The same for the projection x @ weight_compute^T. x: (B, T, in), weight_compute: ((Hq + 2 Hkv) hd, in). The master is
// as in hrm/ops/linear.h for a layer without a bias: its gradient is added to master.grad(). Without the norms'
// weights, the product itself rotates the heads if qkv_heads_product supports it.
QkvHeads qkv_heads_of(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                      const QkvSizes& sizes, const QkvHeadOptions& options);

// The single steps:
// - qkv_heads_product: x @ weight^T, (B, T, (Hq + 2 Hkv) hd), rounded, with q and k rotated. One kernel on a Hopper GPU
//   for heads of 64 16-bit elements and enough rows to fill it.
// - qkv_heads_rotate_: rotates in place, without weights.
// - qkv_heads_norm: the heads of q and k of all rows, (B, T, Hq + Hkv, hd).
// - qkv_heads_backward: the gradients of qkv, q_weight and k_weight, given those of q, k and v with any strides. qkv is
//   needed only with weights. The weights' gradients are undefined without weights, or if `needs_weights` is false.
at::Tensor qkv_heads_product(const at::Tensor& x, const at::Tensor& weight, const QkvSizes& sizes,
                             const at::Tensor& cos, const at::Tensor& sin);
void qkv_heads_rotate_(const at::Tensor& qkv, const QkvSizes& sizes, const at::Tensor& cos, const at::Tensor& sin);
at::Tensor qkv_heads_norm(const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options);
std::tuple<at::Tensor, at::Tensor, at::Tensor> qkv_heads_backward(const at::Tensor& grad_q, const at::Tensor& grad_k,
                                                                  const at::Tensor& grad_v, const at::Tensor& qkv,
                                                                  const QkvHeadOptions& options,
                                                                  bool needs_weights = true);

}  // namespace hrm::ops
