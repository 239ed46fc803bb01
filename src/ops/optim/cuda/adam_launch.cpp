#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "hrm/ops/backend.h"
#include "ops/optim/adam_impl.h"
#include "ops/optim/cuda/adam.h"

namespace hrm::ops {
namespace {

int64_t blocks_of(int64_t size) {
  return (size + cuda::kElementsPerBlock - 1) / cuda::kElementsPerBlock;
}

// Fills launch after launch with tensors. Returns the next tensor to take.
size_t fill(const AdamArgs& args, size_t next, cuda::AdamParams& out) {
  out.count = 0;
  out.first_block[0] = 0;
  for (; next < args.params.size() && out.count < cuda::kMaxTensors; ++next) {
    const int64_t size = args.params[next].numel();
    if (size == 0) continue;
    const int64_t blocks = blocks_of(size);
    const int64_t last_block = out.first_block[out.count] + blocks;
    TORCH_CHECK(blocks <= std::numeric_limits<int32_t>::max(), "hrm::adam_: params[", next, "] of shape ",
                args.params[next].sizes(), " is larger than the kernel's 32-bit block index allows");
    if (last_block > std::numeric_limits<int32_t>::max()) break;
    const int i = out.count;
    const auto optional = [next](at::TensorList list) {
      return list.empty() ? nullptr : list[next].mutable_data_ptr<float>();
    };
    const bool copied = has_copy(args, next);
    const bool half = copied && args.copies[next].scalar_type() == at::kHalf;
    // A launch has one kind of copies; a model has, too.
    if (copied && i > 0 && half != out.half_copies) break;
    if (copied) out.half_copies = half;
    ++out.count;
    out.param[i] = args.params[next].mutable_data_ptr<float>();
    out.grad[i] = args.grads[next].const_data_ptr<float>();
    out.exp_avg[i] = optional(args.exp_avgs);
    out.exp_avg_sq[i] = optional(args.exp_avg_sqs);
    out.average[i] = optional(args.averages);
    out.copy[i] = copied ? static_cast<uint16_t*>(args.copies[next].mutable_data_ptr()) : nullptr;
    out.size[i] = size;
    out.first_block[i + 1] = static_cast<int32_t>(last_block);
    out.weight_decay[i] = static_cast<float>(args.weight_decay[next]);
    out.lr_factor[i] = static_cast<float>(lr_factor(args, next));
  }
  return next;
}

void adam_cuda(const AdamArgs& args) {
  check_adam(args);
  const c10::cuda::CUDAGuard guard(args.step.device());
  if (backend() == Backend::reference) return reference::adam_(args);

  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  cuda::AdamFinish finish{};
  finish.step = args.step.mutable_data_ptr<float>();
  finish.skip = args.skip.const_data_ptr<float>();
  at::Tensor partial;
  double2* next_partial = nullptr;
  if (args.update_ratio.defined()) {
    for (const at::Tensor& param : args.params) finish.num_partial += blocks_of(param.numel());
    partial = at::empty({finish.num_partial, 2}, args.update_ratio.options());
    next_partial = static_cast<double2*>(partial.mutable_data_ptr());
    finish.partial = next_partial;
    finish.update_ratio = args.update_ratio.mutable_data_ptr<double>();
    finish.squares = args.update_ratio.dim() == 1;
  }

  cuda::AdamParams params{};
  params.rule = args.rule;
  params.step = args.step.const_data_ptr<float>();
  params.lr = args.lr.const_data_ptr<float>();
  params.grad_scale = args.grad_scale.const_data_ptr<float>();
  params.skip = args.skip.const_data_ptr<float>();
  params.beta1 = static_cast<float>(args.beta1);
  params.one_minus_beta1 = static_cast<float>(1 - args.beta1);
  params.beta2 = static_cast<float>(args.beta2);
  params.one_minus_beta2 = static_cast<float>(1 - args.beta2);
  params.log_beta1 = static_cast<float>(std::log(args.beta1));
  params.log_beta2 = static_cast<float>(std::log(args.beta2));
  params.eps = static_cast<float>(args.eps);
  params.one_minus_decay = static_cast<float>(1 - args.average_decay);
  for (size_t next = 0; next < args.params.size();) {
    params.partial = next_partial;
    next = fill(args, next, params);
    if (params.count == 0) continue;
    C10_CUDA_CHECK(cuda::launch(params, stream));
    if (next_partial != nullptr) next_partial += params.first_block[params.count];
  }
  // Every launch has read the old step by then.
  C10_CUDA_CHECK(cuda::launch(finish, stream));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("adam_", &adam_kernel<adam_cuda>);
}

}  // namespace hrm::ops
