#pragma once
// One elementwise optimizer update, with the EMA, the compute copies and the update ratio, in one pass over memory.

#include <ATen/core/Tensor.h>

#include "hrm/ops/adam_rule.h"

namespace hrm::ops {

// Entries of the lists with the same index belong together and have the same shape. All tensors are contiguous, on one
// device, and float32 unless noted.
struct AdamArgs {
  AdamRule rule = AdamRule::atan2;
  at::TensorList params;
  at::TensorList grads;
  at::TensorList exp_avgs = {};     // m; empty for a rule without it (hrm/ops/adam_rule.h)
  at::TensorList exp_avg_sqs = {};  // v; empty for a rule without it
  at::TensorList averages = {};     // EMAs of the params; empty: none
  // For each param, the bfloat16 or float16 compute copy, or the param itself (nothing to copy). Empty: no copies.
  at::TensorList copies = {};
  at::ArrayRef<double> weight_decay;    // one per param
  at::ArrayRef<double> lr_factor = {};  // multiplies each param's learning rate; empty: 1
  // 0-dim float32:
  at::Tensor step;        // t, the number of updates so far; every rule counts, only the Adam rules read it
  at::Tensor lr;          // learning rate
  at::Tensor grad_scale;  // factor for every gradient, e.g. the clip coefficient; ignored by muon_apply
  at::Tensor skip;        // non-zero or NaN: change nothing, not even step
  // Output: |new params - old params| / |old params| over all of them, 0 after a skip. 0-dim float64, or undefined. If
  // it is (2) float64, contiguous, it becomes the squares of both norms, which can be added to those of other
  // parameters.
  at::Tensor update_ratio = {};
  double beta1 = 0.9, beta2 = 0.95;  // sgd and muon_direction: beta1 is the momentum
  double eps = 1e-8;                 // only adamw
  double average_decay = 0;
};

// One step for all tensors, in float32. lr stands for lr * lr_factor:
//   t += 1;  g *= grad_scale
//   atan2, adamw:  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2
//   atan2:  p = p (1 - lr wd) - lr / (1 - beta1^t) * atan2(m, sqrt(v) / sqrt(1 - beta2^t))
//   adamw:  p = p (1 - lr wd) - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   lion:   p = p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g), sign(0) = 0;  then m += (1 - beta2) (g - m)
//   sgd:    d = g + wd p;  m = beta1 m + d;  p = p - lr (d + beta1 m)
//   muon_direction:  m += (1 - beta1) (g - m);  p = (1 - beta1) g + beta1 m; no learning rate, no decay
//   muon_apply:      p = p (1 - lr wd) - lr g; no grad_scale
//   average += (1 - average_decay) (p - average);  copy = p, rounded to nearest
// The bias correction of m is outside the arctangent, so an element moves by at most lr * pi/2 / (1 - beta1^t).
//
// Gradients are only read. Clearing them here would write as many bytes as a separate fill.
//
// Does not synchronise with the host. On a GPU, one launch per kMaxTensors tensors (src/ops/optim/cuda/adam.h) and a
// small one that counts the step, on the current stream. Metadata travels as kernel arguments, so a captured graph
// holds no pointer to host memory. Deterministic. Not differentiable; increments the version counters of what it
// writes. Throws c10::Error that names the tensor that does not fit.
void adam_(const AdamArgs& args);

}  // namespace hrm::ops
