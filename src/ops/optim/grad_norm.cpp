#include "hrm/ops/grad_norm.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <limits>

#include "ops/common/op.h"
#include "ops/optim/grad_norm_impl.h"

namespace hrm::ops {

void check_grad_norm(const at::Tensor& flat, double max_norm, double norm_type,
                     const std::optional<at::Tensor>& loss_scale, const std::optional<at::Tensor>& skip,
                     const std::optional<at::Tensor>& report) {
  TORCH_CHECK(flat.dim() == 1 && flat.numel() >= 1 && flat.is_contiguous() && flat.scalar_type() == at::kFloat,
              "hrm::grad_norm: flat must be a contiguous float32 vector, got shape ", flat.sizes(), " with strides ",
              flat.strides(), ", ", flat.scalar_type());
  TORCH_CHECK(max_norm >= 0, "hrm::grad_norm: max_norm must not be negative, got ", max_norm);
  TORCH_CHECK(norm_type == 1 || norm_type == 2 || norm_type == std::numeric_limits<double>::infinity(),
              "hrm::grad_norm: norm_type must be 1, 2 or infinity, got ", norm_type);
  const auto check_scalar = [&](const char* name, const at::Tensor& tensor) {
    TORCH_CHECK(tensor.dim() == 0 && tensor.scalar_type() == at::kFloat && tensor.device() == flat.device(),
                "hrm::grad_norm: ", name, " must be a 0-dim float32 tensor on ", flat.device(), ", got shape ",
                tensor.sizes(), ", ", tensor.scalar_type(), " on ", tensor.device());
  };
  if (loss_scale) check_scalar("loss_scale", *loss_scale);
  if (skip) check_scalar("skip", *skip);
  if (report) {
    TORCH_CHECK(report->dim() == 1 && report->numel() == 3 && report->is_contiguous() &&
                    report->scalar_type() == at::kDouble && report->device() == flat.device(),
                "hrm::grad_norm: report must be a contiguous float64 vector of 3 on ", flat.device(), ", got shape ",
                report->sizes(), ", ", report->scalar_type(), " on ", report->device());
  }
}

void check_float64_norm(const at::Tensor& flat) {
  TORCH_CHECK(flat.dim() == 1 && flat.numel() >= 1 && flat.is_contiguous() && flat.scalar_type() == at::kFloat,
              "hrm::float64_norm: flat must be a contiguous float32 vector, got shape ", flat.sizes(), ", ",
              flat.scalar_type());
}

at::Tensor float64_norm(const at::Tensor& flat) {
  static const Op<at::Tensor(const at::Tensor&)> op("hrm::float64_norm");
  return op(flat);
}

GradNormResult grad_norm(const at::Tensor& flat, double max_norm, double norm_type,
                         const std::optional<at::Tensor>& loss_scale, const std::optional<at::Tensor>& skip,
                         const std::optional<at::Tensor>& report) {
  static const Op<GradNormResult(const at::Tensor&, double, double, const std::optional<at::Tensor>&,
                                 const std::optional<at::Tensor>&, const std::optional<at::Tensor>&)>
      op("hrm::grad_norm");
  return op(flat, max_norm, norm_type, loss_scale, skip, report);
}

namespace {

GradNormResult grad_norm_cpu(const at::Tensor& flat, double max_norm, double norm_type,
                             const std::optional<at::Tensor>& loss_scale, const std::optional<at::Tensor>& skip,
                             const std::optional<at::Tensor>& report) {
  check_grad_norm(flat, max_norm, norm_type, loss_scale, skip, report);
  return reference::grad_norm(flat, max_norm, norm_type, loss_scale, skip, report);
}

at::Tensor float64_norm_cpu(const at::Tensor& flat) {
  check_float64_norm(flat);
  return reference::float64_norm(flat);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("float64_norm(Tensor flat) -> Tensor");
  m.def(
      "grad_norm(Tensor flat, float max_norm, float norm_type, Tensor? loss_scale, Tensor(a!)? skip, Tensor(b!)? "
      "report) -> (Tensor norm, Tensor coef, Tensor nonfinite)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("grad_norm", &grad_norm_cpu);
  m.impl("float64_norm", &float64_norm_cpu);
}

}  // namespace hrm::ops
