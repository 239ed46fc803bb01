#pragma once
// What the files of fp8_rows_block share.
//
//   hrm::weighted_rms_norm_rows    y (or undefined), values, scales, rstd
//   hrm::swiglu_rows               act (or undefined), values, scales
//   hrm::swiglu_backward_rows      gradient (or undefined), values, scales
//   hrm::qkv_heads_backward_rows   gradient (or undefined), values, scales

#include <tuple>

#include "hrm/ops/fp8_rows_block.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {

using RowsThree = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using RowsFour = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Throw c10::Error with the op's name and the shapes, beyond what the ops of the compute dtype check.
void check_weighted_rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps);
void check_swiglu_rows(const at::Tensor& gate_up);
void check_swiglu_backward_rows(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& factors);
void check_qkv_heads_backward_rows(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                   const at::Tensor& qkv, const QkvHeadOptions& options, const at::Tensor& factors);

// Made of the other ops, on any device: the readable version.
namespace composed {

RowsFour weighted_rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps, bool wide);
RowsThree swiglu_rows(const at::Tensor& gate_up, bool wide);
RowsThree swiglu_backward_rows(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& factors,
                               bool wide);
RowsThree qkv_heads_backward_rows(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                  const at::Tensor& qkv, const QkvHeadOptions& options, const at::Tensor& factors,
                                  bool wide);

}  // namespace composed
}  // namespace hrm::ops
