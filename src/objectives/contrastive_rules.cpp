#include "hrm/objectives/contrastive_rules.h"

#include <ATen/ATen.h>

#include "hrm/ops/geometry.h"

namespace hrm::objectives {

ReadoutGradient readout_gradient(const at::Tensor& logits, const at::Tensor& o, const at::Tensor& target) {
  TORCH_CHECK(logits.dim() == 2 && o.dim() == 2 && target.dim() == 1 && logits.size(0) == o.size(0) &&
                  target.size(0) == o.size(0),
              "readout_gradient: needs logits (B, C), o (B, d) and target (B), got ", logits.sizes(), ", ", o.sizes(),
              " and ", target.sizes());
  const at::Tensor classes = at::arange(logits.size(1), target.options());
  const at::Tensor wanted = target.unsqueeze(1).eq(classes).to(o.scalar_type());
  const at::Tensor error = at::softmax(logits, 1) - wanted;
  return {error.t().matmul(o) / o.size(0), error.mean(0)};
}

at::Tensor spsa_part(const at::Tensor& plus, const at::Tensor& minus, const at::Tensor& direction, double sigma,
                     int64_t directions) {
  TORCH_CHECK(plus.dim() == 0 && minus.dim() == 0 && sigma > 0 && directions >= 1,
              "spsa_part: needs plus and minus (), a positive sigma and at least one direction, got ", plus.sizes(),
              ", ", minus.sizes(), ", ", sigma, " and ", directions);
  return (plus - minus) / (2 * sigma * static_cast<double>(directions)) * direction;
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
  g.clamp_(ops::kLeastMetric, ops::kMostMetric);
  theta.copy_(ops::wrap_angles(theta));
}

}  // namespace hrm::objectives
