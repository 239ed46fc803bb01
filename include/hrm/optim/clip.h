#pragma once
// Clipping by the global gradient norm on the device.

#include <ATen/core/Tensor.h>

namespace hrm::optim {

// 0-dim float32 tensors on the gradients' device.
struct GradNorm {
  at::Tensor norm;       // before clipping, of the unscaled gradients
  at::Tensor coef;       // factor for every gradient: min(1, max_norm / (norm + 1e-6)), divided by the loss scale
  at::Tensor nonfinite;  // 1 when the norm is infinite or NaN, otherwise 0
};

// Additional work of global_norm; undefined tensors are skipped.
struct GradNormExtras {
  at::Tensor loss_scale = {};  // 0-dim float32: the factor that the gradients were scaled by
  at::Tensor skip = {};        // 0-dim float32, set to max(skip, nonfinite)
  at::Tensor report = {};      // (3) float64, set to the norm, the norm after clipping, and skip
};

// Norm of all gradients as one contiguous vector, as in torch.nn.utils.clip_grad_norm_. norm_type: 2, 1, or infinity
// (largest magnitude). max_norm 0: no clipping. Deterministic, without host synchronisation (hrm/ops/grad_norm.h).
GradNorm global_norm(const at::Tensor& flat, double max_norm, double norm_type = 2, const GradNormExtras& extras = {});

}  // namespace hrm::optim
