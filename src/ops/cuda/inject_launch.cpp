#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/inject.h"
#include "ops/cuda/launcher.h"
#include "ops/inject_impl.h"

namespace hrm::ops {
namespace {

at::Tensor inject_cuda(const at::Tensor& a, const at::Tensor& b) {
  check_inject(a, b);
  const c10::cuda::CUDAGuard guard(a.device());
  if (!cuda::use_kernel(a)) return reference::inject(a, b);
  const at::Tensor from_a = a.contiguous(), from_b = b.contiguous();
  at::Tensor sum = at::empty(a.sizes(), from_a.options());
  cuda::InjectForward params{};
  params.a = from_a.const_data_ptr();
  params.b = from_b.const_data_ptr();
  params.sum = sum.mutable_data_ptr();
  params.size = sum.numel();
  params.element = cuda::element_of(from_a);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return sum;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("inject", &inject_cuda);
}

}  // namespace hrm::ops
