#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/dropout/cuda/dropout.h"
#include "ops/dropout/dropout_impl.h"

namespace hrm::ops {
namespace {

void launch_dropout(const at::Tensor& out, const at::Tensor& x, const at::Tensor* sum, const at::Tensor& step, double p,
                    int64_t seed) {
  cuda::Dropout params{};
  params.x = x.const_data_ptr();
  params.sum = sum == nullptr ? nullptr : sum->const_data_ptr();
  params.out = out.mutable_data_ptr();
  params.step = step.const_data_ptr<int64_t>();
  params.count = x.numel();
  params.threshold = dropout_threshold(p);
  params.scale = dropout_scale(p);
  params.seed = static_cast<uint64_t>(seed);
  params.element = cuda::element_of(x);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor dropout_cuda(const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
  check_dropout("hrm::dropout", x, step, p);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::dropout(x, step, p, seed);
  const at::Tensor from = x.contiguous(), out = at::empty(x.sizes(), x.options());
  launch_dropout(out, from, nullptr, step, p, seed);
  return out;
}

void dropout_add_cuda_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& step, double p, int64_t seed) {
  check_dropout_add(sum, x, step, p);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::dropout_add_(sum, x, step, p, seed);
  launch_dropout(sum, x.contiguous(), &sum, step, p, seed);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("dropout", &dropout_cuda);
  m.impl("dropout_add_", &dropout_add_cuda_);
}

}  // namespace hrm::ops
