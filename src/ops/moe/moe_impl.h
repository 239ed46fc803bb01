#pragma once
// What the files of moe share: the ops that moe_experts is made of. See hrm/ops/moe.h for shapes and letters.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "hrm/ops/moe.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

// xp (R, D): row r is x of pick picks[r]'s token, or zeros.
at::Tensor moe_gather(const at::Tensor& x, const at::Tensor& picks, const at::Tensor& starts, int64_t top_k);
// act = gelu(pre) and slope = gelu'(pre), both (R, F), of pre = xp @ up^T, rounded before. The slope is kept for the
// backward pass instead of pre: there the exponential would cost more than the product can hide.
std::tuple<at::Tensor, at::Tensor> moe_up(const at::Tensor& xp, const at::Tensor& up, const at::Tensor& tile_experts,
                                          const at::Tensor& starts);
// grad_pre (R, F) = (grad_y @ down) * slope.
at::Tensor moe_up_backward(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& slope,
                           const at::Tensor& tile_experts, const at::Tensor& starts);
// act (R, F) = silu(gate) * up of [gate, up] = xp @ gate_up^T, gate_up (E, 2F, D). Rounded as ops::linear_swiglu does.
// With `keep` also gates and ups, (R, 2F), for the backward pass; otherwise undefined.
std::tuple<at::Tensor, at::Tensor> moe_up_swiglu(const at::Tensor& xp, const at::Tensor& gate_up,
                                                 const at::Tensor& tile_experts, const at::Tensor& starts, bool keep);
// The gradients (R, 2F) of the gates and ups that moe_up_swiglu kept, where that of act is grad_y @ down.
at::Tensor moe_up_swiglu_backward(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& kept,
                                  const at::Tensor& tile_experts, const at::Tensor& starts);
// rows (R, K) @ weight[e]^T, weight (E, N, K); or with `transposed` @ weight[e], weight (E, K, N). (R, N).
at::Tensor moe_linear(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                      const at::Tensor& starts, bool transposed);
// The same by the kernel that every GPU has, also where a better one fits: to measure and test it.
at::Tensor moe_linear_portable(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                               const at::Tensor& starts, bool transposed);
// grad[e] += a[rows of e]^T @ b[rows of e], in float32; with `overwrite` =. grad (E, M, N), a (R, M), b (R, N).
void moe_accumulate_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& tile_experts,
                     const at::Tensor& starts, bool overwrite = false);
// The same by the kernel that every GPU has, also where a better one fits: to measure and test it.
void moe_accumulate_portable_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b,
                              const at::Tensor& tile_experts, const at::Tensor& starts, bool overwrite = false);
// out (T, D): the sum over k of weights[t, k] (1 where there are none) * y[rows[t, k]].
at::Tensor moe_combine(const at::Tensor& y, const at::Tensor& rows, const OptionalTensor& weights);
// grad_y (R, D) and grad_weights (T, K).
std::tuple<at::Tensor, at::Tensor> moe_combine_backward(const at::Tensor& grad_out, const at::Tensor& y,
                                                        const at::Tensor& picks, const at::Tensor& starts,
                                                        const at::Tensor& weights);
// grad_logits from what weights and scores got.
at::Tensor moe_gate_backward(const OptionalTensor& grad_weights, const OptionalTensor& grad_scores,
                             const at::Tensor& ids, const at::Tensor& scores, bool sigmoid, bool normalize);

at::Tensor moe_router(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& master,
                      const OptionalTensor& grad_weight);

// The op: the loss and its slope; with a gradient the loss alone.
std::tuple<at::Tensor, at::Tensor> moe_load_loss_forward_(const at::Tensor& scores, const at::Tensor& kept,
                                                          const OptionalTensor& wanted, const at::Tensor& totals);

// These two are made of other ops, on any device; without gradients.
at::Tensor moe_router_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& master,
                              const OptionalTensor&);
