#pragma once
// Numbers of a step that are made of what each rank has of the model. Collective operations of all ranks of these axes,
// one axis after the other; the same bits on each rank.

#include <ATen/core/Tensor.h>

#include <vector>

#include "hrm/optim/clip.h"
#include "hrm/parallel/comm.h"

namespace hrm::parallel {

// The norm of gradients whose parts have these norms, (0-dim) float64 of this rank's part: optim::global_norm of the
// whole vector up to rounding.
optim::GradNorm norm_over_ranks(const std::vector<Comm*>& axes, const at::Tensor& norm, double max_norm,
                                const optim::GradNormExtras& extras);

// moved: what optim::Optimizer::step() gives for two values, (2) float64, of this rank's part; becomes that of all.
// update_ratio: 0-dim float64, set to the ratio; 0 for a skip.
void ratio_over_ranks(const std::vector<Comm*>& axes, const at::Tensor& moved, const at::Tensor& update_ratio);

}  // namespace hrm::parallel
