#include "ops/geometry/lior_impl.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/common/op.h"

namespace hrm::ops {

void check_metric(const char* op, const at::Tensor& v, const at::Tensor& metric) {
  TORCH_CHECK(v.dim() >= 1 && (v.scalar_type() == at::kFloat || v.scalar_type() == at::kDouble), op,
              ": v must be (..., n) of dtype float32 or float64, got ", v.sizes(), " ", v.scalar_type());
  const int64_t n = v.size(-1), axes = metric.dim();
  const bool square = axes >= 2 && metric.size(-1) == n && metric.size(-2) == n;
  TORCH_CHECK((axes == 1 && metric.size(0) == n) || (axes == 2 && square) ||
                  (axes == 3 && square && v.dim() == 2 && metric.size(0) == v.size(0)),
              op, ": the metric must be (n), (n, n) or, for v (B, n), (B, n, n), got ", metric.sizes(), " for v ",
              v.sizes());
  TORCH_CHECK(metric.scalar_type() == v.scalar_type() && metric.device() == v.device(), op, ": v is ", v.scalar_type(),
              " on ", v.device(), ", the metric ", metric.scalar_type(), " on ", metric.device(), " (v ", v.sizes(),
              ")");
}

void check_lior_step(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& resilience, double eps) {
  check_metric("hrm::lior_step", v, metric);
  TORCH_CHECK(v.dim() == 2 && (resilience.dim() == 0 || resilience.sizes() == v.sizes().slice(0, 1)) &&
                  resilience.scalar_type() == v.scalar_type() && resilience.device() == v.device(),
              "hrm::lior_step: v must be (B, n) and the resilience (B) or 0-dim with dtype and device of v, got ",
              v.sizes(), " and ", resilience.sizes(), " ", resilience.scalar_type(), " on ", resilience.device());
  TORCH_CHECK(eps >= 0, "hrm::lior_step: eps must not be negative, got ", eps, " (v ", v.sizes(), ")");
}

LiorStep lior_step(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& resilience, double eps,
                   double dtau) {
  static const Op<LiorResult(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, double)> op(
      "hrm::lior_step");
  auto [action, spd] = op(v, metric, resilience, eps, dtau);
  return {std::move(action), std::move(spd)};
}

namespace {

LiorResult lior_step_cpu(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& resilience, double eps,
                         double dtau) {
  check_lior_step(v, metric, resilience, eps);
  return reference::lior_step(v, metric, resilience, eps, dtau);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "lior_step(Tensor v, Tensor metric, Tensor resilience, float eps, float dtau=1.0) -> (Tensor action, Tensor "
      "speed)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("lior_step", &lior_step_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("lior_step", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
