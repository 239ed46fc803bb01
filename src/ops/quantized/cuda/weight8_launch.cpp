#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/common/sizes.h"
#include "ops/cuda/launcher.h"
#include "ops/quantized/cuda/weight8.h"
#include "ops/quantized/fp8_rows_impl.h"
#include "ops/quantized/weight8_impl.h"

namespace hrm::ops {
namespace {

static_assert(cuda::kWeight8MostRows == kWeight8Rows);

cuda::Weight8Format weight8_format(const at::Tensor& values) {
  return values.scalar_type() == at::kChar ? cuda::Weight8Format::int8 : cuda::Weight8Format::e4m3;
}

const uint8_t* weight8_data(const at::Tensor& values) {
  return static_cast<const uint8_t*>(values.const_data_ptr());
}

Weight8Parts quantize_weight8_cuda(const at::Tensor& weight, at::ScalarType format) {
  check_quantize_weight8(weight, format);
  const c10::cuda::CUDAGuard guard(weight.device());
  if (!cuda::use_kernel(weight)) {
    const Weight8 plain = reference::quantize_weight8(weight, format);
    return {plain.values, plain.scales};
  }
  const at::Tensor from = weight.contiguous();
  const at::Tensor values = at::empty(from.sizes(), from.options().dtype(format));
  const at::Tensor scales = at::empty({from.size(0)}, from.options().dtype(at::kFloat));
  cuda::Weight8Quantize params{};
  params.weight = from.const_data_ptr();
  params.values = static_cast<uint8_t*>(values.mutable_data_ptr());
  params.scales = scales.mutable_data_ptr<float>();
  params.rows = from.size(0);
  params.inner = from.size(1);
  params.format = weight8_format(values);
  params.element = cuda::element_of(from);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {values, scales};
}

void dequantize_weight8_cuda_(const at::Tensor& out, const at::Tensor& values, const at::Tensor& scales) {
  const Weight8 from{.values = values, .scales = scales};
  check_dequantize_weight8(out, from);
  const c10::cuda::CUDAGuard guard(out.device());
  if (!cuda::use_kernel(out)) return reference::dequantize_weight8_(out, from);
  cuda::Weight8Dequantize params{};
  params.values = weight8_data(values);
  params.scales = scales.const_data_ptr<float>();
  params.out = out.mutable_data_ptr();
  params.rows = out.size(0);
  params.inner = out.size(1);
  params.format = weight8_format(values);
  params.element = cuda::element_of(out);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

RowsProduct rows_product() {
  return backend() == Backend::fused ? &fp8_rows_product_by_library : &fp8_rows_product;
}

at::Tensor linear_weight8_grad_x_cuda(const at::Tensor& grad, const at::Tensor& values, const at::Tensor& scales,
                                      const OptionalTensor& transposed, const OptionalTensor& ones,
                                      const OptionalTensor& workspace, bool fp8_products) {
  const Weight8 weight = weight8_of(values, scales, transposed, ones);
  check_linear_weight8_grad_x(grad, weight, workspace);
  const c10::cuda::CUDAGuard guard(grad.device());
  if (fp8_products && takes_fp8_rows(grad, weight)) {
    at::Tensor grad_x = linear_weight8_grad_x_by_rows(grad, weight, workspace, rows_product());
    if (grad_x.defined()) return grad_x;
  }
  return linear_weight8_grad_x_dequantized(grad, weight, workspace);
}

at::Tensor linear_weight8_cuda(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales,
                               const OptionalTensor& residual, const OptionalTensor& workspace, bool fp8_products) {
  const Weight8 weight{.values = values, .scales = scales};
  check_linear_weight8(x, weight, residual, workspace);
  const c10::cuda::CUDAGuard guard(x.device());
  if (fp8_products && takes_fp8_rows(x, weight)) {
    at::Tensor y = linear_weight8_by_rows(x, weight, residual, rows_product());
    if (y.defined()) return y;
  }
  cuda::Weight8Linear params{};
  params.rows = x.numel() / values.size(1);
  params.inner = values.size(1);
  params.width = values.size(0);
  if (cuda::use_kernel(x)) params.element = cuda::element_of(x);
  if (!cuda::use_kernel(x) || !fits(params) || !cuda::is_aligned(values) ||
      at::cuda::getDeviceProperties(x.get_device())->major < 8) {
    return linear_weight8_dequantized(x, weight, residual, workspace);
  }
  const at::Tensor rows = cuda::aligned_rows(x), added = residual ? residual->contiguous() : at::Tensor();
  const at::Tensor out = at::empty(with_last_size(x, params.width), x.options());
  params.x = rows.const_data_ptr();
  params.values = weight8_data(values);
  params.scales = scales.const_data_ptr<float>();
  params.residual = added.defined() ? added.const_data_ptr() : nullptr;
  params.out = out.mutable_data_ptr();
  params.format = weight8_format(values);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("quantize_weight8", &quantize_weight8_cuda);
  m.impl("dequantize_weight8_", &dequantize_weight8_cuda_);
  m.impl("linear_weight8", &linear_weight8_cuda);
  m.impl("linear_weight8_grad_x", &linear_weight8_grad_x_cuda);
}

}  // namespace hrm::ops
