// The readable version, the CPU implementation, and the oracle of the CUDA kernels.
#include <ATen/ATen.h>

#include "ops/act/act_update_impl.h"

namespace hrm::ops::reference {
namespace {

// to = where(mask, from, to) along dimension 0, in place.
void take_where(const at::Tensor& mask, const at::Tensor& from, at::Tensor to) {
  std::vector<int64_t> shape(static_cast<size_t>(to.dim()), 1);
  shape[0] = to.size(0);
  at::where_out(to, mask.view(shape), from.to(to.scalar_type()), to);
}

}  // namespace

void act_begin_(const ActSlots& slots, const at::Tensor& H_init, const at::Tensor& L_init, const ActRows& rows,
                const std::optional<at::Tensor>& cursor) {
  const at::NoGradGuard no_grad;
  const at::Tensor& halted = slots.halted;
  take_where(halted, H_init, slots.z_H);
  take_where(halted, L_init, slots.z_L);
  slots.steps.masked_fill_(halted, 0);
  if (!cursor) {
    take_where(halted, rows.inputs, slots.inputs);
    take_where(halted, rows.labels, slots.labels);
    take_where(halted, rows.puzzle_identifiers, slots.puzzle_identifiers);
    return;
  }
  if (halted.numel() == 0) return;
  const at::Tensor taken = halted.to(at::kLong).cumsum(0);
  // A slot that continues gets some valid row too, which take_where drops.
  const at::Tensor row = at::remainder(*cursor + taken - 1, rows.inputs.size(0));
  take_where(halted, rows.inputs.index_select(0, row), slots.inputs);
  take_where(halted, rows.labels.index_select(0, row), slots.labels);
  take_where(halted, rows.puzzle_identifiers.index_select(0, row), slots.puzzle_identifiers);
  cursor->add_(taken.select(0, halted.size(0) - 1));
}

void act_end_(const ActSlots& slots, const at::Tensor& new_z_H, const at::Tensor& new_z_L, const at::Tensor& q,
              const at::Tensor& uniform, const at::Tensor& min_steps, const ActHalting& halting) {
  const at::NoGradGuard no_grad;
  slots.z_H.copy_(new_z_H);
  slots.z_L.copy_(new_z_L);
  slots.steps.add_(1);
  at::Tensor halted = slots.halted;
  at::ge_out(halted, slots.steps, halting.max_steps);
  if (!halting.training || halting.max_steps == 1) return;
  const at::Tensor q_halt = q.select(1, 0);
  halted.logical_or_(halting.no_continue ? q_halt.gt(0) : q_halt.gt(q.select(1, 1)));
  const at::Tensor first_halt = min_steps.masked_fill(uniform.ge(halting.exploration), 0);
  halted.logical_and_(slots.steps.ge(first_halt));
}

}  // namespace hrm::ops::reference
