#pragma once
// The norm of all gradients, and the clip coefficient and skip flag that follow from it.

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace hrm::ops {

// flat: (N) float32, contiguous, N >= 1. norm_type: 2, 1, or infinity (largest magnitude). loss_scale: 0-dim float32,
// the factor contained in flat; default 1. Returns three 0-dim float32 tensors:
//   norm       norm of flat / loss_scale, summed in float64
//   coef       factor for every element of flat: clip / loss_scale. As in torch.nn.utils.clip_grad_norm_, clip is
//              min(1, max_norm / (norm + 1e-6)), NaN if the norm is NaN. max_norm 0: no clipping, clip is 1
//   nonfinite  1 if the norm is infinite or NaN, otherwise 0
// Outputs: skip, 0-dim float32, becomes max(skip, nonfinite). report, (3) float64, contiguous, becomes norm, norm *
// clip, skip.
//
// On a GPU, two launches on the current stream, without host synchronisation. Deterministic. Not differentiable. Throws
// c10::Error that names the tensor that does not fit.
std::tuple<at::Tensor, at::Tensor, at::Tensor> grad_norm(const at::Tensor& flat, double max_norm, double norm_type,
                                                         const std::optional<at::Tensor>& loss_scale,
                                                         const std::optional<at::Tensor>& skip,
                                                         const std::optional<at::Tensor>& report);

// The Euclidean norm of flat, as grad_norm() sums it and before it is rounded: 0-dim float64. For norms over several
// ranks. On a GPU two launches, as above.
at::Tensor float64_norm(const at::Tensor& flat);

}  // namespace hrm::ops
