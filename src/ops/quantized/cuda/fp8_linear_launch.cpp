// 8-bit products of a training step on a GPU: the library's, or the reference where the device or the library has none.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/linear/cuda/blaslt.h"
#include "ops/quantized/cuda/fp8_pair.h"
#include "ops/quantized/fp8_linear_impl.h"

namespace hrm::ops {
namespace {

void pair_cuda(const at::Tensor& x, const OptionalTensor& values, const OptionalTensor& transposed,
               const at::Tensor& slot) {
  check_quantize_fp8_pair(x, values, transposed, slot);
  const c10::cuda::CUDAGuard guard(x.device());
  if (!cuda::use_kernel(x)) return reference::quantize_fp8_pair_(x, values, transposed, slot);
  const at::Tensor from = x.contiguous();
  cuda::QuantizeFp8Pair params{};
  params.from = from.const_data_ptr();
  params.values = values ? values->mutable_data_ptr() : nullptr;
  params.transposed = transposed ? transposed->mutable_data_ptr() : nullptr;
  params.slot = slot.mutable_data_ptr<float>();
  params.rows = from.size(0);
  params.columns = from.size(1);
  params.element = cuda::element_of(from);
  params.e5m2 = (values ? *values : *transposed).scalar_type() == at::kFloat8_e5m2;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

// Whether tensor cores multiply 8-bit floats here; otherwise the reference does.
bool use_products(const at::Tensor& a) {
  if (backend() != Backend::fused) return false;
  const auto* device = at::cuda::getDeviceProperties(a.get_device());
  return device->major * 10 + device->minor >= 89;
}

// out = a @ b^T times both inverse scales (+ out or, if it is there, sum, if `accumulates`). False where the library
// refuses.
bool scaled_product(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                    const at::Tensor& b_slot, bool accumulates, bool exact, const at::Tensor& sum = {}) {
  // The inverse scales that stand at addresses of whole 16 bytes.
  const cuda::GemmScales scales{a_slot.const_data_ptr<float>() + 4, b_slot.const_data_ptr<float>() + 4, exact};
  return cuda::scaled_gemm(out, a, b, accumulates, scales, sum);
}

at::Tensor product_cuda(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot, const at::Tensor& b_slot,
                        at::ScalarType dtype, const OptionalTensor& residual) {
  check_fp8_product("hrm::fp8_product", a, b, a_slot, b_slot);
  check_fp8_residual(a, b, dtype, residual);
  const c10::cuda::CUDAGuard guard(a.device());
  if (use_products(a) && a.numel() > 0) {
    const at::Tensor left = a.contiguous(), right = b.contiguous();
    at::Tensor out = at::empty({a.size(0), b.size(0)}, a.options().dtype(dtype));
    const at::Tensor sum = residual ? residual->contiguous() : at::Tensor();
    const bool exact = a.size(1) > kFp8FastTerms;
    if (scaled_product(out, left, right, a_slot, b_slot, /*accumulates=*/sum.defined(), exact, sum)) return out;
  }
  return reference::fp8_product(a, b, a_slot, b_slot, dtype, residual);
}

void accumulate_cuda(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_slot,
                     const at::Tensor& b_slot) {
  check_fp8_accumulate(grad, a, b, a_slot, b_slot);
  const c10::cuda::CUDAGuard guard(a.device());
  if (use_products(a) && a.numel() > 0 &&
      scaled_product(grad, a.contiguous(), b.contiguous(), a_slot, b_slot, /*accumulates=*/true, /*exact=*/true)) {
    return;
  }
  reference::fp8_accumulate_(grad, a, b, a_slot, b_slot);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("quantize_fp8_pair_", &pair_cuda);
  m.impl("fp8_product", &product_cuda);
  m.impl("fp8_accumulate_", &accumulate_cuda);
  m.impl("fp8_linear", &fp8_linear_forward);
}

}  // namespace hrm::ops
