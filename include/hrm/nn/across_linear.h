#pragma once
// Layers that are cut, with products beside the exchange between parts (hrm/nn/across.h): what needs only this part's
// rows is computed while the other rows travel, and other parts' rows are computed first where sums are sent.
//
// Each function gives what TensorAcross::enter() or leave() around the layer gives, but for the order in which the
// gradients of weights are summed: by parts. Layers whose needs_forward() is true take that way. All parts call the
// same functions in the same order, forward and backward. Differentiable once. Deterministic.

#include "hrm/nn/across.h"
#include "hrm/nn/linear.h"

namespace hrm::nn {

// This part's rows, (k, in) -> the layer's outputs for all rows, (tokens, out).
at::Tensor enter_linear(const TensorAcross& across, const at::Tensor& rows, int64_t tokens, const Linear& linear);

// Inputs of all rows, (tokens, in) -> every part's partial sums of this part's rows, (parts, k, out).
ops::Pieces linear_leave(const TensorAcross& across, const at::Tensor& x, const Linear& linear);

// This part's rows, (k, D) -> every part's partial sums for them of down(silu(gate) * up), (parts, k, D). Neither layer
// may need forward().
ops::Pieces swiglu_across(const TensorAcross& across, const at::Tensor& rows, int64_t tokens, const Linear& gate_up,
                          const Linear& down);

}  // namespace hrm::nn
