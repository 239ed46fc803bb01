#include "ops/quantized/fp8_weight_rows_impl.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "hrm/ops/fp8.h"
#include "hrm/ops/fp8_linear.h"
#include "ops/common/op.h"
#include "ops/quantized/fp8_linear_impl.h"
#include "ops/quantized/fp8_rows_impl.h"

namespace hrm::ops {

void check_quantize_fp8_weight_rows(const Fp8WeightRows& w, const at::Tensor& slots, at::ScalarType compute) {
  constexpr const char* kOp = "hrm::quantize_fp8_weight_rows_";
  const size_t count = w.weights.size();
  TORCH_CHECK(count > 0 && w.values.size() == count && w.transposed.size() == count && w.scales.size() == count &&
                  w.transposed_scales.size() == count,
              kOp, ": ", count, " weights need as many values, transposed values, scales and transposed scales, got ",
              w.values.size(), ", ", w.transposed.size(), ", ", w.scales.size(), " and ", w.transposed_scales.size());
  TORCH_CHECK(compute == at::kFloat || compute == at::kBFloat16 || compute == at::kHalf, kOp,
              ": compute must be float32, bfloat16 or float16, got ", compute, " (the first weight has shape ",
              w.weights[0].sizes(), ")");
  TORCH_CHECK(slots.dim() == 2 && slots.size(0) == static_cast<int64_t>(count) && slots.is_contiguous(), kOp,
              ": slots must be [", count, ", 8], contiguous, got ", slots.sizes());
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor& weight = w.weights[i];
    check_quantize_fp8_pair(weight, w.values[i], w.transposed[i], slots.select(0, static_cast<int64_t>(i)));
    TORCH_CHECK(weight.scalar_type() == w.weights[0].scalar_type() && weight.is_contiguous() &&
                    w.values[i].scalar_type() == at::kFloat8_e4m3fn,
                kOp, ": weights must be contiguous and of one dtype, and values e4m3, got ", weight.scalar_type(),
                " of shape ", weight.sizes(), " and ", w.values[i].scalar_type());
    for (const auto& [scales, size] :
         {std::pair{&w.scales[i], weight.size(0)}, std::pair{&w.transposed_scales[i], weight.size(1)}}) {
      TORCH_CHECK(scales->dim() == 1 && scales->size(0) == size && scales->scalar_type() == at::kFloat &&
                      scales->is_contiguous() && scales->device() == weight.device(),
                  kOp, ": scales of a weight of shape ", weight.sizes(), " must be ", size,
                  " contiguous float32 for this side on ", weight.device(), ", got ", scales->scalar_type(), " of ",
                  scales->sizes(), " on ", scales->device());
    }
  }
}

void scale_of_amax(const at::Tensor& slots) {
  const at::Tensor amax = slots.select(1, 2).clone();
  fp8_update_scales_(slots, at::zeros({slots.size(0), 1}, slots.options()), 0);
  slots.select(1, 2).copy_(amax);
}

namespace reference {

void quantize_fp8_weight_rows_(const Fp8WeightRows& w, const at::Tensor& slots, at::ScalarType compute) {
  slots.select(1, 2).zero_();
  const auto by_rows = [](const at::Tensor& weight, const at::Tensor& to, const at::Tensor& scales) {
    const auto [values, own_scales] = quantize_fp8_rows(weight, std::nullopt);
    to.copy_(values);
    scales.copy_(own_scales);
  };
  for (size_t i = 0; i < w.weights.size(); ++i) {
    const at::Tensor weight = w.weights[i].to(compute);
    by_rows(weight, w.values[i], w.scales[i]);
    by_rows(weight.t(), w.transposed[i], w.transposed_scales[i]);
    fp8_raise_amax_(weight, slots.select(0, static_cast<int64_t>(i)));
  }
  scale_of_amax(slots);
}

}  // namespace reference

void quantize_fp8_weight_rows_(const Fp8WeightRows& w, const at::Tensor& slots, at::ScalarType compute) {
  static const Op<void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                       const at::Tensor&, at::ScalarType)>
      op("hrm::quantize_fp8_weight_rows_");
  op(w.weights, w.values, w.transposed, w.scales, w.transposed_scales, slots, compute);
}

namespace {

void quantize_weight_rows_cpu(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                              at::TensorList scales, at::TensorList transposed_scales, const at::Tensor& slots,
                              at::ScalarType compute) {
  const Fp8WeightRows w{weights, values, transposed, scales, transposed_scales};
  check_quantize_fp8_weight_rows(w, slots, compute);
  reference::quantize_fp8_weight_rows_(w, slots, compute);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def(
      "quantize_fp8_weight_rows_(Tensor[] weights, Tensor(a!)[] values, Tensor(b!)[] transposed, Tensor(c!)[] scales, "
      "Tensor(d!)[] transposed_scales, Tensor(e!) slots, ScalarType compute) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("quantize_fp8_weight_rows_", &quantize_weight_rows_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("quantize_fp8_weight_rows_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
