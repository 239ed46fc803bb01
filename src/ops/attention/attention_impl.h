#pragma once
// Shared declarations of the attention ops.
//
//   hrm::attention            the op that callers use
//   hrm::attention_forward    out and lse
//   hrm::attention_backward   the gradient of qkv from them
//   hrm::rotate_qkv           q and k rotated by their positions, v copied; for scaled_dot_product_attention
//   hrm::rotate_qkv_          the same in place
//   hrm::rotate_qkv_backward  the gradient of qkv from those of rotated q, k and v, (B, heads, L, head_dim) each

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "ops/common/optional_tensor.h"

namespace hrm::ops {

// Throw c10::Error with the op's name and the shapes.
void check_attention(const char* op, const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                     const OptionalTensor& sin);
void check_attention_projected(const at::Tensor& h, const at::Tensor& weight, int64_t heads, const OptionalTensor& cos,
                               const OptionalTensor& sin);
void check_attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                              const at::Tensor& lse, int64_t heads, const OptionalTensor& cos,
                              const OptionalTensor& sin);
void check_rotate_qkv_backward(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                               const OptionalTensor& cos, const OptionalTensor& sin);

// These go through the dispatcher.
std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                                                     const OptionalTensor& sin);
at::Tensor attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                              const at::Tensor& lse, int64_t heads, const OptionalTensor& cos,
                              const OptionalTensor& sin);
at::Tensor rotate_qkv(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin);
void rotate_qkv_(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin);
at::Tensor rotate_qkv_backward(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                               const OptionalTensor& cos, const OptionalTensor& sin);

// q, k, v as (B, heads, L, head_dim) views of qkv (B, L, 3 * heads * head_dim).
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_heads(const at::Tensor& qkv, int64_t heads);
// (B, heads, L, head_dim) -> (B, L, heads * head_dim), contiguous.
at::Tensor merge_heads(const at::Tensor& mixed);

// Rotation and scaled_dot_product_attention, for inputs that our kernels do not support. Differentiable if gradients
// are recorded. The caller has checked the arguments.
at::Tensor attention_by_sdpa(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin,
                             bool overwrite);

// The following exist only in builds with CUDA. Whether the device of this CUDA tensor runs our kernels:
bool attention_device_fits(const at::Tensor& qkv);
// The attention output, rounded to qkv's dtype, in e4m3 under `slot` (ops/quantized/cuda/fp8.h):
// (B, L, heads * head_dim). Undefined if no kernel supports the input. The caller has checked the arguments and set
// qkv's device.
at::Tensor attention_fp8_by_kernel(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                                   const OptionalTensor& sin, const at::Tensor& slot);
// attention_projected() in one kernel. Undefined if the kernel does not support the input or the two ops are faster.
// The caller has checked the arguments.
at::Tensor attention_projected_by_kernel(const at::Tensor& h, const at::Tensor& weight, int64_t heads,
                                         const OptionalTensor& cos, const OptionalTensor& sin);
// For tests: use only the portable kernels.
void set_portable_attention(bool portable);

namespace composed {

// Calls the two ops.
at::Tensor attention_projected(const at::Tensor& h, const at::Tensor& weight, int64_t heads, const OptionalTensor& cos,
                               const OptionalTensor& sin);

}  // namespace composed

namespace reference {

std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                                                     const OptionalTensor& sin);
at::Tensor attention_backward(const at::Tensor& grad_out, const at::Tensor& qkv, const at::Tensor& out,
                              const at::Tensor& lse, int64_t heads, const OptionalTensor& cos,
                              const OptionalTensor& sin);
// `qkv` may be `to`.
void rotate_qkv(const at::Tensor& qkv, const at::Tensor& to, int64_t heads, const at::Tensor& cos,
                const at::Tensor& sin);
at::Tensor rotate_qkv_backward(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                               const OptionalTensor& cos, const OptionalTensor& sin);

}  // namespace reference
}  // namespace hrm::ops
