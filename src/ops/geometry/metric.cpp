// Small compositions: a handful of launches on tensors of at most n^4 elements.
#include <ATen/ATen.h>

#include <cmath>

#include "ops/geometry/lior_impl.h"

namespace hrm::ops {

at::Tensor wrap_angles(const at::Tensor& theta) {
  return wrap_angles(theta, 2 * M_PI);
}

at::Tensor wrap_angles(const at::Tensor& theta, double period) {
  TORCH_CHECK(period > 0, "hrm::wrap_angles: the period must be positive, got ", period, " for theta ", theta.sizes());
  const at::Tensor rest = at::remainder(theta + period / 2, period);
  // The remainder of a tiny negative number rounds to the period itself.
  return rest.masked_fill(rest.ge(period), 0) - period / 2;
}

at::Tensor quadratic_form(const at::Tensor& v, const at::Tensor& metric) {
  check_metric("hrm::quadratic_form", v, metric);
  if (metric.dim() == 1) return (v.square() * metric).sum(-1);
  return (v.unsqueeze(-2).matmul(metric).squeeze(-2) * v).sum(-1);
}

at::Tensor low_rank_quadratic_form(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& vectors,
                                   const at::Tensor& weights, double omega) {
  TORCH_CHECK(vectors.dim() == 2 && v.dim() >= 1 && vectors.size(0) == v.size(-1) && weights.dim() == 1 &&
                  weights.size(0) == vectors.size(1),
              "hrm::low_rank_quadratic_form: vectors must be (n, r) and weights (r), got ", vectors.sizes(), " and ",
              weights.sizes(), " for v ", v.sizes());
  return omega * omega * quadratic_form(v, metric) + (v.matmul(vectors).square() * weights).sum(-1);
}

at::Tensor speed(const at::Tensor& q, double eps) {
  return (q.clamp_min(0) + eps).sqrt();
}

at::Tensor resilience_from_curvature(const at::Tensor& curvature, const at::Tensor& inverse_metric, double eps) {
  const int64_t n = inverse_metric.dim() == 2 ? inverse_metric.size(0) : 0;
  TORCH_CHECK(
      n > 0 && inverse_metric.size(1) == n && curvature.dim() == 5 &&
          curvature.sizes().slice(1) == at::IntArrayRef({n, n, n, n}),
      "hrm::resilience_from_curvature: the curvature must be (B, n, n, n, n) and the inverse metric (n, n), got ",
      curvature.sizes(), " and ", inverse_metric.sizes());
  // Rows (mu, rho) and columns (nu, sigma): a bilinear form of the inverse metric with itself.
  const at::Tensor pairs = curvature.permute({0, 1, 3, 2, 4}).reshape({curvature.size(0), n * n, n * n});
  const at::Tensor flat = inverse_metric.reshape({n * n});
  const at::Tensor s = pairs.matmul(flat).matmul(flat) / (n * n);
  return (s.abs() + eps).sqrt();
}

SyncedMetric metric_sync(const at::Tensor& theta, const at::Tensor& g) {
  TORCH_CHECK(g.dim() == 1 && g.size(0) >= 1, "hrm::metric_sync: g must be (n), got ", g.sizes());
  const at::Tensor q = rotor_matrix(theta, g.size(0));
  return {q.t().matmul(g.unsqueeze(1) * q), q.t().matmul(q / g.unsqueeze(1))};
}

at::Tensor block_factors(const at::Tensor& blocks) {
  TORCH_CHECK(blocks.dim() == 2 && blocks.size(0) >= 1 && blocks.size(1) == 3,
              "hrm::block_factors: blocks must be (p, 3), got ", blocks.sizes());
  const at::Tensor a = at::softplus(blocks.select(1, 0)), b = blocks.select(1, 1),
                   c = at::softplus(blocks.select(1, 2));
  return at::stack({a, at::zeros_like(b), b, c}, 1).view({blocks.size(0), 2, 2});
}

SyncedMetric block_metric_sync(const at::Tensor& theta, const at::Tensor& blocks) {
  const at::Tensor factors = block_factors(blocks);
  const int64_t pairs = blocks.size(0), n = 2 * pairs;
  const at::Tensor q = rotor_matrix(theta, n);
  const at::Tensor a = factors.select(1, 0).select(1, 0), b = factors.select(1, 1).select(1, 0),
                   c = factors.select(1, 1).select(1, 1);
  const at::Tensor squares = b.square() + c.square(), cross = a * b;
  const at::Tensor block = at::stack({a.square(), cross, cross, squares}, 1).view({pairs, 2, 2});
  // The determinant of L L^T is (a c)^2.
  const at::Tensor inverse =
      at::stack({squares, -cross, -cross, a.square()}, 1).view({pairs, 2, 2}) / (a * c).square().view({pairs, 1, 1});
  const at::Tensor planes = q.view({pairs, 2, n});
  return {q.t().matmul(block.matmul(planes).view({n, n})), q.t().matmul(inverse.matmul(planes).view({n, n}))};
}

SpeedStatistics speed_statistics(const at::Tensor& v, const at::Tensor& resilience, const at::Tensor& g,
                                 const at::Tensor& theta, double eps, const at::Tensor& vectors,
                                 const at::Tensor& weights) {
  TORCH_CHECK(v.dim() == 2 && g.dim() == 1 && g.size(0) == v.size(1) &&
                  (resilience.dim() == 0 || resilience.sizes() == v.sizes().slice(0, 1)) &&
                  vectors.defined() == weights.defined(),
              "hrm::speed_statistics: v must be (B, n), g (n), the resilience (B) or 0-dim, and vectors and weights "
              "both given or neither, got ",
              v.sizes(), ", ", g.sizes(), " and ", resilience.sizes());
  const at::Tensor w = v.matmul(rotor_matrix(theta, g.size(0)).t());
  const double rows = static_cast<double>(v.size(0));
  at::Tensor q = quadratic_form(w, g), along;
  if (vectors.defined()) {
    along = v.matmul(vectors);
    q = q + (along.square() * weights).sum(-1);
  }
  const at::Tensor spd = speed(q, eps), factor = resilience / spd / rows;  // (B)
  const at::Tensor scaled = factor.unsqueeze(1) * w;
  SpeedStatistics out;
  out.energy = (resilience * spd).mean();
  out.g = (scaled * w).sum(0) / 2;
  out.theta = rotor_angle_gradient(theta, (scaled * g).t().matmul(w));
  if (vectors.defined()) {
    const at::Tensor pull = factor.unsqueeze(1) * along;  // (B, r)
    out.vectors = v.t().matmul(pull) * weights;
    out.weights = (pull * along).sum(0) / 2;
  }
  return out;
}

}  // namespace hrm::ops
