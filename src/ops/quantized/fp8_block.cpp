#include "hrm/ops/fp8_block.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/ops/fp8_linear.h"
#include "hrm/ops/swiglu.h"
#include "hrm/ops/weighted_rms_norm.h"
#include "ops/attention/qkv_heads_impl.h"
#include "ops/common/op.h"
#include "ops/linear/swiglu_impl.h"
#include "ops/norm/weighted_rms_norm_impl.h"
#include "ops/quantized/fp8_block_impl.h"
#include "ops/quantized/fp8_linear_impl.h"

namespace hrm::ops {
namespace {

void check_matrix(const char* op, const char* name, const at::Tensor& x) {
  TORCH_CHECK(x.dim() == 2 &&
                  (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf),
              op, ": ", name, " must be a matrix of float32, bfloat16 or float16, got ", x.scalar_type(), " of shape ",
              x.sizes());
}

// The rows of the gradient of qkv in the compute dtype.
at::Tensor qkv_gradient(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                        const at::Tensor& cos, const at::Tensor& sin) {
  return std::get<0>(qkv_heads_backward(grad_q, grad_k, grad_v, {}, {.cos = cos, .sin = sin}, false)).flatten(0, 1);
}

}  // namespace

void check_weighted_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& slot) {
  constexpr const char* kOp = "hrm::weighted_rms_norm_fp8";
  check_matrix(kOp, "x", x);
  check_weighted_rms_norm(x, weight, eps);
  check_wide_slot(kOp, "slot", slot, x);
}

void check_weighted_rms_norm_transposed_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                            const at::Tensor& slot) {
  constexpr const char* kOp = "hrm::weighted_rms_norm_transposed_fp8";
  check_matrix(kOp, "x", x);
  check_weighted_rms_norm(x, weight, /*eps=*/1);
  TORCH_CHECK(rstd.dim() == 1 && rstd.size(0) == x.size(0) && rstd.scalar_type() == at::kFloat &&
                  rstd.device() == x.device() && rstd.is_contiguous(),
              kOp, ": rstd must be ", x.size(0), " contiguous float32 on ", x.device(), ", got ", rstd.scalar_type(),
              " of ", rstd.sizes(), " on ", rstd.device());
  check_wide_slot(kOp, "slot", slot, x);
}

void check_fp8_linear_swiglu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                             const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  constexpr const char* kOp = "hrm::fp8_linear_swiglu";
  check_fp8_product(kOp, x, weight, x_slot, weight_slot);
  TORCH_CHECK(
      weight.size(0) % 2 == 0 && x.scalar_type() == at::kFloat8_e4m3fn && weight.scalar_type() == at::kFloat8_e4m3fn,
      kOp, ": x and weight must be e4m3, and weight have an even number of rows, got ", x.scalar_type(), " ", x.sizes(),
      " and ", weight.scalar_type(), " ", weight.sizes());
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, kOp,
              ": dtype must be float32, bfloat16 or float16, got ", dtype, " (x has shape ", x.sizes(), ")");
  check_wide_slot(kOp, "act_slot", act_slot, x);
}

void check_swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& slot) {
  constexpr const char* kOp = "hrm::swiglu_fp8";
  check_matrix(kOp, "gate_up", gate_up);
  check_swiglu(gate_up);
  check_wide_slot(kOp, "slot", slot, gate_up);
}

void check_swiglu_backward_fp8(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                               const at::Tensor& act_slot) {
  constexpr const char* kOp = "hrm::swiglu_backward_fp8";
  check_matrix(kOp, "gate_up", gate_up);
  check_swiglu_backward(grad_act, gate_up);
  check_wide_slot(kOp, "slot", slot, gate_up);
  check_wide_slot(kOp, "act_slot", act_slot, gate_up);
}

void check_swiglu_backward_fp8_scale_now(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                                         double margin) {
  constexpr const char* kOp = "hrm::swiglu_backward_fp8_scale_now";
  check_matrix(kOp, "gate_up", gate_up);
  check_swiglu_backward(grad_act, gate_up);
  check_wide_slot(kOp, "slot", slot, gate_up);
  TORCH_CHECK(margin >= 0, kOp, ": margin must not be negative, got ", margin, " (gate_up has shape ", gate_up.sizes(),
              ")");
}

void check_qkv_heads_backward_fp8(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                  const OptionalTensor& cos, const OptionalTensor& sin, const at::Tensor& slot) {
  check_qkv_heads_backward(grad_q, grad_k, grad_v, {},
                           {.cos = cos.value_or(at::Tensor()), .sin = sin.value_or(at::Tensor())});
  TORCH_CHECK(grad_q.scalar_type() != at::kDouble, "hrm::qkv_heads_backward_fp8: gradients of float64 (shape ",
              grad_q.sizes(), ") are not supported");
  check_wide_slot("hrm::qkv_heads_backward_fp8", "slot", slot, grad_q);
}

namespace composed {

Fp8Three weighted_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& slot,
                               bool transposed) {
  const auto [y, rstd] = weighted_rms_norm_forward(x, weight, eps);
  const auto [values, across] = quantize_fp8_pair(y, slot, /*e5m2=*/false, /*values=*/true, transposed);
  return {values, across, rstd};
}

