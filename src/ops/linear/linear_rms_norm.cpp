#include "hrm/ops/linear_rms_norm.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "hrm/ops/rms_norm.h"
#include "ops/common/matmul_cpu.h"
#include "ops/common/op.h"
#include "ops/linear/linear_rms_norm_impl.h"

namespace hrm::ops {

void check_linear_rms_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.dim() == residual.dim() && x.size(-1) == weight.size(1) &&
                  residual.size(-1) == weight.size(0) &&
                  x.sizes().slice(0, x.dim() - 1) == residual.sizes().slice(0, x.dim() - 1),
              "hrm::linear_rms_norm: x (..., K), weight (D, K) and residual (..., D) do not fit, got ", x.sizes(), ", ",
              weight.sizes(), " and ", residual.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type() && x.scalar_type() == residual.scalar_type() &&
                  at::isFloatingType(x.scalar_type()),
              "hrm::linear_rms_norm: x, weight and residual must have one floating-point dtype, got ", x.scalar_type(),
              ", ", weight.scalar_type(), " and ", residual.scalar_type(), " (x has shape ", x.sizes(), ")");
  TORCH_CHECK(x.device() == weight.device() && x.device() == residual.device(), "hrm::linear_rms_norm: x is on ",
              x.device(), ", weight on ", weight.device(), ", residual on ", residual.device(), " (x has shape ",
              x.sizes(), ")");
  TORCH_CHECK(eps > 0, "hrm::linear_rms_norm: eps must be positive, got ", eps);
}

void check_linear_rms_norm_add(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps,
                               const at::Tensor& addend) {
  check_linear_rms_norm(x, weight, residual, eps);
  TORCH_CHECK(addend.sizes() == residual.sizes() && addend.scalar_type() == residual.scalar_type() &&
                  addend.device() == residual.device(),
              "hrm::linear_rms_norm_add: addend must be like residual, got ", addend.scalar_type(), " ", addend.sizes(),
              " on ", addend.device(), " and ", residual.scalar_type(), " ", residual.sizes(), " on ",
              residual.device());
}

at::Tensor linear_rms_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, double)> op(
      "hrm::linear_rms_norm");
  return op(x, weight, residual, eps);
}

std::tuple<at::Tensor, at::Tensor> linear_rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                           const at::Tensor& residual, double eps) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>
      op("hrm::linear_rms_norm_forward");
  return op(x, weight, residual, eps);
}

at::Tensor linear_rms_norm_add(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps,
                               const at::Tensor& addend) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, const at::Tensor&)> op(
      "hrm::linear_rms_norm_add");
  return op(x, weight, residual, eps, addend);
}

namespace {

at::Tensor linear_rms_norm_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps) {
  check_linear_rms_norm(x, weight, residual, eps);
  return rms_norm_residual(cpu::linear_product(x, weight), residual, eps);
}

std::tuple<at::Tensor, at::Tensor> linear_rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& weight,
                                                               const at::Tensor& residual, double eps) {
  check_linear_rms_norm(x, weight, residual, eps);
  return rms_norm_residual_forward(cpu::linear_product(x, weight), residual, eps);
}

at::Tensor linear_rms_norm_add_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual,
                                   double eps, const at::Tensor& addend) {
  check_linear_rms_norm_add(x, weight, residual, eps, addend);
  return linear_rms_norm_cpu(x, weight, residual, eps).add_(addend);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("linear_rms_norm(Tensor x, Tensor weight, Tensor residual, float eps) -> Tensor");
  m.def("linear_rms_norm_add(Tensor x, Tensor weight, Tensor residual, float eps, Tensor addend) -> Tensor");
  m.def("linear_rms_norm_forward(Tensor x, Tensor weight, Tensor residual, float eps) -> (Tensor y, Tensor rstd)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("linear_rms_norm", &linear_rms_norm_cpu);
  m.impl("linear_rms_norm_add", &linear_rms_norm_add_cpu);
  m.impl("linear_rms_norm_forward", &linear_rms_norm_forward_cpu);
}

}  // namespace hrm::ops
