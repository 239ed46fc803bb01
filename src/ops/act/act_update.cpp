#include "hrm/ops/act_update.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/act/act_update_impl.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

void check_like(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef sizes, at::ScalarType type,
                const at::Tensor& slots) {
  TORCH_CHECK(tensor.sizes() == sizes && tensor.scalar_type() == type && tensor.device() == slots.device(), op, ": ",
              name, " must be ", sizes, " ", type, " on ", slots.device(), ", got ", tensor.sizes(), " ",
              tensor.scalar_type(), " on ", tensor.device());
}

void check_written(const char* op, const char* name, const at::Tensor& tensor, at::IntArrayRef sizes,
                   at::ScalarType type, const at::Tensor& slots) {
  check_like(op, name, tensor, sizes, type, slots);
  TORCH_CHECK(tensor.is_contiguous(), op, ": ", name, " of shape ", sizes, " must be contiguous");
}

void check_carry(const char* op, const ActSlots& slots) {
  TORCH_CHECK(slots.halted.dim() == 1, op, ": halted must be (B), got ", slots.halted.sizes());
  const int64_t count = slots.halted.size(0);
  TORCH_CHECK(slots.z_H.dim() == 3 && slots.z_H.size(0) == count && at::isFloatingType(slots.z_H.scalar_type()), op,
              ": z_H must be (B, L, D) of a floating-point dtype for ", count, " slots, got ", slots.z_H.sizes(), " ",
              slots.z_H.scalar_type());
  check_written(op, "z_H", slots.z_H, slots.z_H.sizes(), slots.z_H.scalar_type(), slots.halted);
  check_written(op, "z_L", slots.z_L, slots.z_H.sizes(), slots.z_H.scalar_type(), slots.halted);
  check_written(op, "steps", slots.steps, {count}, at::kInt, slots.halted);
  check_written(op, "halted", slots.halted, {count}, at::kBool, slots.halted);
}

}  // namespace

void check_act_begin(const ActSlots& slots, const at::Tensor& H_init, const at::Tensor& L_init, const ActRows& rows,
                     const OptionalTensor& cursor) {
  constexpr const char* kOp = "hrm::act_begin_";
  check_carry(kOp, slots);
  const int64_t count = slots.halted.size(0), width = slots.z_H.size(2);
  TORCH_CHECK(slots.inputs.dim() == 2 && rows.inputs.dim() == 2 && slots.inputs.size(1) == rows.inputs.size(1) &&
                  (cursor ? rows.inputs.size(0) >= count : rows.inputs.size(0) == count),
              kOp, ": rows of ", rows.inputs.sizes(), " tokens do not fit slots of ", slots.inputs.sizes());
  const int64_t tokens = slots.inputs.size(1), offered = rows.inputs.size(0);
  check_written(kOp, "inputs", slots.inputs, {count, tokens}, at::kInt, slots.halted);
  check_written(kOp, "labels", slots.labels, {count, tokens}, at::kInt, slots.halted);
  check_written(kOp, "puzzle_identifiers", slots.puzzle_identifiers, {count}, at::kInt, slots.halted);
  check_like(kOp, "H_init", H_init, {width}, at::kFloat, slots.halted);
  check_like(kOp, "L_init", L_init, {width}, at::kFloat, slots.halted);
  check_like(kOp, "inputs of the rows", rows.inputs, {offered, tokens}, at::kInt, slots.halted);
  check_like(kOp, "labels of the rows", rows.labels, {offered, tokens}, at::kInt, slots.halted);
  check_like(kOp, "puzzle_identifiers of the rows", rows.puzzle_identifiers, {offered}, at::kInt, slots.halted);
  if (cursor) check_written(kOp, "cursor", *cursor, {}, at::kLong, slots.halted);
}

