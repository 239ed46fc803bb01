#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "hrm/ops/backend.h"
#include "ops/act/act_loss_impl.h"
#include "ops/act/cuda/act_loss.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

bool use_kernel(const at::Tensor& q) {
  return backend() == Backend::fused && q.scalar_type() == at::kFloat;
}

at::Tensor act_q_target_cuda(const at::Tensor& q, const at::Tensor& steps, int64_t max_steps) {
  check_act_q_target(q, steps);
  const c10::cuda::CUDAGuard guard(q.device());
  if (!use_kernel(q)) return reference::act_q_target(q, steps, max_steps);
  const at::Tensor step_row = steps.contiguous();
  at::Tensor target = at::empty({q.size(0)}, q.options());
  if (q.size(0) == 0) return target;
  cuda::ActQTarget params{};
  params.q = q.const_data_ptr<float>();
  params.q_slot = q.stride(0);
  params.q_head = q.stride(1);
  params.steps = step_row.const_data_ptr<int32_t>();
  params.target = target.mutable_data_ptr<float>();
  params.max_steps = max_steps;
  params.slots = q.size(0);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return target;
}

std::tuple<at::Tensor, at::Tensor> act_loss_cuda(const at::Tensor& token_loss, const at::Tensor& labelled,
                                                 const at::Tensor& right, const at::Tensor& q,
                                                 const OptionalTensor& target, const at::Tensor& steps,
                                                 const at::Tensor& halted) {
  const TokenLoss tokens{token_loss.contiguous(), labelled.contiguous(), right.contiguous()};
  check_act_loss(tokens, q, target);
  check_act_slots(q, steps, halted);
  const c10::cuda::CUDAGuard guard(q.device());
  if (!use_kernel(q)) {
    const ActLossSums out = reference::act_loss(tokens, q, target, steps, halted);
    return {out.loss, out.metrics};
  }
  const at::Tensor step_row = steps.contiguous(), halted_row = halted.contiguous();
  const at::Tensor target_row = target ? target->contiguous() : at::Tensor();
  at::Tensor loss = at::empty({}, token_loss.options());
  at::Tensor metrics = at::empty({kActMetrics}, q.options().dtype(at::kDouble));
  cuda::ActLossForward params{};
  params.token_loss = tokens.loss.const_data_ptr();
  params.labelled = tokens.labelled.const_data_ptr<int32_t>();
  params.right = tokens.right.const_data_ptr<int32_t>();
  params.q = q.const_data_ptr<float>();
  params.q_slot = q.stride(0);
  params.q_head = q.stride(1);
  params.target = target ? target_row.const_data_ptr<float>() : nullptr;
  params.steps = step_row.const_data_ptr<int32_t>();
  params.halted = halted_row.const_data_ptr<bool>();
  params.loss = loss.mutable_data_ptr();
  params.metrics = metrics.mutable_data_ptr<double>();
  params.slots = q.size(0);
  params.wide = token_loss.scalar_type() == at::kDouble;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {loss, metrics};
}

at::Tensor act_loss_backward_cuda(const at::Tensor& grad_loss, const at::Tensor& token_loss, const at::Tensor& labelled,
                                  const at::Tensor& right, const at::Tensor& q, const OptionalTensor& target) {
  const TokenLoss tokens{token_loss, labelled.contiguous(), right.contiguous()};
  check_act_loss(tokens, q, target);
  TORCH_CHECK(
      grad_loss.dim() == 0 && grad_loss.scalar_type() == token_loss.scalar_type() && grad_loss.device() == q.device(),
      "hrm::act_loss_backward: grad_loss must be a 0-dim ", token_loss.scalar_type(), " on ", q.device(), ", got ",
      grad_loss.sizes(), " ", grad_loss.scalar_type(), " on ", grad_loss.device());
  const c10::cuda::CUDAGuard guard(q.device());
  if (!use_kernel(q)) return reference::act_loss_backward(grad_loss, tokens, q, target);
  const at::Tensor target_row = target ? target->contiguous() : at::Tensor();
  at::Tensor grad = at::empty(q.sizes(), q.options().memory_format(at::MemoryFormat::Contiguous));
  if (grad.numel() == 0) return grad;
  cuda::ActLossBackward params{};
  params.grad_loss = grad_loss.const_data_ptr();
  params.labelled = tokens.labelled.const_data_ptr<int32_t>();
  params.right = tokens.right.const_data_ptr<int32_t>();
  params.q = q.const_data_ptr<float>();
  params.q_slot = q.stride(0);
  params.q_head = q.stride(1);
  params.target = target ? target_row.const_data_ptr<float>() : nullptr;
  params.grad_q = grad.mutable_data_ptr<float>();
  params.slots = q.size(0);
  params.wide = grad_loss.scalar_type() == at::kDouble;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return grad;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("act_q_target", &act_q_target_cuda);
  m.impl("act_loss", &act_loss_cuda);
  m.impl("act_loss_backward", &act_loss_backward_cuda);
}

}  // namespace hrm::ops