at::Tensor weighted_rms_norm_transposed_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                            const at::Tensor& slot) {
  const at::Tensor y = (x.to(at::kFloat) * rstd.unsqueeze(1) * weight).to(x.scalar_type());
  // A copy of the slot, so that its amax stays.
  return std::get<1>(quantize_fp8_pair(y, slot.clone(), /*e5m2=*/false, /*values=*/false));
}

Fp8Two fp8_linear_swiglu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                         const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  const at::Tensor gate_up = fp8_product(x, weight, x_slot, weight_slot, dtype);
  return {ops::swiglu_fp8(gate_up, act_slot).values, gate_up};
}

at::Tensor swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& slot) {
  return std::get<0>(quantize_fp8_pair(swiglu(gate_up), slot, /*e5m2=*/false, /*values=*/true, /*transposed=*/false));
}

Fp8Three swiglu_backward_fp8(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot, bool e5m2,
                             const at::Tensor& act_slot, bool trains_gate_up, bool trains_down) {
  const auto [values, across] =
      quantize_fp8_pair(swiglu_backward(grad_act, gate_up), slot, e5m2, /*values=*/true, trains_gate_up);
  if (!trains_down) return {values, across, at::Tensor()};
  // A copy of the slot, so that its amax stays.
  return {values, across,
          std::get<1>(quantize_fp8_pair(swiglu(gate_up), act_slot.clone(), /*e5m2=*/false, /*values=*/false, true))};
}

at::Tensor swiglu_backward_fp8_scale_now(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                                         double margin) {
  return fp8_scale_now(swiglu_backward(grad_act, gate_up), slot, margin);
}

Fp8Two qkv_heads_backward_fp8(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                              const OptionalTensor& cos, const OptionalTensor& sin, const at::Tensor& slot, bool e5m2,
                              bool transposed) {
  const at::Tensor rows = qkv_gradient(grad_q, grad_k, grad_v, cos.value_or(at::Tensor()), sin.value_or(at::Tensor()));
  return quantize_fp8_pair(rows, slot, e5m2, /*values=*/true, transposed);
}

}  // namespace composed

Fp8Pair fp8_pair(const at::Tensor& x, const at::Tensor& slot, bool e5m2, bool transposed,
                 std::optional<double> margin) {
  const at::Tensor by = margin ? fp8_scale_now(x, slot, *margin) : slot;
  const auto [values, across] = quantize_fp8_pair(x, by, e5m2, /*values=*/true, transposed);
  return {values, across, by};
}

Fp8Normed weighted_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& slot,
                                bool transposed, std::optional<double> margin) {
  if (margin) {
    const auto [y, rstd] = weighted_rms_norm_forward(x, weight, eps);
    return {fp8_pair(y, slot, /*e5m2=*/false, transposed, margin), rstd};
  }
  static const Op<Fp8Three(const at::Tensor&, const at::Tensor&, double, const at::Tensor&, bool)> op(
      "hrm::weighted_rms_norm_fp8");
  const auto [values, across, rstd] = op(x, weight, eps, slot, transposed);
  return {{values, across, slot}, rstd};
}

at::Tensor weighted_rms_norm_transposed_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                            const at::Tensor& slot) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)> op(
      "hrm::weighted_rms_norm_transposed_fp8");
  return op(x, weight, rstd, slot);
}

Fp8Swiglu fp8_linear_swiglu(const Fp8Pair& x, const Fp8Weight& weight, const at::Tensor& act_slot, at::ScalarType dtype,
                            std::optional<double> margin) {
  if (margin) {
    const at::Tensor gate_up = fp8_product(x.values, weight.values, x.slot, weight.slot, dtype);
    return {swiglu_fp8(gate_up, act_slot, margin), gate_up};
  }
  static const Op<Fp8Two(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         at::ScalarType)>
      op("hrm::fp8_linear_swiglu");
  const auto [act, gate_up] = op(x.values, weight.values, x.slot, weight.slot, act_slot, dtype);
  return {{act, {}, act_slot}, gate_up};
}

Fp8Pair swiglu_fp8(const at::Tensor& gate_up, const at::Tensor& slot, std::optional<double> margin) {
  if (margin) return fp8_pair(swiglu(gate_up), slot, /*e5m2=*/false, /*transposed=*/false, margin);
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&)> op("hrm::swiglu_fp8");
  return {op(gate_up, slot), {}, slot};
}

Fp8SwigluGradient swiglu_backward_fp8(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                                      bool e5m2, const at::Tensor& act_slot, bool trains_gate_up, bool trains_down,
                                      std::optional<double> margin) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, double)> scale_now(
      "hrm::swiglu_backward_fp8_scale_now");
  const at::Tensor by = margin ? scale_now(grad_act, gate_up, slot, *margin) : slot;
  static const Op<Fp8Three(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool, const at::Tensor&, bool,
                           bool)>
      op("hrm::swiglu_backward_fp8");
  const auto [values, across, act] = op(grad_act, gate_up, by, e5m2, act_slot, trains_gate_up, trains_down);
  return {{values, across, by}, act};
}