void check_act_end(const ActSlots& slots, const at::Tensor& new_z_H, const at::Tensor& new_z_L, const at::Tensor& q,
                   const at::Tensor& uniform, const at::Tensor& min_steps) {
  constexpr const char* kOp = "hrm::act_end_";
  check_carry(kOp, slots);
  const int64_t count = slots.halted.size(0);
  check_like(kOp, "new_z_H", new_z_H, slots.z_H.sizes(), slots.z_H.scalar_type(), slots.halted);
  check_like(kOp, "new_z_L", new_z_L, slots.z_H.sizes(), slots.z_H.scalar_type(), slots.halted);
  check_like(kOp, "q", q, {count, 2}, accumulate_type(q), slots.halted);
  check_like(kOp, "uniform", uniform, {count}, at::kFloat, slots.halted);
  check_like(kOp, "min_steps", min_steps, {count}, at::kInt, slots.halted);
}

void act_begin_(const ActSlots& slots, const at::Tensor& H_init, const at::Tensor& L_init, const ActRows& rows,
                const OptionalTensor& cursor) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&, const at::Tensor&, const OptionalTensor&)>
      op("hrm::act_begin_");
  op(slots.z_H, slots.z_L, slots.steps, slots.inputs, slots.labels, slots.puzzle_identifiers, slots.halted, H_init,
     L_init, rows.inputs, rows.labels, rows.puzzle_identifiers, cursor);
}

void act_end_(const ActSlots& slots, const at::Tensor& new_z_H, const at::Tensor& new_z_L, const at::Tensor& q,
              const at::Tensor& uniform, const at::Tensor& min_steps, const ActHalting& halting) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, double,
                       bool, bool)>
      op("hrm::act_end_");
  op(slots.z_H, slots.z_L, slots.steps, slots.halted, new_z_H, new_z_L, q, uniform, min_steps, halting.max_steps,
     halting.exploration, halting.training, halting.no_continue);
}

namespace {

void act_begin_cpu(const at::Tensor& z_H, const at::Tensor& z_L, const at::Tensor& steps, const at::Tensor& inputs,
                   const at::Tensor& labels, const at::Tensor& puzzle_identifiers, const at::Tensor& halted,
                   const at::Tensor& H_init, const at::Tensor& L_init, const at::Tensor& new_inputs,
                   const at::Tensor& new_labels, const at::Tensor& new_identifiers, const OptionalTensor& cursor) {
  const ActSlots slots{z_H, z_L, steps, halted, inputs, labels, puzzle_identifiers};
  const ActRows rows{new_inputs, new_labels, new_identifiers};
  check_act_begin(slots, H_init, L_init, rows, cursor);
  reference::act_begin_(slots, H_init, L_init, rows, cursor);
}

void act_end_cpu(const at::Tensor& z_H, const at::Tensor& z_L, const at::Tensor& steps, const at::Tensor& halted,
                 const at::Tensor& new_z_H, const at::Tensor& new_z_L, const at::Tensor& q, const at::Tensor& uniform,
                 const at::Tensor& min_steps, int64_t max_steps, double exploration, bool training, bool no_continue) {
  const ActSlots slots{z_H, z_L, steps, halted, {}, {}, {}};
  check_act_end(slots, new_z_H, new_z_L, q, uniform, min_steps);
  reference::act_end_(slots, new_z_H, new_z_L, q, uniform, min_steps, {max_steps, exploration, training, no_continue});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "act_begin_(Tensor(a!) z_H, Tensor(b!) z_L, Tensor(c!) steps, Tensor(d!) inputs, Tensor(e!) labels, "
      "Tensor(f!) puzzle_identifiers, Tensor halted, Tensor H_init, Tensor L_init, Tensor new_inputs, "
      "Tensor new_labels, Tensor new_identifiers, Tensor(g!)? cursor) -> ()");
  m.def(
      "act_end_(Tensor(a!) z_H, Tensor(b!) z_L, Tensor(c!) steps, Tensor(d!) halted, Tensor new_z_H, Tensor new_z_L, "
      "Tensor q, Tensor uniform, Tensor min_steps, int max_steps, float exploration, bool training, "
      "bool no_continue) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("act_begin_", &act_begin_cpu);
  m.impl("act_end_", &act_end_cpu);
}

}  // namespace hrm::ops
