#pragma once
// Update rules that need no autograd: a readout's gradient, SPSA, and the scalar rule of Trainer2.
//
// All tensors are float32 (float64 for tests) on one device. Nothing waits for the device, so all can be captured.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::objectives {

struct ReadoutGradient {
  at::Tensor weight;  // (C, d)
  at::Tensor bias;    // (C)
};

// The gradient of mean_b -log softmax(logits_b)[target_b] by weight and bias, logits_b = weight o_b + bias (B, C). o:
// (B, d); target: (B) int32 or int64, below C.
ReadoutGradient readout_gradient(const at::Tensor& logits, const at::Tensor& o, const at::Tensor& target);

// Simultaneous perturbation (Spall 1992): what one of `directions` random directions D adds to the gradient,
// (J(p + sigma D) - J(p - sigma D)) / (2 sigma directions) D. plus, minus: 0-dim, the two values of J; direction: D, of
// any shape, which is also that of the result.
at::Tensor spsa_part(const at::Tensor& plus, const at::Tensor& minus, const at::Tensor& direction, double sigma,
                     int64_t directions);

// What Trainer2 adds to the metric and to the angles for each unit of eta dL.
struct ScalarDirection {
  at::Tensor g;      // (n), w_i^2 / (sum w^2 + 1e-8)
  at::Tensor theta;  // (k), -0.01 atan2(u_b, u_a) |u_ab| in the plane (a, b) of the angle; 0 where |u_ab| < 1e-6
};

// w: (n), the displacement that the metric measures. u: (n), the displacement whose angle each plane of rotor_matrix
// takes. This is no gradient of anything: dL is one number for all parameters.
ScalarDirection scalar_direction(const at::Tensor& w, const at::Tensor& u, int64_t k);

// Clamps g to [ops::kLeastMetric, ops::kMostMetric] and wraps theta to [-pi, pi), in place, as Trainer2 does after each
// update.
void project_metric_(const at::Tensor& g, const at::Tensor& theta);

}  // namespace hrm::objectives
