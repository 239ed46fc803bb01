// Quantisation to e4m3 and products of e4m3 tensors on a GPU. The products are our Hopper kernels where they fit; else
// the library's 8-bit product with the other steps as ops of their own; on a device without it the reference.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "hrm/base/log.h"
#include "hrm/ops/attention.h"
#include "hrm/ops/rms_norm.h"
#include "hrm/ops/swiglu.h"
#include "ops/common/sizes.h"
#include "ops/cuda/launcher.h"
#include "ops/linear/cuda/sm90/linear_fp8.h"
#include "ops/linear/cuda/sm90/linear_rms_norm_fp8.h"
#include "ops/quantized/cuda/fp8.h"
#include "ops/quantized/fp8_impl.h"

namespace hrm::ops {
namespace {

std::atomic<bool> g_fp8_portable{false};

}  // namespace

void set_portable_fp8(bool portable) {
  g_fp8_portable = portable;
}

namespace {

at::Tensor empty_fp8(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options().dtype(at::kFloat8_e4m3fn));
}

// Whether tensor cores multiply e4m3 here and give `dtype`; otherwise the reference does.
bool use_fp8_products(const at::Tensor& x, at::ScalarType dtype) {
  if (backend() != Backend::fused || (dtype != at::kBFloat16 && dtype != at::kHalf)) return false;
  const auto* device = at::cuda::getDeviceProperties(x.get_device());
  return device->major * 10 + device->minor >= 89;
}

// Starts the Hopper kernel; false where it does not take this input.
template <class Params>
bool launch_hopper(const Params& params) {
  if (g_fp8_portable || !cuda::sm90::fits(params)) return false;
  C10_CUDA_CHECK(cuda::sm90::launch(params, c10::cuda::getCurrentCUDAStream()));
  return true;
}

// (rows, width, inner, dtype) of products that the library refused.
using ProductSizes = std::tuple<int64_t, int64_t, int64_t, at::ScalarType>;

class RefusedProducts {
 public:
  bool contains(const ProductSizes& sizes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return sizes_.count(sizes) > 0;
  }
  void add(const ProductSizes& sizes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!sizes_.insert(sizes).second) return;
    log::warn("cuBLAS refuses an 8-bit product of ", std::get<0>(sizes), " x ", std::get<2>(sizes), " and ",
              std::get<1>(sizes), " x ", std::get<2>(sizes), " values; plain ATen does it, slower");
  }

 private:
  std::mutex mutex_;
  std::set<ProductSizes> sizes_;
};

// The library's product, or the reference where it refuses the sizes; both operands aligned_rows(). It reads the scales
// when it runs, and wants their addresses aligned to 16 bytes: hence the copies.
at::Tensor library_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                           const at::Tensor& weight_slot, at::ScalarType dtype) {
  static RefusedProducts refused;
  const at::Tensor rows = x.view({-1, x.size(-1)});
  const ProductSizes sizes{rows.size(0), weight.size(0), weight.size(1), dtype};
  if (!refused.contains(sizes)) {
    try {
      return at::_scaled_mm(rows, weight.t(), x_slot.select(0, 1).clone(), weight_slot.select(0, 1).clone(),
                            /*bias=*/{}, /*scale_result=*/{}, dtype)
          .view(with_last_size(x, weight.size(0)));
    } catch (const c10::Error& error) {
      if (error.msg().find("CUBLAS_STATUS_NOT_SUPPORTED") == std::string::npos) throw;
      refused.add(sizes);
    }
  }
  return reference::linear_fp8(x, weight, x_slot, weight_slot, dtype);
}

at::Tensor quantize_by_kernel(const at::Tensor& x, const at::Tensor& slot) {
  const at::Tensor from = x.contiguous();
  const at::Tensor to = empty_fp8(x.sizes(), from);
  cuda::QuantizeFp8 params{};
  params.from = from.const_data_ptr();
  params.to = to.mutable_data_ptr();
  params.slot = slot.mutable_data_ptr<float>();
  params.size = from.numel();
  params.element = cuda::element_of(from);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return to;
}

at::Tensor quantize_cuda(const at::Tensor& x, const at::Tensor& slot) {
  check_quantize_fp8(x, slot);
  const c10::cuda::CUDAGuard guard(x.device());
  return cuda::use_kernel(x) ? quantize_by_kernel(x, slot) : reference::quantize_fp8(x, slot);
}

