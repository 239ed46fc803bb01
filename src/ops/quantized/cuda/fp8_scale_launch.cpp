// Maxima and scales of 8-bit tensors on a GPU.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "hrm/ops/fp8.h"
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

bool fits_many(at::TensorList weights, at::TensorList values, at::TensorList transposed) {
  const auto aligned = [](const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0; };
  int64_t elements = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& weight = weights[i];
    if (weight.size(0) % 16 != 0 || weight.size(1) % 16 != 0 || weight.numel() == 0 || !aligned(weight) ||
        !aligned(values[i]) || (transposed[i].numel() > 0 && !aligned(transposed[i]))) {
      return false;
    }
    elements += weight.numel();
  }
  return elements / 1024 < INT32_MAX;  // blocks
}

void quantize_weights_cuda(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                           const at::Tensor& slots, at::ScalarType compute) {
  check_quantize_fp8_weights(weights, values, transposed, slots, compute);
  const c10::cuda::CUDAGuard guard(slots.device());
  if (!cuda::use_kernel(weights[0]) || !fits_many(weights, values, transposed) ||
      (weights[0].scalar_type() != compute && weights[0].scalar_type() != at::kFloat)) {
    return reference::quantize_fp8_weights_(weights, values, transposed, slots, compute);
  }
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  slots.select(1, 2).zero_();
  const auto in_groups = [&](size_t most, const auto& start) {
    for (size_t first = 0; first < weights.size(); first += most) {
      start(first, std::min(weights.size(), first + most),
            slots.mutable_data_ptr<float>() + static_cast<int64_t>(first) * kFp8WideSlot);
    }
  };
  in_groups(cuda::kFp8MaxRaised, [&](size_t first, size_t end, float* group) {
    cuda::RaiseManyFp8Amax params{};
    for (size_t i = first; i < end; ++i) params.add(weights[i].const_data_ptr(), weights[i].numel());
    params.slots = group;
    params.slot_pitch = kFp8WideSlot;
    params.element = cuda::element_of(weights[0]);
    params.rounded = cuda::element_of(compute);
    C10_CUDA_CHECK(cuda::launch(params, stream));
  });
  const at::Tensor history = at::zeros({slots.size(0), 1}, slots.options());
  fp8_update_scales_(slots, history, 0);
  in_groups(cuda::kFp8MaxWeights, [&](size_t first, size_t end, float* group) {
    cuda::QuantizeFp8Weights params{};
    for (size_t i = first; i < end; ++i) {
      void* const across = transposed[i].numel() > 0 ? transposed[i].mutable_data_ptr() : nullptr;
      params.add(weights[i].const_data_ptr(), values[i].mutable_data_ptr(), across, weights[i].size(0),
                 weights[i].size(1));
    }
    params.slots = group;
    params.slot_pitch = kFp8WideSlot;
    params.element = cuda::element_of(weights[0]);
    params.rounded = cuda::element_of(compute);
    C10_CUDA_CHECK(cuda::launch(params, stream));
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("fp8_raise_amax_", &raise_amax_cuda);
  m.impl("quantize_fp8_weights_", &quantize_weights_cuda);
  m.impl("fp8_scale_now", &scale_now_cuda);
}

}  // namespace hrm::ops
