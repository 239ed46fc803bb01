#include "hrm/objectives/contrastive_rules.h"

#include <ATen/ATen.h>

#include "hrm/ops/geometry.h"

namespace hrm::objectives {

ReadoutGradient readout_gradient(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& o,
                                 const at::Tensor& target) {
  TORCH_CHECK(weight.dim() == 2 && bias.dim() == 1 && bias.size(0) == weight.size(0) && o.dim() == 2 &&
                  o.size(1) == weight.size(1) && target.dim() == 1 && target.size(0) == o.size(0),
              "readout_gradient: needs weight (C, d), bias (C), o (B, d) and target (B), got ", weight.sizes(), ", ",
              bias.sizes(), ", ", o.sizes(), " and ", target.sizes());
  const at::Tensor classes = at::arange(weight.size(0), target.options());
  const at::Tensor wanted = target.unsqueeze(1).eq(classes).to(o.scalar_type());
  const at::Tensor error = at::softmax(o.matmul(weight.t()) + bias, 1) - wanted;
  return {error.t().matmul(o) / o.size(0), error.mean(0)};
}

at::Tensor spsa_gradient(const at::Tensor& plus, const at::Tensor& minus, const at::Tensor& directions, double sigma) {
  TORCH_CHECK(plus.dim() == 1 && plus.sizes() == minus.sizes() && directions.dim() >= 1 &&
                  directions.size(0) == plus.size(0) && plus.size(0) >= 1 && sigma > 0,
              "spsa_gradient: needs plus and minus (m), directions (m, ...) and a positive sigma, got ", plus.sizes(),
              ", ", minus.sizes(), ", ", directions.sizes(), " and ", sigma);
  const at::Tensor slope = (plus - minus) / (2 * sigma);
  const at::Tensor flat = directions.reshape({directions.size(0), -1});
  return (slope.unsqueeze(1) * flat).mean(0).view(directions.sizes().slice(1));
}

ScalarDirection scalar_direction(const at::Tensor& w, const at::Tensor& u, int64_t k) {
  TORCH_CHECK(w.dim() == 1 && w.sizes() == u.sizes() && k >= 0 && (k == 0 || w.size(0) >= 2),
              "scalar_direction: needs w and u (n) with n >= 2 for ", k, " angles, got ", w.sizes(), " and ",
              u.sizes());
  const int64_t n = w.size(0);
  const at::Tensor squares = w.square();
  ScalarDirection direction{.g = squares / (squares.sum() + 1e-8), .theta = at::empty({0}, u.options())};
  if (k == 0) return direction;
  const at::Tensor angle = at::arange(k, u.options().dtype(at::kLong));
  const at::Tensor layer = at::floor_divide(angle, n / 2), pair = at::remainder(angle, n / 2);
  const at::Tensor a = at::remainder(2 * pair + layer, n), b = at::remainder(a + 1, n);
  const at::Tensor u_a = u.index_select(0, a), u_b = u.index_select(0, b);
  const at::Tensor length = (u_a.square() + u_b.square()).sqrt();
  direction.theta = (at::atan2(u_b, u_a) * length * -0.01).masked_fill(length.lt(1e-6), 0);
  return direction;
}

void project_metric_(const at::Tensor& g, const at::Tensor& theta) {
  g.clamp_(0.01, 100);
  theta.copy_(ops::wrap_angles(theta));
}

}  // namespace hrm::objectives
