#pragma once
// Low-rank adapters on the projections of SwiGLU experts, beside frozen weights.

#include <ATen/core/Tensor.h>

#include "hrm/nn/linear.h"
#include "hrm/ops/moe.h"

namespace hrm::nn {

// As ops::moe_experts with SwiGLU, where each expert's projection p of an adapter gives x W^T + scale * x A^T B^T.
// gate_up and down: the stacked weights of MoeFeedForward; at least one of them has an active adapter, on all experts
// alike. x (T, D), weights (T, K). The adapters' products are those of the rows of each expert, and nothing of the size
// of the weights is made. Differentiable in x and weights; gradients of A and B are added in float32 to their masters'
// buffers, as in LoraAdapter::forward. Can be captured.
at::Tensor adapted_experts(const at::Tensor& x, const at::Tensor& weights, const ops::MoePlan& plan,
                           const Linear& gate_up, const Linear& down);

}  // namespace hrm::nn
