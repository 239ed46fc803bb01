#include "parallel/over_ranks.h"

#include <ATen/ATen.h>

namespace hrm::parallel {

optim::GradNorm norm_over_ranks(const std::vector<Comm*>& axes, const at::Tensor& norm, double max_norm,
                                const optim::GradNormExtras& extras) {
  // The norm of the ranks' norms. Each is two numbers whose squares add up to the norm's square in float64. One number
  // would be rounded, and clipping that differs in its last bit makes a training diverge from one without shards.
  const at::Tensor most = (norm * (1 - 0x1p-23)).to(at::kFloat);  // not above the norm
  const at::Tensor rest = at::sqrt((norm - most) * (norm + most)).to(at::kFloat);
  at::Tensor all = at::stack({most, at::where(at::isfinite(most), rest, at::zeros_like(rest))});
  for (Comm* axis : axes) {
    const at::Tensor own = all;
    all = at::empty({axis->ranks() * own.numel()}, own.options());
    const StepClock::Wait waiting(axis->clock());
    axis->all_gather(all, own);
  }
  return optim::global_norm(all, max_norm, 2, extras);
}

void ratio_over_ranks(const std::vector<Comm*>& axes, const at::Tensor& moved, const at::Tensor& update_ratio) {
  for (Comm* axis : axes) axis->all_reduce_in_step(moved);
  // Both are 0 for a skip.
  const at::Tensor ratio = at::sqrt(moved.select(0, 0) / moved.select(0, 1));
  at::Tensor(update_ratio).copy_(at::where(moved.select(0, 1) > 0, ratio, at::zeros_like(ratio)));
}

}  // namespace hrm::parallel
