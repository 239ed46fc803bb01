#pragma once
// Bidirectional multi-head attention on the output of a qkv projection, with rotary position embeddings. See Vaswani et
// al., arXiv 1706.03762, and Su et al., "RoFormer", arXiv 2104.09864, in GPT-NeoX's half-split form. The softmax is
// never written to memory (Dao et al., "FlashAttention", arXiv 2205.14135).

#include <ATen/core/Tensor.h>

#include <tuple>

namespace hrm::ops {

// out = softmax(q k^T / sqrt(head_dim)) v over all positions, without mask and dropout.
//
//   qkv: (B, L, 3 * heads * head_dim): all heads of q, then of k, then of v, not rotated. Any floating-point dtype and
//     strides; non-contiguous input is copied first.
//   cos, sin: (L, head_dim / 2) float32, contiguous (nn::RotaryTable). Both undefined: no rotation. Dimension i of a
//     head is paired with i + head_dim / 2. The rotation is computed in float32 and rounded to qkv's dtype.
//   Returns (B, L, heads * head_dim), contiguous, in qkv's dtype.
//
// If attention_fits(), one of our kernels does everything. Otherwise one kernel rotates. Then our CPU kernel
// (attention_fits_without_gradient()) or ATen's scaled_dot_product_attention runs, with the backend that ATen's context
// allows.
//
// Differentiable once in qkv. The backward pass keeps qkv, out and one float32 per row. Runs on the current stream; can
// be captured. Our kernels are deterministic. Throws c10::Error that names the shapes.
at::Tensor attention(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin);

// The same, but may overwrite qkv's memory. Do not read qkv afterwards, and do not use it in another backward pass.
// Saves a copy of qkv where scaled_dot_product_attention is used.
at::Tensor attention_(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin);

// attention(linear(h, weight), heads, cos, sin) for inference, without bias. Asking for a gradient is an error. h:
// (B, L, D), weight: (3 * heads * head_dim, D), of one dtype. Returns (B, L, heads * head_dim).
//
// On a Hopper GPU one kernel does both and never writes qkv to memory. It needs contiguous bfloat16 or float16,
// head_dim 64, D 512, 65 <= L <= 104, backend fused and attention backend auto_. The number of samples must also keep
// most multiprocessors busy (on an H200 from about 62 on, with exceptions above). Otherwise the two ops run one after
// the other, with the same bits as our kernels.
at::Tensor attention_projected(const at::Tensor& h, const at::Tensor& weight, int64_t heads, const at::Tensor& cos,
                               const at::Tensor& sin);

// Whether our kernels support this input: a GPU of compute capability 8.0 or later, bfloat16 or float16, head_dim 32 or
// 64, 1 <= L <= 128, backend fused, attention backend auto_. A cheap check.
bool attention_fits(const at::Tensor& qkv, int64_t heads);

// Whether one of our kernels runs if no gradient is recorded: if attention_fits(), or on the CPU in float32 with at
// most 512 positions, backend fused, attention backend auto_.
bool attention_fits_without_gradient(const at::Tensor& qkv, int64_t heads);

// The two halves, for a hand-written backward pass. Returns out and lse (B, heads, L), the log-sum-exp of each row,
// float32 (float64 for float64). Not differentiable. If !attention_fits(), plain ATen writes the scores to memory; use
// attention() in that case.
std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos,
                                                     const at::Tensor& sin);
// The gradient of qkv, (B, L, 3 * heads * head_dim), contiguous. grad_out and out: (B, L, heads * head_dim).
at::Tensor attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                              const at::Tensor& lse, int64_t heads, const at::Tensor& cos, const at::Tensor& sin);

// auto_: our kernels where they support the input. sdpa: always scaled_dot_product_attention.
enum class AttentionBackend { auto_, sdpa };

// Process-wide (config key ops.attention). Set it before the first step: a captured graph keeps the setting of its
// capture, and a backward pass must run under the setting of its forward pass.
void set_attention_backend(AttentionBackend backend);
AttentionBackend attention_backend();

}  // namespace hrm::ops
