#include "hrm/ops/fp8.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/quantized/fp8_impl.h"

namespace hrm::ops {
namespace {

bool is_plain(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

void check_slot(const char* op, const char* name, const at::Tensor& slot, const at::Tensor& like) {
  TORCH_CHECK(slot.dim() == 1 && slot.size(0) == 4 && slot.scalar_type() == at::kFloat && slot.is_contiguous() &&
                  slot.device() == like.device(),
              op, ": ", name, " must be 4 contiguous float32 values on ", like.device(), ", got ", slot.scalar_type(),
              " of shape ", slot.sizes(), " with strides ", slot.strides(), " on ", slot.device());
}

void check_plain(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK(is_plain(tensor.scalar_type()), op, ": ", name, " must be float32, bfloat16 or float16, got ",
              tensor.scalar_type(), " (shape ", tensor.sizes(), ")");
}

void check_product(const char* op, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                   const at::Tensor& weight_slot, at::ScalarType dtype) {
  TORCH_CHECK(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) && weight.size(1) % 16 == 0 &&
                  weight.size(0) % 16 == 0 && weight.numel() > 0,
              op, ": x (..., K) and weight (N, K) with K and N multiples of 16 do not fit, got ", x.sizes(), " and ",
              weight.sizes());
  TORCH_CHECK(x.scalar_type() == at::kFloat8_e4m3fn && weight.scalar_type() == at::kFloat8_e4m3fn, op,
              ": x and weight must be Float8_e4m3fn, got ", x.scalar_type(), " and ", weight.scalar_type(), " (shapes ",
              x.sizes(), " and ", weight.sizes(), ")");
  TORCH_CHECK(x.device() == weight.device(), op, ": x is on ", x.device(), ", weight on ", weight.device(), " (shapes ",
              x.sizes(), " and ", weight.sizes(), ")");
  TORCH_CHECK(is_plain(dtype), op, ": the result is float32, bfloat16 or float16, not ", dtype, " (x has shape ",
              x.sizes(), ")");
  check_slot(op, "x_slot", x_slot, x);
  check_slot(op, "weight_slot", weight_slot, x);
}

}  // namespace

void check_quantize_fp8(const at::Tensor& x, const at::Tensor& slot) {
  check_plain("hrm::quantize_fp8", "x", x);
  check_slot("hrm::quantize_fp8", "slot", slot, x);
}

void check_quantize_many_fp8(at::TensorList from, at::TensorList to, const at::Tensor& slots) {
  constexpr const char* kOp = "hrm::quantize_fp8_";
  const auto count = static_cast<int64_t>(from.size());
  TORCH_CHECK(from.size() == to.size() && slots.dim() == 2 && slots.size(0) == count && slots.size(1) == 4, kOp,
              ": as many tensors as results and slots (n, 4) are needed, got ", from.size(), ", ", to.size(), " and ",
              slots.sizes());
  TORCH_CHECK(slots.scalar_type() == at::kFloat && slots.is_contiguous(), kOp, ": slots must be contiguous float32, ",
              "got ", slots.scalar_type(), " of shape ", slots.sizes(), " with strides ", slots.strides());
  for (size_t i = 0; i < from.size(); ++i) {
    check_plain(kOp, "from", from[i]);
    TORCH_CHECK(from[i].scalar_type() == from[0].scalar_type(), kOp, ": from[", i, "] is ", from[i].scalar_type(),
                ", from[0] ", from[0].scalar_type(), " (shape ", from[i].sizes(), ")");
    TORCH_CHECK(to[i].scalar_type() == at::kFloat8_e4m3fn && to[i].is_contiguous() && to[i].sizes() == from[i].sizes(),
                kOp, ": to[", i, "] must be contiguous Float8_e4m3fn of shape ", from[i].sizes(), ", got ",
                to[i].scalar_type(), " of shape ", to[i].sizes(), " with strides ", to[i].strides());
    TORCH_CHECK(to[i].device() == from[i].device() && slots.device() == from[i].device(), kOp, ": from[", i, "] is on ",
                from[i].device(), ", to[", i, "] on ", to[i].device(), ", slots on ", slots.device());
  }
}

void check_add_fp8(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot) {
  constexpr const char* kOp = "hrm::add_fp8";
  TORCH_CHECK(a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && a.device() == b.device(), kOp,
              ": a and b must have one shape, dtype and device, got ", a.sizes(), " ", a.scalar_type(), " on ",
              a.device(), " and ", b.sizes(), " ", b.scalar_type(), " on ", b.device());
  check_plain(kOp, "a", a);
  check_slot(kOp, "slot", slot, a);
}

void check_linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                      const at::Tensor& weight_slot, at::ScalarType dtype) {
  check_product("hrm::linear_fp8", x, weight, x_slot, weight_slot, dtype);
}

