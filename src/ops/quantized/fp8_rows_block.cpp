#include "hrm/ops/fp8_rows_block.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/ops/fp8_rows.h"
#include "hrm/ops/swiglu.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/attention/qkv_heads_impl.h"
#include "ops/common/op.h"
#include "ops/linear/swiglu_impl.h"
#include "ops/norm/weighted_rms_norm_impl.h"
#include "ops/quantized/fp8_rows_block_impl.h"

namespace hrm::ops {
namespace {

void check_rows(const char* op, const char* name, const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2 && at::isFloatingType(x.scalar_type()) && x.element_size() > 1, op, ": ", name,
              " must be a matrix of float32, bfloat16 or float16, got ", x.scalar_type(), " of ", x.sizes());
}

void check_factors(const char* op, const at::Tensor& factors, int64_t columns, const at::Tensor& like) {
  TORCH_CHECK(factors.dim() == 1 && factors.size(0) == columns && factors.scalar_type() == at::kFloat &&
                  factors.is_contiguous() && factors.device() == like.device(),
              op, ": factors must be ", columns, " contiguous float32 on ", like.device(), ", got ",
              factors.scalar_type(), " of ", factors.sizes(), " on ", factors.device());
}

RowsThree beside(const at::Tensor& rows, bool wide, const OptionalTensor& factors = std::nullopt) {
  const auto [values, scales] = quantize_fp8_rows(rows, factors);
  return {wide ? rows : at::Tensor(), values, scales};
}

Fp8RowsBeside named(const RowsThree& rows) {
  return {.wide = std::get<0>(rows), .values = std::get<1>(rows), .scales = std::get<2>(rows)};
}

}  // namespace

void check_weighted_rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_rows("hrm::weighted_rms_norm_rows", "x", x);
  check_weighted_rms_norm(x, weight, eps);
}

void check_swiglu_rows(const at::Tensor& gate_up) {
  check_rows("hrm::swiglu_rows", "gate_up", gate_up);
  check_swiglu(gate_up);
}

void check_swiglu_backward_rows(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& factors) {
  constexpr const char* kOp = "hrm::swiglu_backward_rows";
  check_rows(kOp, "gate_up", gate_up);
  check_swiglu_backward(grad_act, gate_up);
  check_factors(kOp, factors, gate_up.size(1), gate_up);
}

void check_qkv_heads_backward_rows(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                   const at::Tensor& qkv, const QkvHeadOptions& options, const at::Tensor& factors) {
  check_qkv_heads_backward(grad_q, grad_k, grad_v, qkv, options);
  check_factors("hrm::qkv_heads_backward_rows", factors, (grad_q.size(2) + 2 * grad_k.size(2)) * grad_q.size(3),
                grad_q);
}

namespace composed {

RowsFour weighted_rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps, bool wide) {
  const auto [y, rstd] = weighted_rms_norm_forward(x, weight, eps);
  const auto [rows, values, scales] = beside(y, wide);
  return {rows, values, scales, rstd};
}

RowsThree swiglu_rows(const at::Tensor& gate_up, bool wide) {
  return beside(swiglu(gate_up), wide);
}

RowsThree swiglu_backward_rows(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& factors,
                               bool wide) {
  return beside(swiglu_backward(grad_act, gate_up), wide, factors);
}

RowsThree qkv_heads_backward_rows(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                  const at::Tensor& qkv, const QkvHeadOptions& options, const at::Tensor& factors,
                                  bool wide) {
  const at::Tensor grad = std::get<0>(qkv_heads_backward(grad_q, grad_k, grad_v, qkv, options, false));
  return beside(grad.flatten(0, 1), wide, factors);
}

}  // namespace composed

Fp8RowsBeside fp8_rows_beside(const at::Tensor& x, const at::Tensor& factors) {
  return named(beside(x, /*wide=*/true, factors));
}

