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

// The gradient of mean_b -log softmax(weight o_b + bias)[target_b]. weight: (C, d); bias: (C); o: (B, d); target: (B)
// int32 or int64, below C.
ReadoutGradient readout_gradient(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& o,
                                 const at::Tensor& target);

// Simultaneous perturbation (Spall 1992): mean over directions i of (J(p + sigma D_i) - J(p - sigma D_i)) / (2 sigma)
// D_i. plus, minus: (m), the two values of J; directions: (m, ...), D. Returns (...).
at::Tensor spsa_gradient(const at::Tensor& plus, const at::Tensor& minus, const at::Tensor& directions, double sigma);

// What Trainer2 adds to the metric and to the angles for each unit of eta dL.
struct ScalarDirection {
  at::Tensor g;      // (n), w_i^2 / (sum w^2 + 1e-8)
  at::Tensor theta;  // (k), -0.01 atan2(u_b, u_a) |u_ab| in the plane (a, b) of the angle; 0 where |u_ab| < 1e-6
};

// w: (n), the displacement that the metric measures. u: (n), the displacement whose angle each plane of rotor_matrix
// takes. This is no gradient of anything: dL is one number for all parameters.
ScalarDirection scalar_direction(const at::Tensor& w, const at::Tensor& u, int64_t k);

// Clamps g to [0.01, 100] and wraps theta to [-pi, pi), in place, as Trainer2 does after each update.
void project_metric_(const at::Tensor& g, const at::Tensor& theta);

}  // namespace hrm::objectives
