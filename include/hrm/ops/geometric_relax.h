#pragma once
// Relaxation of a geometric memory: all steps of one phase of the contrastive trainer.
//
// Energy of a row with chart state x and retrieved output o, in scaled coordinates X = Qs x, Kt_k = Qs K_k:
//
//   E(X, o) = kappa/2 |x - A u - a|^2 + gamma/2 |o|^2 - 1/beta_r log sum_k exp(beta_r (gamma V_k.o - R_k c_k(X)))
//   c_k(X)  = sqrt(max(|Kt_k - X|^2, 0) + cost_eps)
//
// and cost C = -log softmax(W o + b)[target]. The log-sum is the soft minimum of the action from the row to the slots;
// its weights w_k are those of the modern Hopfield network (Ramsauer et al. 2021, arXiv 2008.02217). A phase descends
// E + sign beta C (equilibrium propagation: Scellier and Bengio 2017, arXiv 1602.05179).

#include <ATen/core/Tensor.h>

#include <optional>

namespace hrm::ops {

// R rows, S slots, m scaled coordinates, d output width, C classes, H hidden units. Floating-point tensors are float32
// (float64 on the CPU, for tests) unless noted, and contiguous.

// What all rows of a window share.
struct GeometricSlots {
  at::Tensor keys;        // (S, m): Kt
  at::Tensor key_norms;   // (S): |Kt_k|^2
  at::Tensor resilience;  // (S): R_k
  at::Tensor values;      // (S, d): V; float32, or float16 to halve the memory that a step reads
  at::Tensor filled;      // 0-dim int64: slots from here on are not read; undefined = S
};

struct GeometricConstants {
  double kappa = 1;
  double gamma = 1;
  double retrieval_beta = 1;
  double cost_eps = 0.1;
};

// The cost of a nudged phase. Undefined tensors: a free phase.
struct GeometricNudge {
  at::Tensor readout;  // (C, d): W
  at::Tensor bias;     // (C): b
  at::Tensor targets;  // (R) int64
  at::Tensor signs;    // (R): times beta the nudge of the row, of either sign; 0 leaves a row free
};

// Hidden units h in [0, 1] between the input and the chart: kappa/2 |x - A h - a|^2 + 1/2 |h - hidden_drive|^2 in place
// of the first term. Undefined: none.
struct GeometricHidden {
  at::Tensor state;  // (R, H)
  at::Tensor drive;  // (R, H): B u + c
  at::Tensor up;     // (m, H): Qs A
  at::Tensor down;   // (H, m): A^T times the inverse of Qs
};

// The chart state is kept as its offset from the drive. Without hidden units that is small, so float32 rounds it far
// less than X, and the gradient is made of the difference of two such states.
struct GeometricState {
  at::Tensor offset;    // (R, m): X - drive
  at::Tensor o;         // (R, d)
  at::Tensor h;         // (R, H); undefined without hidden units
  at::Tensor log_sum;   // (R): log sum_k exp(beta_r (gamma V_k.o - R_k c_k)) at this state
  at::Tensor speed;     // (R): sum over the steps of sqrt(|X_{t+1} - X_t|^2 + cost_eps)
  at::Tensor residual;  // (R): largest change of a component in the last step
};

// `steps` steps from (offset, o), with X = drive + offset:
//
//   offset += dt_x ((sum_k e_k Kt_k - (sum_k e_k) X) metric - kappa offset),   e_k = w_k R_k / c_k
//   o += dt_o (gamma (sum_k w_k V_k - o) - sign beta (softmax(W o + b) - onehot(target)) W)
//   h  = clamp(h + dt_h (hidden_drive - h + kappa (offset - up h) down^T), 0, 1)
//
// with damped momentum where momentum > 0: v = momentum v + dt force, state += v, from v = 0.
// With hidden units the drive in the chart is drive + up h, so that the first line has kappa (offset - up h).
//
// drive (R, m): Qs (A u + a), or Qs a with hidden units. metric (m, m): Qs Qs^T. rates (4): dt_x, dt_o, beta, dt_h, on
// the device. steps 0 evaluates log_sum alone.
//
// Runs on the current stream; deterministic; can be captured. On a GPU all steps are one kernel where values are
// float16, m <= 32, d <= 64, C <= 1024, without hidden units and momentum; else plain ATen. No
// derivative. Throws c10::Error that names what does not fit.
GeometricState geometric_relax(const at::Tensor& drive, const at::Tensor& offset, const at::Tensor& o,
                               const GeometricSlots& slots, const at::Tensor& metric, const at::Tensor& rates,
                               const GeometricNudge& nudge, const GeometricHidden& hidden, int64_t steps,
                               const GeometricConstants& constants, double momentum);

namespace reference {

// The same in plain ATen on any device. Differentiable in every tensor, through all steps.
GeometricState geometric_relax(const at::Tensor& drive, const at::Tensor& offset, const at::Tensor& o,
                               const GeometricSlots& slots, const at::Tensor& metric, const at::Tensor& rates,
                               const GeometricNudge& nudge, const GeometricHidden& hidden, int64_t steps,
                               const GeometricConstants& constants, double momentum);

}  // namespace reference
}  // namespace hrm::ops
