#pragma once
// Clipping by the global gradient norm, on the device.

#include <ATen/core/Tensor.h>

namespace hrm::optim {

// 0-dim float32 tensors on the gradients' device.
struct GradNorm {
  at::Tensor norm;       // before clipping
  at::Tensor coef;       // factor for every gradient: min(1, max_norm / (norm + 1e-6)); NaN where the norm is NaN
  at::Tensor nonfinite;  // 1 when the norm is infinite or NaN, else 0
};

// Norm of all gradients as one vector: norm_type 2, 1, or infinity (largest magnitude). max_norm 0 = no clipping, then
// coef is 1. As torch.nn.utils.clip_grad_norm_. No host synchronisation, deterministic.
GradNorm global_norm(const at::Tensor& flat, double max_norm, double norm_type = 2);
GradNorm global_norm(at::TensorList grads, double max_norm, double norm_type = 2);

// Multiplies every gradient by the 0-dim `coef`, in place.
void scale_(at::TensorList grads, const at::Tensor& coef);

}  // namespace hrm::optim
