#include "hrm/ops/mlp_mix.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/mixing/mlp_mix_impl.h"

namespace hrm::ops {

void check_mlp_mix(const at::Tensor& h, const at::Tensor& weight_gate_up, const at::Tensor& weight_down, double eps) {
  TORCH_CHECK(h.dim() == 3 && weight_gate_up.dim() == 2 && weight_down.dim() == 2 &&
                  weight_gate_up.size(1) == h.size(1) && weight_down.size(0) == h.size(1) &&
                  weight_gate_up.size(0) == 2 * weight_down.size(1),
              "hrm::mlp_mix: h (B, L, D), weight_gate_up (2F, L) and weight_down (L, F) do not fit, got ", h.sizes(),
              ", ", weight_gate_up.sizes(), " and ", weight_down.sizes());
  TORCH_CHECK(h.size(1) >= 1 && weight_down.size(1) >= 1, "hrm::mlp_mix: L or F is zero, h ", h.sizes(),
              ", weight_down ", weight_down.sizes());
  TORCH_CHECK(at::isFloatingType(h.scalar_type()) && weight_gate_up.scalar_type() == h.scalar_type() &&
                  weight_down.scalar_type() == h.scalar_type(),
              "hrm::mlp_mix: h and the weights must have one floating-point dtype, got ", h.scalar_type(), ", ",
              weight_gate_up.scalar_type(), " and ", weight_down.scalar_type(), " (h ", h.sizes(), ")");
  TORCH_CHECK(weight_gate_up.device() == h.device() && weight_down.device() == h.device(), "hrm::mlp_mix: h is on ",
              h.device(), ", the weights on ", weight_gate_up.device(), " and ", weight_down.device(), " (h ",
              h.sizes(), ")");
  TORCH_CHECK(eps > 0, "hrm::mlp_mix: eps must be positive, got ", eps);
}

void check_mlp_mix_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& y, const at::Tensor& rstd,
                            const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                            const at::Tensor& grad_weight_gate_up, const at::Tensor& grad_weight_down) {
  check_mlp_mix(h, weight_gate_up, weight_down, 1);
  TORCH_CHECK(grad_y.sizes() == h.sizes() && y.sizes() == h.sizes() && rstd.dim() == 2 && rstd.size(0) == h.size(0) &&
                  rstd.size(1) == h.size(2),
              "hrm::mlp_mix_backward: grad_y and y must have h's shape (B, L, D), rstd (B, D), got ", grad_y.sizes(),
              ", ", y.sizes(), " and ", rstd.sizes(), " with h ", h.sizes());
  TORCH_CHECK(grad_y.scalar_type() == h.scalar_type() && y.scalar_type() == h.scalar_type() &&
                  grad_y.device() == h.device() && y.device() == h.device() && rstd.device() == h.device(),
              "hrm::mlp_mix_backward: grad_y is ", grad_y.scalar_type(), " on ", grad_y.device(), ", y ",
              y.scalar_type(), " on ", y.device(), ", h ", h.scalar_type(), " on ", h.device(), " (shape ", h.sizes(),
              ")");
  const at::ScalarType wide = accumulate_type(h);
  TORCH_CHECK(rstd.scalar_type() == wide, "hrm::mlp_mix_backward: rstd must be ", wide, ", got ", rstd.scalar_type(),
              " (shape ", rstd.sizes(), ")");
  // A buffer that rounds each sum is what float32 gradients exist to avoid.
  const auto check_gradient = [&](const at::Tensor& grad, const at::Tensor& weight, const char* name) {
    TORCH_CHECK(grad.sizes() == weight.sizes() && grad.scalar_type() == wide && grad.is_contiguous() &&
                    grad.device() == weight.device(),
                "hrm::mlp_mix_backward: ", name, " must be contiguous ", wide, " of shape ", weight.sizes(), ", got ",
                grad.scalar_type(), " of ", grad.sizes());
  };
  check_gradient(grad_weight_gate_up, weight_gate_up, "grad_weight_gate_up");
  check_gradient(grad_weight_down, weight_down, "grad_weight_down");
}

at::Tensor mlp_mix(const at::Tensor& h, const at::Tensor& weight_gate_up, const at::Tensor& weight_down, double eps) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, double)> op("hrm::mlp_mix");
  return op(h, weight_gate_up, weight_down, eps);
}

std::tuple<at::Tensor, at::Tensor> mlp_mix_forward(const at::Tensor& h, const at::Tensor& weight_gate_up,
                                                   const at::Tensor& weight_down, double eps) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>
      op("hrm::mlp_mix_forward");
  return op(h, weight_gate_up, weight_down, eps);
}

at::Tensor mlp_mix_backward(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& y, const at::Tensor& rstd,
                            const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                            const at::Tensor& grad_weight_gate_up, const at::Tensor& grad_weight_down) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&)>
      op("hrm::mlp_mix_backward");
  return op(grad_y, h, y, rstd, weight_gate_up, weight_down, grad_weight_gate_up, grad_weight_down);
}

namespace {

std::tuple<at::Tensor, at::Tensor> mlp_mix_forward_cpu(const at::Tensor& h, const at::Tensor& weight_gate_up,
                                                       const at::Tensor& weight_down, double eps) {
  check_mlp_mix(h, weight_gate_up, weight_down, eps);
  return reference::mlp_mix(h, weight_gate_up, weight_down, eps);
}

at::Tensor mlp_mix_cpu(const at::Tensor& h, const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                       double eps) {
  return std::get<0>(mlp_mix_forward_cpu(h, weight_gate_up, weight_down, eps));
}

at::Tensor mlp_mix_backward_cpu(const at::Tensor& grad_y, const at::Tensor& h, const at::Tensor& y,
                                const at::Tensor& rstd, const at::Tensor& weight_gate_up, const at::Tensor& weight_down,
                                const at::Tensor& grad_weight_gate_up, const at::Tensor& grad_weight_down) {
  check_mlp_mix_backward(grad_y, h, y, rstd, weight_gate_up, weight_down, grad_weight_gate_up, grad_weight_down);
  return reference::mlp_mix_backward(grad_y, h, y, rstd, weight_gate_up, weight_down, grad_weight_gate_up,
                                     grad_weight_down);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("mlp_mix(Tensor h, Tensor weight_gate_up, Tensor weight_down, float eps) -> Tensor");
  m.def("mlp_mix_forward(Tensor h, Tensor weight_gate_up, Tensor weight_down, float eps) -> (Tensor y, Tensor rstd)");
  m.def(
      "mlp_mix_backward(Tensor grad_y, Tensor h, Tensor y, Tensor rstd, Tensor weight_gate_up, Tensor weight_down, "
      "Tensor(a!) grad_weight_gate_up, Tensor(b!) grad_weight_down) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("mlp_mix", &mlp_mix_cpu);
  m.impl("mlp_mix_forward", &mlp_mix_forward_cpu);
  m.impl("mlp_mix_backward", &mlp_mix_backward_cpu);
}

}  // namespace hrm::ops
