#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/quantized/fp8_linear_impl.h"

namespace hrm::ops {
namespace {

void check_x(const char* op, const at::Tensor& x, const at::Tensor& slot) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf, op,
              ": x must be float32, bfloat16 or float16, got ", x.scalar_type(), " of shape ", x.sizes());
  check_wide_slot(op, "slot", slot, x);
}

}  // namespace

void check_fp8_raise_amax(const at::Tensor& x, const at::Tensor& slot) {
  check_x("hrm::fp8_raise_amax_", x, slot);
}

void check_quantize_fp8_weights(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                                const at::Tensor& slots, at::ScalarType compute) {
  constexpr const char* kOp = "hrm::quantize_fp8_weights_";
  const auto count = static_cast<int64_t>(weights.size());
  TORCH_CHECK(count > 0 && values.size() == weights.size() && transposed.size() == weights.size(), kOp, ": ", count,
              " weights need as many values and transposed values, got ", values.size(), " and ", transposed.size());
  TORCH_CHECK(compute == at::kFloat || compute == at::kBFloat16 || compute == at::kHalf, kOp,
              ": compute must be float32, bfloat16 or float16, got ", compute, " (the first weight has shape ",
              weights[0].sizes(), ")");
  TORCH_CHECK(slots.dim() == 2 && slots.size(0) == count && slots.is_contiguous(), kOp, ": slots must be [", count,
              ", 8], contiguous, got ", slots.sizes());
  for (size_t i = 0; i < weights.size(); ++i) {
    const OptionalTensor across = transposed[i].numel() > 0 ? OptionalTensor(transposed[i]) : std::nullopt;
    check_quantize_fp8_pair(weights[i], values[i], across, slots.select(0, static_cast<int64_t>(i)));
    TORCH_CHECK(weights[i].scalar_type() == weights[0].scalar_type() && weights[i].is_contiguous() &&
                    values[i].scalar_type() == at::kFloat8_e4m3fn,
                kOp, ": weights must be contiguous and of one dtype, and values e4m3, got ", weights[i].scalar_type(),
                " of shape ", weights[i].sizes(), " and ", values[i].scalar_type());
  }
}

void check_fp8_scale_now(const at::Tensor& x, const at::Tensor& slot, double margin) {
  constexpr const char* kOp = "hrm::fp8_scale_now";
  check_x(kOp, x, slot);
  TORCH_CHECK(margin >= 0, kOp, ": margin must not be negative, got ", margin, " (x has shape ", x.sizes(), ")");
}

void fp8_raise_amax_(const at::Tensor& x, const at::Tensor& slot) {
  static const Op<void(const at::Tensor&, const at::Tensor&)> op("hrm::fp8_raise_amax_");
  op(x, slot);
}

void quantize_fp8_weights_(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                           const at::Tensor& slots, at::ScalarType compute) {
  static const Op<void(at::TensorList, at::TensorList, at::TensorList, const at::Tensor&, at::ScalarType)> op(
      "hrm::quantize_fp8_weights_");
  op(weights, values, transposed, slots, compute);
}

at::Tensor fp8_scale_now(const at::Tensor& x, const at::Tensor& slot, double margin) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, double)> op("hrm::fp8_scale_now");
  return op(x, slot, margin);
}

namespace {

void raise_amax_cpu(const at::Tensor& x, const at::Tensor& slot) {
  check_fp8_raise_amax(x, slot);
  reference::fp8_raise_amax_(x, slot);
}

void quantize_weights_cpu(at::TensorList weights, at::TensorList values, at::TensorList transposed,
                          const at::Tensor& slots, at::ScalarType compute) {
  check_quantize_fp8_weights(weights, values, transposed, slots, compute);
  reference::quantize_fp8_weights_(weights, values, transposed, slots, compute);
}

at::Tensor scale_now_cpu(const at::Tensor& x, const at::Tensor& slot, double margin) {
  check_fp8_scale_now(x, slot, margin);
  return reference::fp8_scale_now(x, slot, margin);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("fp8_raise_amax_(Tensor x, Tensor(a!) slot) -> ()");
  m.def(
      "quantize_fp8_weights_(Tensor[] weights, Tensor(a!)[] values, Tensor(b!)[] transposed, Tensor(c!) slots, "
      "ScalarType compute) -> ()");
  m.def("fp8_scale_now(Tensor x, Tensor(a!) slot, float margin) -> Tensor");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("fp8_raise_amax_", &raise_amax_cpu);
  m.impl("quantize_fp8_weights_", &quantize_weights_cpu);
  m.impl("fp8_scale_now", &scale_now_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  for (const char* op : {"fp8_raise_amax_", "quantize_fp8_weights_", "fp8_scale_now"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}

}  // namespace hrm::ops
