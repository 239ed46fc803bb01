#pragma once
// Rotors, metrics, and the action of a displacement.
//
// A metric g on R^n gives a displacement v the squared length q = v^T G v and the speed sqrt(max(q, 0) + eps). A rotor
// Q is a product of plane rotations. The LIoR action of a step is R * speed * dtau with the resilience R. The names
// follow the trainer "Trainer2" of https://github.com/JewJitsu11B/Liorhybrid.
//
// All tensors are float32 (float64 for tests) on one device, with any strides. All functions are deterministic, run on
// the current stream without reading from the device, and can be captured. They throw c10::Error that names the shapes
// when the inputs do not fit.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

// Q (n, n), the rotor with Q v = product of plane rotations applied to v.
//
// theta: (k) angles in radians. A layer has P = floor(n / 2) planes. Pair p of layer l rotates axis a = (2p + l) mod n
// towards b = (a + 1) mod n by theta[l * P + p]:
//   v_a' = cos v_a - sin v_b,  v_b' = sin v_a + cos v_b.
// Layer 0 acts first. Angles that the last layer lacks are 0. k = 0 gives the identity. Throws where k > 0 and n < 2.
//
// Differentiable once in theta. One launch of one block on a GPU for float32 and n <= 64.
at::Tensor rotor_matrix(const at::Tensor& theta, int64_t n);

// dE/dtheta (k) for E = f(Q v), from outer = sum of u w^T (n, n) with w = Q v and u = dE/dw. For general E(Q),
// outer = dE/dQ Q^T.
//
// Sweeps the layers from the last to the first: plane (a, b) gets outer_ba - outer_ab, then outer becomes
// Q_layer^T outer Q_layer. Not differentiable. One launch of one block on a GPU for float32 and n <= 64.
at::Tensor rotor_angle_gradient(const at::Tensor& theta, const at::Tensor& outer);

// theta reduced to [-period / 2, period / 2), elementwise, for any shape. The default period is 2 pi.
at::Tensor wrap_angles(const at::Tensor& theta);
at::Tensor wrap_angles(const at::Tensor& theta, double period);

// q (...) = v^T G v for v (..., n). metric: (n), the diagonal of G; (n, n), G itself; or (B, n, n), one G for each row
// of v (B, n). Differentiable.
at::Tensor quadratic_form(const at::Tensor& v, const at::Tensor& metric);

// q (...) = omega^2 v^T G v + sum_j weights_j (u_j . v)^2. vectors: (n, r) with columns u_j; weights: (r).
// Differentiable.
at::Tensor low_rank_quadratic_form(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& vectors,
                                   const at::Tensor& weights, double omega = 1);

// sqrt(max(q, 0) + eps), elementwise. Differentiable.
at::Tensor speed(const at::Tensor& q, double eps);

struct LiorStep {
  at::Tensor action;  // (B), R * speed * dtau
  at::Tensor speed;   // (B)
};

// Action and speed of the rows of v (B, n) in one pass. metric: as for quadratic_form. resilience: R, (B) or 0-dim.
// Not differentiable. One launch on a GPU for float32.
LiorStep lior_step(const at::Tensor& v, const at::Tensor& metric, const at::Tensor& resilience, double eps,
                   double dtau = 1);

// Resilience (B) = sqrt(|s| + eps), s = 1/n^2 sum over mu, nu, rho, sigma of g^{mu rho} g^{nu sigma} R_{mu nu rho
// sigma}. curvature: (B, n, n, n, n), in this order of indices; inverse_metric: (n, n). Differentiable.
at::Tensor resilience_from_curvature(const at::Tensor& curvature, const at::Tensor& inverse_metric, double eps);

// Bounds of a metric's eigenvalues, as Trainer2 has them.
inline constexpr double kLeastMetric = 0.01, kMostMetric = 100;

struct SyncedMetric {
  at::Tensor metric;   // G (n, n)
  at::Tensor inverse;  // G^-1 (n, n)
};

// G = Q^T diag(g) Q and its inverse. theta: (k), as for rotor_matrix; g: (n), positive. Differentiable.
SyncedMetric metric_sync(const at::Tensor& theta, const at::Tensor& g);

// The Cholesky factors L (p, 2, 2) of a metric's 2 x 2 blocks: [[softplus(a), 0], [b, softplus(c)]]. blocks: (p, 3)
// with rows a, b, c. Differentiable.
at::Tensor block_factors(const at::Tensor& blocks);

// G = Q^T B Q and its inverse. B has the 2 x 2 blocks L L^T of block_factors. blocks: (n / 2, 3). Differentiable.
SyncedMetric block_metric_sync(const at::Tensor& theta, const at::Tensor& blocks);

struct SpeedStatistics {
  at::Tensor energy;   // 0-dim
  at::Tensor g;        // (n), dE/dg
  at::Tensor theta;    // (k), dE/dtheta
  at::Tensor vectors;  // (n, r), or undefined
  at::Tensor weights;  // (r), or undefined
};

// E = mean over b of R_b speed(q_b), q = sum_i g_i (Q v)_i^2 + sum_j weights_j (u_j . v)^2, and its derivatives in
// closed form, without autograd. v: (B, n); resilience: (B) or 0-dim; vectors (n, r) and weights (r), or both
// undefined.
SpeedStatistics speed_statistics(const at::Tensor& v, const at::Tensor& resilience, const at::Tensor& g,
                                 const at::Tensor& theta, double eps, const at::Tensor& vectors = {},
                                 const at::Tensor& weights = {});

}  // namespace hrm::ops
