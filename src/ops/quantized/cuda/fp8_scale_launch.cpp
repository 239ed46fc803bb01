// Maxima and scales of 8-bit tensors on a GPU.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/quantized/cuda/fp8_scale.h"
#include "ops/quantized/fp8_linear_impl.h"

namespace hrm::ops {
namespace {

void raise_by_kernel(const at::Tensor& x, const at::Tensor& slot) {
  const at::Tensor from = x.contiguous();
  cuda::RaiseFp8Amax params{};
  params.from = from.const_data_ptr();
  params.slot = slot.mutable_data_ptr<float>();
  params.size = from.numel();
  params.element = cuda::element_of(from);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

void raise_amax_cuda(const at::Tensor& x, const at::Tensor& slot) {
  check_fp8_raise_amax(x, slot);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::fp8_raise_amax_(x, slot);
  raise_by_kernel(x, slot);
}

at::Tensor scale_now_cuda(const at::Tensor& x, const at::Tensor& slot, double margin) {
  check_fp8_scale_now(x, slot, margin);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::fp8_scale_now(x, slot, margin);
  const at::Tensor now = at::zeros({kFp8WideSlot}, slot.options());
  raise_by_kernel(x, now);
  cuda::ScaleFp8Now params{};
  params.now = now.mutable_data_ptr<float>();
  params.slot = slot.mutable_data_ptr<float>();
  params.margin = static_cast<float>(margin);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return now;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("fp8_raise_amax_", &raise_amax_cuda);
  m.impl("fp8_scale_now", &scale_now_cuda);
}

}  // namespace hrm::ops
