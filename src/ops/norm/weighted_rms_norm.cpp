#include "hrm/ops/weighted_rms_norm.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/norm/weighted_rms_norm_impl.h"

namespace hrm::ops {
void check_weighted_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0) && weight.size(0) > 0,
              "hrm::weighted_rms_norm: x (..., D) and weight (D) do not fit, got ", x.sizes(), " and ", weight.sizes());
  TORCH_CHECK(at::isFloatingType(x.scalar_type()) && weight.scalar_type() == accumulate_type(x),
              "hrm::weighted_rms_norm: weight must be ", accumulate_type(x), " for floating-point x, got ",
              weight.scalar_type(), " and ", x.scalar_type(), " (shape ", x.sizes(), ")");
  TORCH_CHECK(x.device() == weight.device(), "hrm::weighted_rms_norm: x is on ", x.device(), ", weight on ",
              weight.device(), " (shape ", x.sizes(), ")");
  TORCH_CHECK(eps > 0, "hrm::weighted_rms_norm: eps must be positive, got ", eps);
}

void check_weighted_rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& x, const at::Tensor& rstd,
                                      const at::Tensor& weight, const std::optional<at::Tensor>& grad_x) {
  check_weighted_rms_norm(x, weight, /*eps=*/1);
  const auto is_like_x = [&](const at::Tensor& t) {
    return t.sizes() == x.sizes() && t.scalar_type() == x.scalar_type() && t.device() == x.device();
  };
  TORCH_CHECK(is_like_x(grad_y) && (!grad_x || is_like_x(*grad_x)),
              "hrm::weighted_rms_norm_backward: grad_y and grad_x must be like x, ", x.sizes(), " ", x.scalar_type(),
              " on ", x.device(), ", got ", grad_y.sizes(), " ", grad_y.scalar_type(), " on ", grad_y.device(),
              grad_x ? " and " : "", grad_x ? grad_x->sizes() : at::IntArrayRef{});
  TORCH_CHECK(rstd.sizes() == x.sizes().slice(0, x.dim() - 1) && rstd.scalar_type() == accumulate_type(x) &&
                  rstd.device() == x.device(),
              "hrm::weighted_rms_norm_backward: rstd must be ", accumulate_type(x), " of x's shape without D, got ",
              rstd.sizes(), " ", rstd.scalar_type(), " for ", x.sizes());
}

at::Tensor weighted_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, double)> op("hrm::weighted_rms_norm");
  return op(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                             double eps) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, double)> op(
      "hrm::weighted_rms_norm_forward");
  return op(x, weight, eps);
}

std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_backward(const at::Tensor& grad_y, const at::Tensor& x,
                                                              const at::Tensor& rstd, const at::Tensor& weight,
                                                              const std::optional<at::Tensor>& grad_x,
                                                              bool needs_weight) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                     const at::Tensor&, const std::optional<at::Tensor>&, bool)>
      op("hrm::weighted_rms_norm_backward");
  return op(grad_y, x, rstd, weight, grad_x, needs_weight);
}

namespace {

std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_forward_cpu(const at::Tensor& x, const at::Tensor& weight,
                                                                 double eps) {
  check_weighted_rms_norm(x, weight, eps);
  return reference::weighted_rms_norm(x, weight, eps);
}

at::Tensor weighted_rms_norm_cpu(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return std::get<0>(weighted_rms_norm_forward_cpu(x, weight, eps));
}

std::tuple<at::Tensor, at::Tensor> weighted_rms_norm_backward_cpu(const at::Tensor& grad_y, const at::Tensor& x,
                                                                  const at::Tensor& rstd, const at::Tensor& weight,
                                                                  const std::optional<at::Tensor>& grad_x,
                                                                  bool needs_weight) {
  check_weighted_rms_norm_backward(grad_y, x, rstd, weight, grad_x);
  return reference::weighted_rms_norm_backward(grad_y, x, rstd, weight, grad_x, needs_weight);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("weighted_rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("weighted_rms_norm_forward(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor rstd)");
  m.def(
      "weighted_rms_norm_backward(Tensor grad_y, Tensor x, Tensor rstd, Tensor weight, Tensor? grad_x=None, "
      "bool needs_weight=True) -> (Tensor grad_x, Tensor grad_weight)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("weighted_rms_norm", &weighted_rms_norm_cpu);
  m.impl("weighted_rms_norm_forward", &weighted_rms_norm_forward_cpu);
  m.impl("weighted_rms_norm_backward", &weighted_rms_norm_backward_cpu);
}

}  // namespace hrm::ops
