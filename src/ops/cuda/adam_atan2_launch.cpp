#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "hrm/ops/backend.h"
#include "ops/adam_atan2_impl.h"
#include "ops/cuda/adam_atan2.h"

namespace hrm::ops {
namespace {

// Fills launch after launch with tensors. Returns the next tensor to take.
size_t fill(const AdamAtan2Args& args, size_t next, cuda::AdamAtan2Params& out) {
  out.count = 0;
  out.first_block[0] = 0;
  for (; next < args.params.size() && out.count < cuda::kMaxTensors; ++next) {
    const int64_t size = args.params[next].numel();
    if (size == 0) continue;
    const int64_t blocks = (size + cuda::kElementsPerBlock - 1) / cuda::kElementsPerBlock;
    const int64_t last_block = out.first_block[out.count] + blocks;
    TORCH_CHECK(blocks <= std::numeric_limits<int32_t>::max(), "hrm::adam_atan2_: params[", next, "] of shape ",
                args.params[next].sizes(), " is larger than the kernel's 32-bit block index allows");
    if (last_block > std::numeric_limits<int32_t>::max()) break;
    const int i = out.count++;
    out.param[i] = args.params[next].mutable_data_ptr<float>();
    out.grad[i] = args.grads[next].const_data_ptr<float>();
    out.exp_avg[i] = args.exp_avgs[next].mutable_data_ptr<float>();
    out.exp_avg_sq[i] = args.exp_avg_sqs[next].mutable_data_ptr<float>();
    out.size[i] = size;
    out.first_block[i + 1] = static_cast<int32_t>(last_block);
    out.weight_decay[i] = static_cast<float>(args.weight_decay[next]);
  }
  return next;
}

void adam_atan2_cuda(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                     const at::Tensor& step, const at::Tensor& lr, double beta1, double beta2,
                     at::ArrayRef<double> weight_decay, const at::Tensor& grad_scale, const at::Tensor& skip) {
  const AdamAtan2Args args{params, grads, exp_avgs,     exp_avg_sqs, step, lr,
                           beta1,  beta2, weight_decay, grad_scale,  skip};
  check_adam_atan2(args);
  const c10::cuda::CUDAGuard guard(step.device());
  if (backend() == Backend::reference) return reference::adam_atan2_(args);

  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  // First the counter, then every launch reads the same value.
  C10_CUDA_CHECK(cuda::launch_advance(step.mutable_data_ptr<float>(), skip.const_data_ptr<float>(), stream));
  cuda::AdamAtan2Params launch_params{};
  launch_params.step = step.const_data_ptr<float>();
  launch_params.lr = lr.const_data_ptr<float>();
  launch_params.grad_scale = grad_scale.const_data_ptr<float>();
  launch_params.skip = skip.const_data_ptr<float>();
  launch_params.one_minus_beta1 = static_cast<float>(1 - beta1);
  launch_params.beta2 = static_cast<float>(beta2);
  launch_params.one_minus_beta2 = static_cast<float>(1 - beta2);
  launch_params.log_beta1 = static_cast<float>(std::log(beta1));
  launch_params.log_beta2 = static_cast<float>(std::log(beta2));
  for (size_t next = 0; next < params.size();) {
    next = fill(args, next, launch_params);
    if (launch_params.count > 0) C10_CUDA_CHECK(cuda::launch(launch_params, stream));
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("adam_atan2_", &adam_atan2_cuda);
}

}  // namespace hrm::ops