void quantize_many_cuda(at::TensorList from, at::TensorList to, const at::Tensor& slots) {
  check_quantize_many_fp8(from, to, slots);
  if (from.empty()) return;
  const c10::cuda::CUDAGuard guard(slots.device());
  if (!cuda::use_kernel(from[0])) return reference::quantize_fp8_(from, to, slots);
  std::vector<at::Tensor> rows;  // holds copies until the launches are queued
  for (size_t first = 0; first < from.size(); first += cuda::kFp8MaxTensors) {
    cuda::QuantizeManyFp8 params{};
    params.slots = slots.mutable_data_ptr<float>() + cuda::kFp8SlotFloats * first;
    params.element = cuda::element_of(from[0]);
    for (size_t i = first; i < std::min<size_t>(first + cuda::kFp8MaxTensors, from.size()); ++i) {
      rows.push_back(from[i].contiguous());
      params.add(rows.back().const_data_ptr(), to[i].mutable_data_ptr(), rows.back().numel());
    }
    C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  }
}

std::tuple<at::Tensor, at::Tensor> add_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& slot) {
  check_add_fp8(a, b, slot);
  const c10::cuda::CUDAGuard guard(a.device());
  if (!cuda::use_kernel(a)) return reference::add_fp8(a, b, slot);
  const at::Tensor a_rows = a.contiguous(), b_rows = b.contiguous();
  const at::Tensor sum = at::empty(a.sizes(), a_rows.options()), sum8 = empty_fp8(a.sizes(), a_rows);
  cuda::AddFp8 params{};
  params.a = a_rows.const_data_ptr();
  params.b = b_rows.const_data_ptr();
  params.sum = sum.mutable_data_ptr();
  params.sum8 = sum8.mutable_data_ptr();
  params.slot = slot.mutable_data_ptr<float>();
  params.size = a.numel();
  params.element = cuda::element_of(a_rows);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {sum, sum8};
}

at::Tensor fp8_linear_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                           const at::Tensor& weight_slot, at::ScalarType dtype) {
  check_linear_fp8(x, weight, x_slot, weight_slot, dtype);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!use_fp8_products(x, dtype)) return reference::linear_fp8(x, weight, x_slot, weight_slot, dtype);
  const at::Tensor x_rows = cuda::aligned_rows(x), weight_rows = cuda::aligned_rows(weight);
  at::Tensor out = at::empty(with_last_size(x, weight.size(0)), x.options().dtype(dtype));
  if (out.numel() == 0) return out;
  cuda::sm90::LinearFp8 params{};
  params.x = x_rows.const_data_ptr();
  params.weight = weight_rows.const_data_ptr();
  params.x_slot = x_slot.const_data_ptr<float>();
  params.weight_slot = weight_slot.const_data_ptr<float>();
  params.out = out.mutable_data_ptr();
  params.rows = x.numel() / x.size(-1);
  params.width = weight.size(0);
  params.inner = x.size(-1);
  params.element = cuda::element_of(dtype);
  if (launch_hopper(params)) return out;
  out.reset();  // what follows makes its own; so below
  return library_product(x_rows, weight_rows, x_slot, weight_slot, dtype);
}

at::Tensor fp8_linear_swiglu_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& x_slot,
                                  const at::Tensor& weight_slot, const at::Tensor& act_slot, at::ScalarType dtype) {
  check_linear_swiglu_fp8(x, weight, x_slot, weight_slot, act_slot, dtype);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!use_fp8_products(x, dtype)) {
    return reference::linear_swiglu_fp8(x, weight, x_slot, weight_slot, act_slot, dtype);
  }
  const at::Tensor x_rows = cuda::aligned_rows(x), weight_rows = cuda::aligned_rows(weight);
  at::Tensor act = empty_fp8(with_last_size(x, weight.size(0) / 2), x);
  if (act.numel() == 0) return act;
  cuda::sm90::LinearSwigluFp8 params{};
  params.x = x_rows.const_data_ptr();
  params.weight = weight_rows.const_data_ptr();
  params.x_slot = x_slot.const_data_ptr<float>();
  params.weight_slot = weight_slot.const_data_ptr<float>();
  params.act_slot = act_slot.mutable_data_ptr<float>();
  params.act = act.mutable_data_ptr();
  params.rows = x.numel() / x.size(-1);
  params.width = weight.size(0) / 2;
  params.inner = x.size(-1);
  params.element = cuda::element_of(dtype);
  if (launch_hopper(params)) return act;
  act.reset();
  return quantize_by_kernel(swiglu(library_product(x_rows, weight_rows, x_slot, weight_slot, dtype)), act_slot);
}

