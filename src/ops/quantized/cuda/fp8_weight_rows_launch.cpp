// Weights with a scale for each row on a GPU: all at once, or by the reference where sizes or addresses do not fit.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>

#include "hrm/ops/fp8.h"
#include "hrm/ops/fp8_linear.h"
#include "ops/cuda/launcher.h"
#include "ops/quantized/cuda/fp8_weight_rows.h"
#include "ops/quantized/fp8_weight_rows_impl.h"

namespace hrm::ops {
namespace {

bool fits_rows(const Fp8WeightRows& w, at::ScalarType compute) {
  const auto aligned = [](const at::Tensor& t) { return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0; };
  const at::ScalarType own = w.weights[0].scalar_type();
  int64_t elements = 0;
  for (size_t i = 0; i < w.weights.size(); ++i) {
    const at::Tensor& weight = w.weights[i];
    if (weight.size(0) % 16 != 0 || weight.size(1) % 16 != 0 || weight.numel() == 0 || !aligned(weight) ||
        !aligned(w.values[i]) || !aligned(w.transposed[i])) {
      return false;
    }
    elements += weight.numel();
  }
  return (own == compute || own == at::kFloat) && elements / 1024 < INT32_MAX;  // blocks
}

void quantize_weight_rows_cuda(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                               at::TensorList scales, at::TensorList transposed_scales, const at::Tensor& slots,
                               at::ScalarType compute) {
  const Fp8WeightRows w{weights, values, transposed, scales, transposed_scales};
  check_quantize_fp8_weight_rows(w, slots, compute);
  const c10::cuda::CUDAGuard guard(slots.device());
  if (!cuda::use_kernel(weights[0]) || !fits_rows(w, compute)) {
    return reference::quantize_fp8_weight_rows_(w, slots, compute);
  }
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  int64_t sizes = 0;
  for (const at::Tensor& weight : weights) sizes += weight.size(0) + weight.size(1);
  const at::Tensor maxima = at::zeros({sizes}, slots.options());
  auto* next = maxima.mutable_data_ptr<float>();
  slots.select(1, 2).zero_();
  for (size_t first = 0; first < weights.size(); first += cuda::kFp8MaxRowWeights) {
    cuda::Fp8WeightRows params{};
    for (size_t i = first; i < std::min(weights.size(), first + cuda::kFp8MaxRowWeights); ++i) {
      params.from[params.count] = weights[i].const_data_ptr();
      params.values[params.count] = values[i].mutable_data_ptr();
      params.transposed[params.count] = transposed[i].mutable_data_ptr();
      params.scales[params.count] = scales[i].mutable_data_ptr<float>();
      params.transposed_scales[params.count] = transposed_scales[i].mutable_data_ptr<float>();
      params.maxima[params.count] = next;
      next += weights[i].size(0) + weights[i].size(1);
      params.add(weights[i].size(0), weights[i].size(1));
    }
    params.slots = slots.mutable_data_ptr<float>() + static_cast<int64_t>(first) * kFp8WideSlot;
    params.element = cuda::element_of(weights[0]);
    params.rounded = cuda::element_of(compute);
    C10_CUDA_CHECK(cuda::launch(params, stream));
  }
  scale_of_amax(slots);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("quantize_fp8_weight_rows_", &quantize_weight_rows_cuda);
}

}  // namespace hrm::ops