Fp8Pair qkv_heads_backward_fp8(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                               const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& slot, bool e5m2,
                               bool transposed, std::optional<double> margin) {
  if (margin) {
    return fp8_pair(qkv_gradient(grad_q, grad_k, grad_v, cos, sin), slot, e5m2, transposed, margin);
  }
  static const Op<Fp8Two(const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&,
                         const OptionalTensor&, const at::Tensor&, bool, bool)>
      op("hrm::qkv_heads_backward_fp8");
  const auto [values, across] =
      op(grad_q, grad_k, grad_v, optional_tensor(cos), optional_tensor(sin), slot, e5m2, transposed);
  return {values, across, slot};
}

namespace {

Fp8Three norm_cpu(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& slot, bool transposed) {
  check_weighted_rms_norm_fp8(x, weight, eps, slot);
  return composed::weighted_rms_norm_fp8(x, weight, eps, slot, transposed);
}

at::Tensor norm_transposed_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                               const at::Tensor& slot) {
  check_weighted_rms_norm_transposed_fp8(x, weight, rstd, slot);
  return composed::weighted_rms_norm_transposed_fp8(x, weight, rstd, slot);
}

Fp8Two linear_swiglu_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                         const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  check_fp8_linear_swiglu(x, weight, x_slot, weight_slot, act_slot, dtype);
  return composed::fp8_linear_swiglu(x, weight, x_slot, weight_slot, act_slot, dtype);
}

at::Tensor swiglu_cpu(const at::Tensor& gate_up, const at::Tensor& slot) {
  check_swiglu_fp8(gate_up, slot);
  return composed::swiglu_fp8(gate_up, slot);
}

Fp8Three swiglu_backward_cpu(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot, bool e5m2,
                             const at::Tensor& act_slot, bool trains_gate_up, bool trains_down) {
  check_swiglu_backward_fp8(grad_act, gate_up, slot, act_slot);
  return composed::swiglu_backward_fp8(grad_act, gate_up, slot, e5m2, act_slot, trains_gate_up, trains_down);
}

at::Tensor swiglu_backward_scale_now_cpu(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& slot,
                                         double margin) {
  check_swiglu_backward_fp8_scale_now(grad_act, gate_up, slot, margin);
  return composed::swiglu_backward_fp8_scale_now(grad_act, gate_up, slot, margin);
}

Fp8Two qkv_backward_cpu(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                        const OptionalTensor& cos, const OptionalTensor& sin, const at::Tensor& slot, bool e5m2,
                        bool transposed) {
  check_qkv_heads_backward_fp8(grad_q, grad_k, grad_v, cos, sin, slot);
  return composed::qkv_heads_backward_fp8(grad_q, grad_k, grad_v, cos, sin, slot, e5m2, transposed);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "weighted_rms_norm_fp8(Tensor x, Tensor weight, float eps, Tensor(a!) slot, bool transposed) -> (Tensor, "
      "Tensor, Tensor)");
  m.def("weighted_rms_norm_transposed_fp8(Tensor x, Tensor weight, Tensor rstd, Tensor slot) -> Tensor");
  m.def(
      "fp8_linear_swiglu(Tensor x, Tensor weight, Tensor x_slot, Tensor weight_slot, Tensor(a!) act_slot, "
      "ScalarType dtype) -> (Tensor, Tensor)");
  m.def("swiglu_fp8(Tensor gate_up, Tensor(a!) slot) -> Tensor");
  m.def(
      "swiglu_backward_fp8(Tensor grad_act, Tensor gate_up, Tensor(a!) slot, bool e5m2, Tensor act_slot, "
      "bool trains_gate_up, bool trains_down) -> (Tensor, Tensor, Tensor)");
  m.def("swiglu_backward_fp8_scale_now(Tensor grad_act, Tensor gate_up, Tensor(a!) slot, float margin) -> Tensor");
  m.def(
      "qkv_heads_backward_fp8(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor? cos, Tensor? sin, Tensor(a!) slot, "
      "bool e5m2, bool transposed) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("weighted_rms_norm_fp8", &norm_cpu);
  m.impl("weighted_rms_norm_transposed_fp8", &norm_transposed_cpu);
  m.impl("fp8_linear_swiglu", &linear_swiglu_cpu);
  m.impl("swiglu_fp8", &swiglu_cpu);
  m.impl("swiglu_backward_fp8", &swiglu_backward_cpu);
  m.impl("swiglu_backward_fp8_scale_now", &swiglu_backward_scale_now_cpu);
  m.impl("qkv_heads_backward_fp8", &qkv_backward_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  for (const char* op : {"weighted_rms_norm_fp8", "weighted_rms_norm_transposed_fp8", "fp8_linear_swiglu", "swiglu_fp8",
                         "swiglu_backward_fp8", "swiglu_backward_fp8_scale_now", "qkv_heads_backward_fp8"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hrm::ops
