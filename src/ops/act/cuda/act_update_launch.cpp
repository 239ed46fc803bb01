#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/act/act_update_impl.h"
#include "ops/act/cuda/act_update.h"
#include "ops/common/optional_tensor.h"
#include "ops/cuda/launcher.h"

namespace hrm::ops {
namespace {

void act_begin_cuda(const at::Tensor& z_H, const at::Tensor& z_L, const at::Tensor& steps, const at::Tensor& inputs,
                    const at::Tensor& labels, const at::Tensor& puzzle_identifiers, const at::Tensor& halted,
                    const at::Tensor& H_init, const at::Tensor& L_init, const at::Tensor& new_inputs,
                    const at::Tensor& new_labels, const at::Tensor& new_identifiers, const OptionalTensor& cursor) {
  const ActSlots slots{z_H, z_L, steps, halted, inputs, labels, puzzle_identifiers};
  const ActRows offered{new_inputs, new_labels, new_identifiers};
  check_act_begin(slots, H_init, L_init, offered, cursor);
  const c10::cuda::CUDAGuard guard(z_H.device());
  if (!cuda::use_kernel(z_H)) return reference::act_begin_(slots, H_init, L_init, offered, cursor);
  const int64_t count = halted.size(0);
  if (count == 0) return;
  const at::Tensor H_row = H_init.contiguous(), L_row = L_init.contiguous();
  const ActRows rows{new_inputs.contiguous(), new_labels.contiguous(), new_identifiers.contiguous()};
  const at::Tensor row = cursor ? at::empty({count}, cursor->options()) : at::Tensor();
  cuda::ActBegin params{};
  params.z_H = z_H.mutable_data_ptr();
  params.z_L = z_L.mutable_data_ptr();
  params.steps = steps.mutable_data_ptr<int32_t>();
  params.inputs = inputs.mutable_data_ptr<int32_t>();
  params.labels = labels.mutable_data_ptr<int32_t>();
  params.puzzle_identifiers = puzzle_identifiers.mutable_data_ptr<int32_t>();
  params.halted = halted.const_data_ptr<bool>();
  params.H_init = H_row.const_data_ptr<float>();
  params.L_init = L_row.const_data_ptr<float>();
  params.new_inputs = rows.inputs.const_data_ptr<int32_t>();
  params.new_labels = rows.labels.const_data_ptr<int32_t>();
  params.new_identifiers = rows.puzzle_identifiers.const_data_ptr<int32_t>();
  params.cursor = cursor ? cursor->mutable_data_ptr<int64_t>() : nullptr;
  params.row = cursor ? row.mutable_data_ptr<int64_t>() : nullptr;
  params.slots = count;
  params.rows = new_inputs.size(0);
  params.positions = z_H.size(1);
  params.width = z_H.size(2);
  params.tokens = inputs.size(1);
  params.element = cuda::element_of(z_H);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

void act_end_cuda(const at::Tensor& z_H, const at::Tensor& z_L, const at::Tensor& steps, const at::Tensor& halted,
                  const at::Tensor& new_z_H, const at::Tensor& new_z_L, const at::Tensor& q, const at::Tensor& uniform,
                  const at::Tensor& min_steps, int64_t max_steps, double exploration, bool training, bool no_continue) {
  const ActSlots slots{z_H, z_L, steps, halted, {}, {}, {}};
  check_act_end(slots, new_z_H, new_z_L, q, uniform, min_steps);
  const c10::cuda::CUDAGuard guard(z_H.device());
  if (!cuda::use_kernel(z_H) || q.scalar_type() != at::kFloat) {
    return reference::act_end_(slots, new_z_H, new_z_L, q, uniform, min_steps,
                               {max_steps, exploration, training, no_continue});
  }
  if (halted.size(0) == 0) return;
  const at::Tensor from_H = new_z_H.contiguous(), from_L = new_z_L.contiguous();
  const at::Tensor uniform_row = uniform.contiguous(), min_steps_row = min_steps.contiguous();
  cuda::ActEnd params{};
  params.z_H = z_H.mutable_data_ptr();
  params.z_L = z_L.mutable_data_ptr();
  params.new_z_H = from_H.const_data_ptr();
  params.new_z_L = from_L.const_data_ptr();
  params.carry_bytes = z_H.numel() * static_cast<int64_t>(z_H.element_size());
  params.steps = steps.mutable_data_ptr<int32_t>();
  params.halted = halted.mutable_data_ptr<bool>();
  params.q = q.const_data_ptr<float>();
  params.q_slot = q.stride(0);
  params.q_head = q.stride(1);
  params.uniform = uniform_row.const_data_ptr<float>();
  params.min_steps = min_steps_row.const_data_ptr<int32_t>();
  params.slots = halted.size(0);
  params.max_steps = max_steps;
  params.exploration = exploration;
  params.training = training;
  params.no_continue = no_continue;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("act_begin_", &act_begin_cuda);
  m.impl("act_end_", &act_end_cuda);
}

}  // namespace hrm::ops
