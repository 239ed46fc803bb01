#include "hrm/ops/linear_swiglu.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>

#include "hrm/ops/backend.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/swiglu.h"
#include "ops/common/op.h"
#include "ops/common/sizes.h"
#include "ops/linear/linear_impl.h"
#include "ops/linear/linear_swiglu_impl.h"
#include "ops/linear/swiglu_impl.h"

namespace hrm::ops {

void check_linear_swiglu(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) && weight.size(0) % 2 == 0,
              "hrm::linear_swiglu: x (..., D) and weight (2F, D) do not fit, got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type() && at::isFloatingType(x.scalar_type()),
              "hrm::linear_swiglu: x and weight must have one floating-point dtype, got ", x.scalar_type(), " and ",
              weight.scalar_type(), " (shapes ", x.sizes(), " and ", weight.sizes(), ")");
  TORCH_CHECK(x.device() == weight.device(), "hrm::linear_swiglu: x is on ", x.device(), ", weight on ",
              weight.device(), " (shapes ", x.sizes(), " and ", weight.sizes(), ")");
}

void check_linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& weight_down,
                                  const at::Tensor& gate_up) {
  TORCH_CHECK(
      weight_down.dim() == 2 && grad_out.dim() >= 1 && grad_out.dim() == gate_up.dim() &&
          grad_out.size(-1) == weight_down.size(0) && gate_up.size(-1) == 2 * weight_down.size(1) &&
          grad_out.sizes().slice(0, grad_out.dim() - 1) == gate_up.sizes().slice(0, gate_up.dim() - 1),
      "hrm::linear_swiglu_backward: grad_out (..., D), weight_down (D, F) and gate_up (..., 2F) do not fit, got ",
      grad_out.sizes(), ", ", weight_down.sizes(), " and ", gate_up.sizes());
  TORCH_CHECK(grad_out.scalar_type() == weight_down.scalar_type() && grad_out.scalar_type() == gate_up.scalar_type() &&
                  grad_out.device() == gate_up.device() && grad_out.device() == weight_down.device(),
              "hrm::linear_swiglu_backward: grad_out, weight_down and gate_up must have one dtype and device, got ",
              grad_out.scalar_type(), ", ", weight_down.scalar_type(), " and ", gate_up.scalar_type(), " on ",
              grad_out.device(), ", ", weight_down.device(), " and ", gate_up.device());
}

at::Tensor linear_swiglu(const at::Tensor& x, const at::Tensor& weight) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&)> op("hrm::linear_swiglu");
  return op(x, weight);
}

std::tuple<at::Tensor, at::Tensor> linear_swiglu_forward(const at::Tensor& x, const at::Tensor& weight) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&)> op(
      "hrm::linear_swiglu_forward");
  return op(x, weight);
}

at::Tensor linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& weight_down,
                                  const at::Tensor& gate_up) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)> op(
      "hrm::linear_swiglu_backward");
  return op(grad_out, weight_down, gate_up);
}

namespace composed {

std::tuple<at::Tensor, at::Tensor> linear_swiglu(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor gate_up = linear_forward(x, weight, {});
  return {swiglu(gate_up), gate_up};
}

at::Tensor linear_swiglu_backward(const at::Tensor& grad_out, const at::Tensor& weight_down,
                                  const at::Tensor& gate_up) {
  return swiglu_backward(linear_grad_x(grad_out, weight_down), gate_up);
}

}  // namespace composed

namespace {

// Rows of gate and up that stay in the cache between the product and the activation: 1 MiB.
constexpr int64_t kPartElements = 1 << 18;
// Fewer rows make the product itself slower than the cache makes the rest faster.
constexpr int64_t kSmallestPart = 128;

at::Tensor linear_swiglu_cpu(const at::Tensor& x, const at::Tensor& weight) {
  check_linear_swiglu(x, weight);
  const int64_t inner = weight.size(1), width = weight.size(0) / 2;
  const int64_t part = width == 0 ? 0 : kPartElements / (2 * width);
  const int64_t rows = inner == 0 ? 0 : x.numel() / inner;
  if (x.scalar_type() != at::kFloat || backend() != Backend::fused || part < kSmallestPart || rows < 2 * part) {
    return std::get<0>(composed::linear_swiglu(x, weight));
  }
  const at::Tensor x_rows = x.reshape({rows, inner});
  const at::Tensor act = at::empty(with_last_size(x, width), x.options()), act_rows = act.view({rows, width});
  for (int64_t row = 0; row < rows; row += part) {
    const int64_t count = std::min(part, rows - row);
    cpu::swiglu_out(linear_forward(x_rows.narrow(0, row, count), weight, {}), act_rows.narrow(0, row, count));
  }
  return act;
}

std::tuple<at::Tensor, at::Tensor> linear_swiglu_forward_cpu(const at::Tensor& x, const at::Tensor& weight) {
  check_linear_swiglu(x, weight);
  return composed::linear_swiglu(x, weight);
}

at::Tensor linear_swiglu_backward_cpu(const at::Tensor& grad_out, const at::Tensor& weight_down,
                                      const at::Tensor& gate_up) {
  check_linear_swiglu_backward(grad_out, weight_down, gate_up);
  return composed::linear_swiglu_backward(grad_out, weight_down, gate_up);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("linear_swiglu(Tensor x, Tensor weight) -> Tensor");
  m.def("linear_swiglu_forward(Tensor x, Tensor weight) -> (Tensor act, Tensor gate_up)");
  m.def("linear_swiglu_backward(Tensor grad_out, Tensor weight_down, Tensor gate_up) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("linear_swiglu", &linear_swiglu_cpu);
  m.impl("linear_swiglu_forward", &linear_swiglu_forward_cpu);
  m.impl("linear_swiglu_backward", &linear_swiglu_backward_cpu);
}

}  // namespace hrm::ops
