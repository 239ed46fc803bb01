#pragma once
// One elementwise update by an optimizer, and all that follows from the new weights, in one pass over memory.

#include <ATen/core/Tensor.h>

#include "hrm/ops/adam_rule.h"

namespace hrm::ops {

// Members of the lists belong together by their index. All tensors are contiguous and on one device, float32 unless
// said; those of one index have one shape.
struct AdamArgs {
  AdamRule rule = AdamRule::atan2;
  at::TensorList params;
  at::TensorList grads;
  at::TensorList exp_avgs = {};     // m; empty for a rule without it (hrm/ops/adam_rule.h)
  at::TensorList exp_avg_sqs = {};  // v, the same
  at::TensorList averages = {};     // EMAs of the params; empty: none
  // What the matrix products read: for each param a bfloat16 or float16 copy, or the param itself (nothing to copy).
  // Empty: no copies.
  at::TensorList copies = {};
  at::ArrayRef<double> weight_decay;    // one for each param
  at::ArrayRef<double> lr_factor = {};  // of each param's rate; empty: 1
  // 0-dim float32:
  at::Tensor step;        // t, updates done so far; every rule counts, those of Adam alone read it
  at::Tensor lr;          // learning rate
  at::Tensor grad_scale;  // factor for every gradient, e.g. the clip coefficient; muon_apply does not read it
  at::Tensor skip;        // non-zero or NaN: leave everything as it is, step too
  // 0-dim float64, or undefined: becomes |new params - old params| / |old params| over all of them, 0 for a skip. Or
  // (2) float64, contiguous: becomes the squares of both, which can be added to those of other parameters.
  at::Tensor update_ratio = {};
  double beta1 = 0.9, beta2 = 0.95;  // sgd and muon_direction: beta1 is the momentum
  double eps = 1e-8;                 // adamw alone
  double average_decay = 0;
};

// One step for all tensors, in float32, with lr = lr * lr_factor:
//   t += 1;  g *= grad_scale
//   atan2, adamw:  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2
//   atan2:  p = p (1 - lr wd) - lr / (1 - beta1^t) * atan2(m, sqrt(v) / sqrt(1 - beta2^t))
//   adamw:  p = p (1 - lr wd) - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   lion:   p = p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g), sign(0) = 0;  then m += (1 - beta2) (g - m)
//   sgd:    d = g + wd p;  m = beta1 m + d;  p = p - lr (d + beta1 m)
//   muon_direction:  m += (1 - beta1) (g - m);  p = (1 - beta1) g + beta1 m: no rate and no decay
//   muon_apply:      p = p (1 - lr wd) - lr g, without grad_scale
//   average += (1 - average_decay) (p - average);  copy = p, rounded to nearest
// The bias correction of m is outside the arctangent; an element moves by at most lr * pi/2 / (1 - beta1^t).
//
// The gradients are only read: clearing them here would write as many bytes as a fill does.
//
// No host synchronisation. On a GPU one launch for each kMaxTensors tensors (src/ops/optim/cuda/adam.h) on the current
// stream and one small one that counts the step; metadata travels as kernel arguments, so a captured graph holds no
// pointer to host memory. Deterministic. Not differentiable; bumps the version counters of what it writes. Throws
// c10::Error naming the tensor that does not fit.
void adam_(const AdamArgs& args);

}  // namespace hrm::ops