void check_linear_swiglu_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                             const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  constexpr const char* kOp = "hrm::linear_swiglu_fp8";
  check_product(kOp, x, weight, x_slot, weight_slot, dtype);
  TORCH_CHECK(weight.size(0) % 32 == 0, kOp, ": weight (2F, K) needs an F that is a multiple of 16, got ",
              weight.sizes());
  check_slot(kOp, "act_slot", act_slot, x);
}

void check_linear_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                               const at::Tensor& weight_slot, const at::Tensor& residual, double eps,
                               const OptionalTensor& y_slot) {
  constexpr const char* kOp = "hrm::linear_rms_norm_fp8";
  check_product(kOp, x, weight, x_slot, weight_slot, residual.scalar_type());
  TORCH_CHECK(residual.dim() == x.dim() && residual.size(-1) == weight.size(0) &&
                  residual.sizes().slice(0, x.dim() - 1) == x.sizes().slice(0, x.dim() - 1) &&
                  residual.device() == x.device(),
              kOp, ": x (..., K), weight (D, K) and residual (..., D) do not fit, got ", x.sizes(), ", ",
              weight.sizes(), " and ", residual.sizes(), " on ", residual.device());
  TORCH_CHECK(eps > 0, kOp, ": eps must be positive, got ", eps);
  if (y_slot) check_slot(kOp, "y_slot", *y_slot, x);
}

void check_attention_fp8(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin,
                         const at::Tensor& slot) {
  constexpr const char* kOp = "hrm::attention_fp8";
  check_attention(kOp, qkv, heads, cos, sin);
  check_plain(kOp, "qkv", qkv);
  check_slot(kOp, "slot", slot, qkv);
}

void check_fp8_update_scales(const at::Tensor& slots, const at::Tensor& history, double margin) {
  constexpr const char* kOp = "hrm::fp8_update_scales_";
  TORCH_CHECK(slots.dim() == 2 && (slots.size(1) == 4 || slots.size(1) == 8) && history.dim() == 2 &&
                  history.size(0) == slots.size(0) && history.size(1) >= 1,
              kOp, ": slots (n, 4) or (n, 8) and history (n, H) do not fit, got ", slots.sizes(), " and ",
              history.sizes());
  TORCH_CHECK(slots.scalar_type() == at::kFloat && history.scalar_type() == at::kFloat && slots.is_contiguous() &&
                  history.is_contiguous() && slots.device() == history.device(),
              kOp, ": slots and history must be contiguous float32 on one device, got ", slots.scalar_type(), " on ",
              slots.device(), " and ", history.scalar_type(), " on ", history.device(), " (shapes ", slots.sizes(),
              " and ", history.sizes(), ")");
  TORCH_CHECK(margin >= 0, kOp, ": margin must not be negative, got ", margin);
}

at::Tensor make_fp8_slots(int64_t count, at::Device device) {
  const at::Tensor slots = at::zeros({count, 4}, at::device(device).dtype(at::kFloat));
  slots.narrow(1, 0, 2).fill_(1);
  return slots;
}

at::Tensor quantize_fp8(const at::Tensor& x, const at::Tensor& slot) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&)> op("hrm::quantize_fp8");
  return op(x, slot);
}

void quantize_fp8_(at::TensorList from, at::TensorList to, const at::Tensor& slots) {
  static const Op<void(at::TensorList, at::TensorList, const at::Tensor&)> op("hrm::quantize_fp8_");
  op(from, to, slots);
}

std::tuple<at::Tensor, at::Tensor> add_fp8(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&)> op(
      "hrm::add_fp8");
  return op(a, b, slot);
}

at::Tensor linear_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                      const at::Tensor& weight_slot, at::ScalarType dtype) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             at::ScalarType)>
      op("hrm::linear_fp8");
  return op(x, weight, x_slot, weight_slot, dtype);
}

at::Tensor linear_swiglu_fp8(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                             const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, at::ScalarType)>
      op("hrm::linear_swiglu_fp8");
  return op(x, weight, x_slot, weight_slot, act_slot, dtype);
}

std::tuple<at::Tensor, at::Tensor> linear_rms_norm_fp8(const at::Tensor& x, const at::Tensor& weight,
                                                       const at::Tensor& x_slot, const at::Tensor& weight_slot,
                                                       const at::Tensor& residual, double eps,
                                                       const OptionalTensor& y_slot) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                     const at::Tensor&, const at::Tensor&, double,
                                                     const OptionalTensor&)>
      op("hrm::linear_rms_norm_fp8");
  return op(x, weight, x_slot, weight_slot, residual, eps, y_slot);
}

