#pragma once
// AdamATan2 (Everett et al., "Scaling Exponents Across Parameterizations and Optimizers", 2024, in the form
// of the official HRM code): Adam whose quotient is an arctangent, so that it needs no epsilon.

#include <ATen/core/Tensor.h>

namespace hrm::ops {

// One step for all tensors, in float32:
//   t += 1;  p *= 1 - lr * wd;  g *= grad_scale;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2) g^2
//   p -= lr / (1 - beta1^t) * atan2(m, sqrt(v) / sqrt(1 - beta2^t))
// The bias correction of m stands outside the arctangent; an element moves by at most lr * pi/2 / (1 - beta1^t).
//
// params, grads, exp_avgs (m), exp_avg_sqs (v): lists of equal length; member i of each has the same shape. All
// float32, contiguous, on one device. weight_decay: one value per tensor. step (t), lr, grad_scale, skip: 0-dim float32
// on that device. A non-zero (or NaN) skip leaves everything untouched, t too. grads are only read.
//
// No host synchronisation: on a GPU one launch for each kMaxTensors tensors (src/ops/cuda/adam_atan2.h) on the current
// stream; metadata travels as kernel arguments, so a captured graph holds no pointer to host memory. Not
// differentiable; bumps the version counters of what it writes. Throws c10::Error naming the tensor that does not fit.
void adam_atan2_(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                 const at::Tensor& step, const at::Tensor& lr, double beta1, double beta2,
                 at::ArrayRef<double> weight_decay, const at::Tensor& grad_scale, const at::Tensor& skip);

}  // namespace hrm::ops
