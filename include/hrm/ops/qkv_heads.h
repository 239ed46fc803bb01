#pragma once
// From the rows of a qkv projection to queries, keys and values for scaled dot-product attention, without a copy in
// another order. Each head of q and k is normalised (Dehghani et al., arXiv 2302.05442, with RMSNorm as in Qwen3) and
// rotated by its position (Su et al., "RoFormer", arXiv 2104.09864, in the half-split form of GPT-NeoX).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace hrm::ops {

// Hq heads of queries, Hkv of keys and as many of values, hd elements each.
struct QkvSizes {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

// Each member is optional by itself. cos, sin: (T, hd / 2) float32, contiguous, or (B, 1, 1, hd / 2) if T is 1;
// dimension i of a head is paired with i + hd / 2. q_weight, k_weight: (hd) float32, both or none.
struct QkvHeadOptions {
  at::Tensor cos = {}, sin = {}, q_weight = {}, k_weight = {};
  double eps = 1e-6;
};

struct QkvHeads {
  at::Tensor q, k, v;  // (B, T, Hq, hd), (B, T, Hkv, hd) twice: views whose last dimension is contiguous
};

// qkv (B, T, (Hq + 2 Hkv) hd), all heads of q, then of k, then of v; float32, bfloat16 or float16 (float64 for tests).
// q and k are x * rsqrt(mean(x^2) + eps) * weight if there are weights, rotated if there is a table, all in float32 and
// rounded once. v is a view of qkv. Without weights q and k are views, too: qkv's memory is overwritten, must not be
// read again, and must not be needed by another backward pass. With weights qkv stays unchanged.
//
// Differentiable once in qkv, whose gradient one kernel writes as contiguous rows, and in the weights, summed in
// float32 in a fixed order. Keeps the tables, and with weights qkv. Deterministic; on the current stream; can be
// captured. Throws c10::Error that names the shapes.
QkvHeads qkv_heads_(const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options);

// The same for the projection x @ weight_compute^T: x (B, T, in), weight_compute ((Hq + 2 Hkv) hd, in), and the master
// as in hrm/ops/linear.h for a layer without a bias, whose gradient is added to master.grad(). Without the norms'
// weights the product itself rotates the heads if qkv_heads_product supports it.
QkvHeads qkv_heads_of(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                      const QkvSizes& sizes, const QkvHeadOptions& options);

// The parts. qkv_heads_product: x @ weight^T, (B, T, (Hq + 2 Hkv) hd), rounded and with q and k rotated; in one kernel
// on a Hopper GPU for heads of 64 16-bit elements and enough rows to fill it. qkv_heads_rotate_: in place, without
// weights. qkv_heads_norm: q's and k's heads of all rows, (B, T, Hq + Hkv, hd). qkv_heads_backward: the gradients of
// qkv, q_weight and k_weight for those of q, k and v, of any strides; qkv: with weights. The weights' gradients are
// undefined without weights, or if `needs_weights` is false.
at::Tensor qkv_heads_product(const at::Tensor& x, const at::Tensor& weight, const QkvSizes& sizes,
                             const at::Tensor& cos, const at::Tensor& sin);
void qkv_heads_rotate_(const at::Tensor& qkv, const QkvSizes& sizes, const at::Tensor& cos, const at::Tensor& sin);
at::Tensor qkv_heads_norm(const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options);
std::tuple<at::Tensor, at::Tensor, at::Tensor> qkv_heads_backward(const at::Tensor& grad_q, const at::Tensor& grad_k,
                                                                  const at::Tensor& grad_v, const at::Tensor& qkv,
                                                                  const QkvHeadOptions& options,
                                                                  bool needs_weights = true);

}  // namespace hrm::ops