at::Tensor attention_fp8(const at::Tensor& qkv, int64_t heads, const at::Tensor& cos, const at::Tensor& sin,
                         const at::Tensor& slot) {
  static const Op<at::Tensor(const at::Tensor&, int64_t, const OptionalTensor&, const OptionalTensor&,
                             const at::Tensor&)>
      op("hrm::attention_fp8");
  return op(qkv, heads, optional_tensor(cos), optional_tensor(sin), slot);
}

void fp8_update_scales_(const at::Tensor& slots, const at::Tensor& history, double margin) {
  static const Op<void(const at::Tensor&, const at::Tensor&, double)> op("hrm::fp8_update_scales_");
  op(slots, history, margin);
}

namespace {

at::Tensor quantize_cpu(const at::Tensor& x, const at::Tensor& slot) {
  check_quantize_fp8(x, slot);
  return reference::quantize_fp8(x, slot);
}

void quantize_many_cpu(at::TensorList from, at::TensorList to, const at::Tensor& slots) {
  check_quantize_many_fp8(from, to, slots);
  reference::quantize_fp8_(from, to, slots);
}

std::tuple<at::Tensor, at::Tensor> add_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot) {
  check_add_fp8(a, b, slot);
  return reference::add_fp8(a, b, slot);
}

at::Tensor fp8_linear_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                          const at::Tensor& weight_slot, at::ScalarType dtype) {
  check_linear_fp8(x, weight, x_slot, weight_slot, dtype);
  return reference::linear_fp8(x, weight, x_slot, weight_slot, dtype);
}

at::Tensor fp8_linear_swiglu_cpu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                                 const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  check_linear_swiglu_fp8(x, weight, x_slot, weight_slot, act_slot, dtype);
  return reference::linear_swiglu_fp8(x, weight, x_slot, weight_slot, act_slot, dtype);
}

std::tuple<at::Tensor, at::Tensor> fp8_linear_rms_norm_cpu(const at::Tensor& x, const at::Tensor& weight,
                                                           const at::Tensor& x_slot, const at::Tensor& weight_slot,
                                                           const at::Tensor& residual, double eps,
                                                           const OptionalTensor& y_slot) {
  check_linear_rms_norm_fp8(x, weight, x_slot, weight_slot, residual, eps, y_slot);
  return reference::linear_rms_norm_fp8(x, weight, x_slot, weight_slot, residual, eps, y_slot);
}

at::Tensor fp8_attention_cpu(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos, const OptionalTensor& sin,
                             const at::Tensor& slot) {
  check_attention_fp8(qkv, heads, cos, sin, slot);
  return reference::attention_fp8(qkv, heads, cos, sin, slot);
}

void update_scales_cpu(const at::Tensor& slots, const at::Tensor& history, double margin) {
  check_fp8_update_scales(slots, history, margin);
  reference::fp8_update_scales_(slots, history, margin);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("quantize_fp8(Tensor x, Tensor(a!) slot) -> Tensor");
  m.def("quantize_fp8_(Tensor[] from, Tensor(a!)[] to, Tensor(b!) slots) -> ()");
  m.def("add_fp8(Tensor a, Tensor b, Tensor(a!) slot) -> (Tensor sum, Tensor sum8)");
  m.def("linear_fp8(Tensor x, Tensor weight, Tensor x_slot, Tensor weight_slot, ScalarType dtype) -> Tensor");
  m.def(
      "linear_swiglu_fp8(Tensor x, Tensor weight, Tensor x_slot, Tensor weight_slot, Tensor(a!) act_slot, ScalarType "
      "dtype) -> Tensor");
  m.def(
      "linear_rms_norm_fp8(Tensor x, Tensor weight, Tensor x_slot, Tensor weight_slot, Tensor residual, float eps, "
      "Tensor(a!)? y_slot) -> (Tensor y, Tensor y8)");
  m.def("attention_fp8(Tensor(a!) qkv, int heads, Tensor? cos, Tensor? sin, Tensor(b!) slot) -> Tensor");
  m.def("fp8_update_scales_(Tensor(a!) slots, Tensor(b!) history, float margin) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("quantize_fp8", &quantize_cpu);
  m.impl("quantize_fp8_", &quantize_many_cpu);
  m.impl("add_fp8", &add_cpu);
  m.impl("linear_fp8", &fp8_linear_cpu);
  m.impl("linear_swiglu_fp8", &fp8_linear_swiglu_cpu);
  m.impl("linear_rms_norm_fp8", &fp8_linear_rms_norm_cpu);
  m.impl("attention_fp8", &fp8_attention_cpu);
  m.impl("fp8_update_scales_", &update_scales_cpu);
}

}  // namespace hrm::ops
