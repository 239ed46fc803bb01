#pragma once
// Clipping by the global gradient norm, on the device.

#include <ATen/core/Tensor.h>

namespace hrm::optim {

// 0-dim float32 tensors on the gradients' device.
struct GradNorm {
  at::Tensor norm;       // before clipping, of the gradients without their loss scale
  at::Tensor coef;       // factor for every gradient: min(1, max_norm / (norm + 1e-6)), divided by the loss scale
  at::Tensor nonfinite;  // 1 when the norm is infinite or NaN, otherwise 0
};

// What global_norm does beside; undefined tensors are skipped.
struct GradNormExtras {
  at::Tensor loss_scale = {};  // 0-dim float32: the gradients are too large by this factor
  at::Tensor skip = {};        // 0-dim float32, becomes max(skip, nonfinite)
  at::Tensor report = {};      // (3) float64, becomes the norm, the norm after clipping, and skip
};

// Norm of all gradients as one vector (contiguous): norm_type 2, 1, or infinity (largest magnitude). max_norm 0 = no
// clipping. As torch.nn.utils.clip_grad_norm_. No host synchronisation, deterministic (hrm/ops/grad_norm.h).
GradNorm global_norm(const at::Tensor& flat, double max_norm, double norm_type = 2, const GradNormExtras& extras = {});

}  // namespace hrm::optim