at::Tensor moe_experts_forward(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& rows,
                               const at::Tensor& picks, const at::Tensor& tile_experts, const at::Tensor& starts,
                               const at::Tensor& up, const at::Tensor&, const at::Tensor& down, const at::Tensor&,
                               const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool swiglu);

namespace reference {
// By a loop, on the CPU; what is not there is copied.
at::Tensor moe_jitter(const at::Tensor& x, const at::Tensor& step, double amount, int64_t seed);
void moe_loads_(const at::Tensor& loads, at::TensorList counts);
// The loss, and its slope along each expert's column of scores, (E).
std::tuple<at::Tensor, at::Tensor> moe_load_loss_(const at::Tensor& scores, const at::Tensor& kept,
                                                  const OptionalTensor& wanted, const at::Tensor& totals);
}  // namespace reference

using GateResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using PlanResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
GateResult moe_gate_forward(const at::Tensor& logits, int64_t top_k, bool sigmoid, bool normalize,
                            const OptionalTensor& bias);

// Throw c10::Error.
void check_moe_gate(const at::Tensor& logits, int64_t top_k, const OptionalTensor& bias);
void check_moe_jitter(const at::Tensor& x, const at::Tensor& step, double amount);
void check_moe_plan(const at::Tensor& ids, int64_t experts);
void check_moe_linear(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                      const at::Tensor& starts, bool transposed);
void check_moe_up_swiglu(const at::Tensor& xp, const at::Tensor& gate_up, const at::Tensor& tile_experts,
                         const at::Tensor& starts);
void check_moe_up_swiglu_backward(const at::Tensor& grad_y, const at::Tensor& down, const at::Tensor& kept,
                                  const at::Tensor& tile_experts, const at::Tensor& starts);
void check_moe_accumulate(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& starts);
void check_moe_gather(const at::Tensor& x, const at::Tensor& picks, int64_t top_k);
void check_moe_loads(const at::Tensor& loads, at::TensorList counts);
void check_moe_load_loss(const at::Tensor& scores, const at::Tensor& kept, const OptionalTensor& wanted,
                         const at::Tensor& totals);
void check_moe_combine(const at::Tensor& y, const at::Tensor& rows, const OptionalTensor& weights);

namespace cuda {
// Only in builds with CUDA. Whether all products of experts of these sizes are tiles of our own on this device.
bool moe_has_tiles(at::Device device, at::ScalarType dtype, int64_t dim, int64_t inner);
}  // namespace cuda

// For every device, silently from the host.
namespace composed {

PlanResult moe_plan(const at::Tensor& ids, int64_t experts);
at::Tensor moe_gather(const at::Tensor& x, const at::Tensor& picks, int64_t top_k);
// may_group: by at::_grouped_mm where it takes the sizes (can_group). On GPUs other than Hopper and Blackwell that
// reads the groups' ends on the host. Otherwise each 128 rows have a product with a copy of their expert's weight.
bool can_group(const at::Tensor& rows, const at::Tensor& weight);
at::Tensor moe_linear(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& tile_experts,
                      const at::Tensor& starts, bool transposed, bool may_group);
void moe_accumulate_(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& tile_experts,
                     const at::Tensor& starts, bool overwrite);
at::Tensor moe_combine(const at::Tensor& y, const at::Tensor& rows, const OptionalTensor& weights);
std::tuple<at::Tensor, at::Tensor> moe_combine_backward(const at::Tensor& grad_out, const at::Tensor& y,
                                                        const at::Tensor& picks, const at::Tensor& weights);
std::tuple<at::Tensor, at::Tensor> gelu_and_slope(const at::Tensor& pre);
at::Tensor moe_gate_backward(const OptionalTensor& grad_weights, const OptionalTensor& grad_scores,
                             const at::Tensor& ids, const at::Tensor& scores, bool sigmoid, bool normalize);

}  // namespace composed
}  // namespace hrm::ops
