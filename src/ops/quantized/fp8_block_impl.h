#pragma once
// What the files of fp8_block share.
//
//   hrm::weighted_rms_norm_fp8    values, transposed (or undefined), rstd
//   hrm::weighted_rms_norm_transposed_fp8   transposed
//   hrm::fp8_linear_swiglu        values, gate_up
//   hrm::swiglu_fp8               values
//   hrm::swiglu_backward_fp8      values, transposed, transposed activations (each or undefined)
//   hrm::swiglu_backward_fp8_scale_now   the slot that current scaling gives the gradient
//   hrm::qkv_heads_backward_fp8   values, transposed (or undefined)

#include <tuple>

#include "hrm/ops/fp8_block.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

using Fp8Two = std::tuple<at::Tensor, at::Tensor>;
using Fp8Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Throw c10::Error with the op's name and the shapes, beyond what the ops of the compute dtype check.
void check_weighted_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& slot);
void check_weighted_rms_norm_transposed_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                            const at::Tensor& slot);
void check_fp8_linear_swiglu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                             const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype);
void check_swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& slot);
void check_swiglu_backward_fp8(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                               const at::Tensor& act_slot);
void check_swiglu_backward_fp8_scale_now(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                                         double margin);
void check_qkv_heads_backward_fp8(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                  const OptionalTensor& cos, const OptionalTensor& sin, const at::Tensor& slot);

// Made of the other ops, on any device: the readable version.
namespace composed {

Fp8Three weighted_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& slot,
                               bool transposed);
at::Tensor weighted_rms_norm_transposed_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                            const at::Tensor& slot);
Fp8Two fp8_linear_swiglu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                         const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype);
at::Tensor swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& slot);
Fp8Three swiglu_backward_fp8(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot, bool e5m2,
                             const at::Tensor& act_slot, bool trains_gate_up, bool trains_down);
at::Tensor swiglu_backward_fp8_scale_now(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                                         double margin);
Fp8Two qkv_heads_backward_fp8(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                              const OptionalTensor& cos, const OptionalTensor& sin, const at::Tensor& slot, bool e5m2,
                              bool transposed);

}  // namespace composed
}  // namespace hrm::ops