NormedRows weighted_rms_norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps, bool wide) {
  static const Op<RowsFour(const at::Tensor&, const at::Tensor&, double, bool)> op("hrm::weighted_rms_norm_rows");
  const auto [y, values, scales, rstd] = op(x, weight, eps, wide);
  return {{.wide = y, .values = values, .scales = scales}, rstd};
}

Fp8RowsBeside swiglu_rows(const at::Tensor& gate_up, bool wide) {
  static const Op<RowsThree(const at::Tensor&, bool)> op("hrm::swiglu_rows");
  return named(op(gate_up, wide));
}

Fp8RowsBeside swiglu_backward_rows(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& factors,
                                   bool wide) {
  static const Op<RowsThree(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool)> op(
      "hrm::swiglu_backward_rows");
  return named(op(grad_act, gate_up, factors, wide));
}

Fp8RowsBeside qkv_heads_backward_rows(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                      const at::Tensor& qkv, const QkvHeadOptions& options, const at::Tensor& factors,
                                      bool wide) {
  static const Op<RowsThree(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                            const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                            double, const at::Tensor&, bool)>
      op("hrm::qkv_heads_backward_rows");
  return named(op(grad_q, grad_k, grad_v, optional_tensor(qkv), optional_tensor(options.cos),
                  optional_tensor(options.sin), optional_tensor(options.q_weight), optional_tensor(options.k_weight),
                  options.eps, factors, wide));
}

namespace {

RowsFour norm_rows_cpu(const at::Tensor& x, const at::Tensor& weight, double eps, bool wide) {
  check_weighted_rms_norm_rows(x, weight, eps);
  return composed::weighted_rms_norm_rows(x, weight, eps, wide);
}

RowsThree swiglu_rows_cpu(const at::Tensor& gate_up, bool wide) {
  check_swiglu_rows(gate_up);
  return composed::swiglu_rows(gate_up, wide);
}

RowsThree swiglu_backward_rows_cpu(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& factors,
                                   bool wide) {
  check_swiglu_backward_rows(grad_act, gate_up, factors);
  return composed::swiglu_backward_rows(grad_act, gate_up, factors, wide);
}

RowsThree qkv_backward_rows_cpu(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                const OptionalTensor& qkv, const OptionalTensor& cos, const OptionalTensor& sin,
                                const OptionalTensor& q_weight, const OptionalTensor& k_weight, double eps,
                                const at::Tensor& factors, bool wide) {
  const QkvHeadOptions options = qkv_options(cos, sin, q_weight, k_weight, eps);
  check_qkv_heads_backward_rows(grad_q, grad_k, grad_v, qkv.value_or(at::Tensor()), options, factors);
  return composed::qkv_heads_backward_rows(grad_q, grad_k, grad_v, qkv.value_or(at::Tensor()), options, factors, wide);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "weighted_rms_norm_rows(Tensor x, Tensor weight, float eps, bool wide) -> (Tensor y, Tensor values, "
      "Tensor scales, Tensor rstd)");
  m.def("swiglu_rows(Tensor gate_up, bool wide) -> (Tensor act, Tensor values, Tensor scales)");
  m.def(
      "swiglu_backward_rows(Tensor grad_act, Tensor gate_up, Tensor factors, bool wide) -> (Tensor grad, "
      "Tensor values, Tensor scales)");
  m.def(
      "qkv_heads_backward_rows(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor? qkv, Tensor? cos, Tensor? sin, "
      "Tensor? q_weight, Tensor? k_weight, float eps, Tensor factors, bool wide) -> (Tensor grad, Tensor values, "
      "Tensor scales)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("weighted_rms_norm_rows", &norm_rows_cpu);
  m.impl("swiglu_rows", &swiglu_rows_cpu);
  m.impl("swiglu_backward_rows", &swiglu_backward_rows_cpu);
  m.impl("qkv_heads_backward_rows", &qkv_backward_rows_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  for (const char* op : {"weighted_rms_norm_rows", "swiglu_rows", "swiglu_backward_rows", "qkv_heads_backward_rows"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hrm::ops
