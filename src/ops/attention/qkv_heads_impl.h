#pragma once
// Shared declarations of the qkv_heads ops.
//
//   hrm::qkv_heads_product    the projection, with q and k rotated
//   hrm::qkv_heads_rotate_    rotates q and k in place
//   hrm::qkv_heads_norm       q and k normalised and rotated, in a new tensor
//   hrm::qkv_heads_backward   one contiguous gradient of the projection's rows

#include <optional>

#include "hrm/ops/qkv_heads.h"

namespace hrm::ops {

QkvHeadOptions qkv_options(const std::optional<at::Tensor>& cos, const std::optional<at::Tensor>& sin,
                           const std::optional<at::Tensor>& q_weight, const std::optional<at::Tensor>& k_weight,
                           double eps);

// Throw c10::Error with the op's name and the shapes.
void check_qkv_heads(const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options);
void check_qkv_heads_product(const at::Tensor& x, const at::Tensor& weight, const QkvSizes& sizes,
                             const at::Tensor& cos, const at::Tensor& sin);
void check_qkv_heads_backward(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                              const at::Tensor& qkv, const QkvHeadOptions& options);

namespace composed {

// The product by linear, then qkv_heads_rotate_.
at::Tensor qkv_heads_product(const at::Tensor& x, const at::Tensor& weight, const QkvSizes& sizes,
                             const at::Tensor& cos, const at::Tensor& sin);

}  // namespace composed

namespace reference {

void qkv_heads_rotate_(const at::Tensor& qkv, const QkvSizes& sizes, const at::Tensor& cos, const at::Tensor& sin);
at::Tensor qkv_heads_norm(const at::Tensor& qkv, const QkvSizes& sizes, const QkvHeadOptions& options);
std::tuple<at::Tensor, at::Tensor, at::Tensor> qkv_heads_backward(const at::Tensor& grad_q, const at::Tensor& grad_k,
                                                                  const at::Tensor& grad_v, const at::Tensor& qkv,
                                                                  const QkvHeadOptions& options, bool needs_weights);

}  // namespace reference
}  // namespace hrm::ops
