#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/linear/cuda/blaslt.h"
#include "ops/quantized/cuda/fp8_rows.h"
#include "ops/quantized/fp8_linear_impl.h"
#include "ops/quantized/fp8_rows_impl.h"

namespace hrm::ops {

bool library_multiplies_fp8_rows(at::Device device, at::ScalarType dtype) {
  if ((dtype != at::kBFloat16 && dtype != at::kHalf) || !device.is_cuda()) return false;
  const at::Device one = device.has_index() ? device : at::Device(at::kCUDA, c10::cuda::current_device());
  return at::cuda::getDeviceProperties(one.index())->major >= 9 && cuda::multiplies_scaled_rows(one, dtype);
}

at::Tensor fp8_rows_product_by_library(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                                       const at::Tensor& b_scales, at::ScalarType dtype,
                                       const OptionalTensor& residual) {
  const int64_t rows = a.size(0), columns = b.size(0), terms = a.size(1);
  if (rows == 0 || columns == 0 || terms == 0 || columns % 16 != 0 || terms % 16 != 0 || !cuda::is_aligned(a) ||
      !cuda::is_aligned(b) || !cuda::is_aligned(a_scales) || !cuda::is_aligned(b_scales) ||
      !library_multiplies_fp8_rows(a.device(), dtype)) {
    return {};
  }
  at::Tensor out = at::empty({rows, columns}, a.options().dtype(dtype));
  const cuda::GemmScales scales{a_scales.const_data_ptr<float>(), b_scales.const_data_ptr<float>(),
                                terms > kFp8FastTerms, /*rows=*/true};
  if (residual) {
    const at::Tensor added = residual->contiguous();
    if (cuda::scaled_gemm(out, a, b, /*accumulates=*/true, scales, added)) return out;
  }
  if (!cuda::scaled_gemm(out, a, b, /*accumulates=*/false, scales)) return {};
  return residual ? out.add_(*residual) : out;
}

namespace {

Fp8Rows quantize_fp8_rows_cuda(const at::Tensor& x, const OptionalTensor& factors) {
  check_quantize_fp8_rows(x, factors);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::quantize_fp8_rows(x, factors);
  const at::Tensor from = cuda::aligned_rows(x);
  const at::Tensor values = at::empty(from.sizes(), from.options().dtype(at::kFloat8_e4m3fn));
  const at::Tensor scales = at::empty({from.size(0)}, from.options().dtype(at::kFloat));
  cuda::QuantizeFp8Rows params{};
  params.from = from.const_data_ptr();
  params.factors = cuda::optional_floats(factors);
  params.values = static_cast<uint8_t*>(values.mutable_data_ptr());
  params.scales = scales.mutable_data_ptr<float>();
  params.rows = from.size(0);
  params.width = from.size(1);
  params.element = cuda::element_of(from);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {values, scales};
}

void transpose_fp8_cuda(const at::Tensor& out, const at::Tensor& ones, const at::Tensor& values) {
  check_transpose_fp8(out, ones, values);
  const c10::cuda::CUDAGuard guard(values.device());
  if (backend() != Backend::fused || values.numel() == 0 || values.size(0) % 16 != 0 || values.size(1) % 16 != 0 ||
      !cuda::is_aligned(values) || !cuda::is_aligned(out)) {
    return reference::transpose_fp8_(out, ones, values);
  }
  cuda::TransposeFp8 params{};
  params.from = static_cast<const uint8_t*>(values.const_data_ptr());
  params.to = static_cast<uint8_t*>(out.mutable_data_ptr());
  params.ones = ones.mutable_data_ptr<float>();
  params.rows = values.size(0);
  params.columns = values.size(1);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor fp8_rows_product_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_scales,
                                 const at::Tensor& b_scales, at::ScalarType dtype, const OptionalTensor& residual) {
  check_fp8_rows_product(a, b, a_scales, b_scales, dtype, residual);
  const c10::cuda::CUDAGuard guard(a.device());
  if (backend() == Backend::fused) {
    at::Tensor out = fp8_rows_product_by_library(a, b, a_scales, b_scales, dtype, residual);
    if (out.defined()) return out;
  }
  return reference::fp8_rows_product(a, b, a_scales, b_scales, dtype, residual);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("quantize_fp8_rows", &quantize_fp8_rows_cuda);
  m.impl("transpose_fp8_", &transpose_fp8_cuda);
  m.impl("fp8_rows_product", &fp8_rows_product_cuda);
}

}  // namespace hrm::ops