std::tuple<at::Tensor, at::Tensor> fp8_linear_rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                            const at::Tensor& x_slot, const at::Tensor& weight_slot,
                                                            const at::Tensor& residual, double eps,
                                                            const OptionalTensor& y_slot) {
  check_linear_rms_norm_fp8(x, weight, x_slot, weight_slot, residual, eps, y_slot);
  const c10::cuda::CUDAGuard guard(x.device());
  const at::ScalarType dtype = residual.scalar_type();
  if (!use_fp8_products(x, dtype)) {
    return reference::linear_rms_norm_fp8(x, weight, x_slot, weight_slot, residual, eps, y_slot);
  }
  const at::Tensor x_rows = cuda::aligned_rows(x), weight_rows = cuda::aligned_rows(weight),
                   residual_rows = cuda::aligned_rows(residual);
  at::Tensor y = at::empty(residual.sizes(), residual_rows.options());
  at::Tensor y8 = empty_fp8(y_slot ? residual.sizes() : at::IntArrayRef{0}, x);
  if (y.numel() == 0) return {y, y8};
  cuda::sm90::LinearRmsNormFp8 params{};
  params.x = x_rows.const_data_ptr();
  params.weight = weight_rows.const_data_ptr();
  params.x_slot = x_slot.const_data_ptr<float>();
  params.weight_slot = weight_slot.const_data_ptr<float>();
  params.residual = residual_rows.const_data_ptr();
  params.y = y.mutable_data_ptr();
  if (y_slot) {
    params.y8 = y8.mutable_data_ptr();
    params.y_slot = y_slot->mutable_data_ptr<float>();
  }
  params.rows = x.numel() / x.size(-1);
  params.width = weight.size(0);
  params.inner = x.size(-1);
  params.eps = static_cast<float>(eps);
  params.element = cuda::element_of(dtype);
  if (launch_hopper(params)) return {y, y8};
  y.reset();
  if (y_slot) y8.reset();
  y = rms_norm_residual(library_product(x_rows, weight_rows, x_slot, weight_slot, dtype), residual_rows, eps);
  if (y_slot) y8 = quantize_by_kernel(y, *y_slot);
  return {y, y8};
}

at::Tensor fp8_attention_cuda(const at::Tensor& qkv, int64_t heads, const OptionalTensor& cos,
                              const OptionalTensor& sin, const at::Tensor& slot) {
  check_attention_fp8(qkv, heads, cos, sin, slot);
  const c10::cuda::CUDAGuard guard(qkv.device());
  if (!cuda::use_kernel(qkv)) return reference::attention_fp8(qkv, heads, cos, sin, slot);
  if (const at::Tensor out = attention_fp8_by_kernel(qkv, heads, cos, sin, slot); out.defined()) return out;
  return quantize_by_kernel(attention_(qkv, heads, cos.value_or(at::Tensor()), sin.value_or(at::Tensor())), slot);
}

void update_scales_cuda(const at::Tensor& slots, const at::Tensor& history, double margin) {
  check_fp8_update_scales(slots, history, margin);
  const c10::cuda::CUDAGuard guard(slots.device());
  if (!cuda::use_kernel(slots)) return reference::fp8_update_scales_(slots, history, margin);
  cuda::UpdateFp8Scales params{};
  params.slots = slots.mutable_data_ptr<float>();
  params.history = history.mutable_data_ptr<float>();
  params.count = slots.size(0);
  params.length = history.size(1);
  params.margin = static_cast<float>(margin);
  params.slot_floats = static_cast<int>(slots.size(1));
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("quantize_fp8", &quantize_cuda);
  m.impl("quantize_fp8_", &quantize_many_cuda);
  m.impl("add_fp8", &add_cuda);
  m.impl("linear_fp8", &fp8_linear_cuda);
  m.impl("linear_swiglu_fp8", &fp8_linear_swiglu_cuda);
  m.impl("linear_rms_norm_fp8", &fp8_linear_rms_norm_cuda);
  m.impl("attention_fp8", &fp8_attention_cuda);
  m.impl("fp8_update_scales_", &update_scales_cuda);
}

}  // namespace hrm::ops
