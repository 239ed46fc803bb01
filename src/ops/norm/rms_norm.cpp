#include "hrm/ops/rms_norm.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "hrm/ops/backend.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/norm/rms_norm_impl.h"

namespace hrm::ops {

void check_rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps) {
  TORCH_CHECK(x.dim() >= 1 && x.sizes() == residual.sizes(),
              "hrm::rms_norm_residual: x and residual must have one shape (..., D), got ", x.sizes(), " and ",
              residual.sizes());
  TORCH_CHECK(x.scalar_type() == residual.scalar_type() && at::isFloatingType(x.scalar_type()),
              "hrm::rms_norm_residual: x and residual must have one floating-point dtype, got ", x.scalar_type(),
              " and ", residual.scalar_type(), " (shape ", x.sizes(), ")");
  TORCH_CHECK(x.device() == residual.device(), "hrm::rms_norm_residual: x is on ", x.device(), ", residual on ",
              residual.device(), " (shape ", x.sizes(), ")");
  TORCH_CHECK(x.size(-1) >= 1, "hrm::rms_norm_residual: the last dimension is empty, shape ", x.sizes());
  TORCH_CHECK(eps > 0, "hrm::rms_norm_residual: eps must be positive, got ", eps);
}

void check_rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd,
                             const std::optional<at::Tensor>& grad_y2) {
  TORCH_CHECK(grad_y.sizes() == y.sizes() && y.dim() >= 1 && rstd.sizes() == y.sizes().slice(0, y.dim() - 1),
              "hrm::rms_norm_backward: grad_y and y must have one shape (..., D) and rstd that shape without D, got ",
              grad_y.sizes(), ", ", y.sizes(), " and ", rstd.sizes());
  TORCH_CHECK(grad_y.scalar_type() == y.scalar_type() && grad_y.device() == y.device() && rstd.device() == y.device(),
              "hrm::rms_norm_backward: grad_y is ", grad_y.scalar_type(), " on ", grad_y.device(), ", y is ",
              y.scalar_type(), " on ", y.device(), " (shape ", y.sizes(), ")");
  TORCH_CHECK(rstd.scalar_type() == accumulate_type(y), "hrm::rms_norm_backward: rstd has dtype ", rstd.scalar_type(),
              " (shape ", rstd.sizes(), ")");
  TORCH_CHECK(!grad_y2 || (grad_y2->sizes() == y.sizes() && grad_y2->scalar_type() == y.scalar_type() &&
                           grad_y2->device() == y.device()),
              "hrm::rms_norm_backward: grad_y2 must be like y, got ", grad_y2->sizes(), " ", grad_y2->scalar_type(),
              " on ", grad_y2->device(), " for ", y.sizes(), " ", y.scalar_type(), " on ", y.device());
}

at::Tensor rms_norm_residual(const at::Tensor& x, const at::Tensor& residual, double eps) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, double)> op("hrm::rms_norm_residual");
  return op(x, residual, eps);
}

std::tuple<at::Tensor, at::Tensor> rms_norm_residual_forward(const at::Tensor& x, const at::Tensor& residual,
                                                             double eps) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, double)> op(
      "hrm::rms_norm_residual_forward");
  return op(x, residual, eps);
}

at::Tensor rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd,
                             const std::optional<at::Tensor>& grad_y2) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&)>
      op("hrm::rms_norm_backward");
  return op(grad_y, y, rstd, grad_y2);
}

namespace {

// float32 is what the CPU trains in; other dtypes take the reference.
bool use_cpu_loops(const at::Tensor& tensor) {
  return backend() == Backend::fused && tensor.scalar_type() == at::kFloat;
}

RmsNormSaved run_rms_norm_cpu(const at::Tensor& x, const at::Tensor& residual, double eps, bool save) {
  check_rms_norm_residual(x, residual, eps);
  return use_cpu_loops(x) ? cpu::rms_norm_residual(x.contiguous(), residual.contiguous(), eps, save)
                          : reference::rms_norm_residual(x, residual, eps);
}

at::Tensor rms_norm_cpu(const at::Tensor& x, const at::Tensor& residual, double eps) {
  return run_rms_norm_cpu(x, residual, eps, /*save=*/false).y;
}

std::tuple<at::Tensor, at::Tensor> rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& residual, double eps) {
  const RmsNormSaved saved = run_rms_norm_cpu(x, residual, eps, /*save=*/true);
  return {saved.y, saved.rstd};
}

at::Tensor rms_norm_backward_cpu(const at::Tensor& grad_y, const at::Tensor& y, const at::Tensor& rstd,
                                 const std::optional<at::Tensor>& grad_y2) {
  check_rms_norm_backward(grad_y, y, rstd, grad_y2);
  if (!use_cpu_loops(y)) return reference::rms_norm_backward(grad_y, y, rstd, grad_y2);
  const at::Tensor grad = grad_y2 ? grad_y + *grad_y2 : grad_y;
  return cpu::rms_norm_backward(grad.contiguous(), y.contiguous(), rstd.contiguous());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("rms_norm_residual(Tensor x, Tensor residual, float eps) -> Tensor");
  m.def("rms_norm_residual_forward(Tensor x, Tensor residual, float eps) -> (Tensor y, Tensor rstd)");
  m.def("rms_norm_backward(Tensor grad_y, Tensor y, Tensor rstd, Tensor? grad_y2=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("rms_norm_residual", &rms_norm_cpu);
  m.impl("rms_norm_residual_forward", &rms_norm_forward_cpu);
  m.impl("rms_norm_backward", &rms_norm_backward_cpu);
}

}  // namespace hrm::ops
