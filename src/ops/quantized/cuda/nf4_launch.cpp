#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/common/sizes.h"
#include "ops/cuda/launcher.h"
#include "ops/quantized/cuda/nf4.h"
#include "ops/quantized/nf4_impl.h"

namespace hrm::ops {
namespace {

static_assert(cuda::kNf4Elements == kNf4Block && cuda::kNf4Magnitudes == kNf4AbsmaxBlock &&
              cuda::kNf4MostRows == kNf4Rows);

// For the parameters of a kernel.
template <class Params>
void set_weight(Params& params, const Nf4Tensor& from) {
  params.codes = from.codes.const_data_ptr<uint8_t>();
  if (from.absmax.scalar_type() == at::kFloat) {
    params.absmax = from.absmax.const_data_ptr<float>();
  } else {
    params.absmax_codes = from.absmax.const_data_ptr<uint8_t>();
    params.scales = from.scales.const_data_ptr<float>();
    params.offset = from.offset.const_data_ptr<float>();
  }
}

Nf4Parts nf4_quantize_cuda(const at::Tensor& weight, bool double_quantized) {
  check_nf4_quantize(weight);
  const c10::cuda::CUDAGuard guard(weight.device());
  Nf4Tensor q;
  if (cuda::use_kernel(weight)) {
    const at::Tensor from = weight.contiguous();
    const int64_t n = from.numel();
    const at::TensorOptions floats = from.options().dtype(at::kFloat);
    q = {.codes = at::empty({(n + 1) / 2}, floats.dtype(at::kByte)),
         .absmax = at::empty({nf4_blocks(n)}, floats),
         .scales = at::empty({0}, floats),
         .offset = at::empty({0}, floats)};
    cuda::Nf4Quantize params{};
    params.weight = from.const_data_ptr();
    params.codes = q.codes.mutable_data_ptr<uint8_t>();
    params.absmax = q.absmax.mutable_data_ptr<float>();
    params.count = n;
    params.element = cuda::element_of(from);
    C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
    // A 64th of the numbers, once in a model's life.
    if (double_quantized) reference::nf4_quantize_absmax(q);
  } else {
    q = reference::nf4_quantize(weight, double_quantized);
  }
  return {q.codes, q.absmax, q.scales, q.offset};
}

void nf4_dequantize_cuda_(const at::Tensor& out, const at::Tensor& codes, const at::Tensor& absmax,
                          const at::Tensor& scales, const at::Tensor& offset) {
  const Nf4Tensor from{.codes = codes, .absmax = absmax, .scales = scales, .offset = offset};
  check_nf4_dequantize(out, from);
  const c10::cuda::CUDAGuard guard(out.device());
  if (!cuda::use_kernel(out)) return reference::nf4_dequantize_(out, from);
  cuda::Nf4Dequantize params{};
  set_weight(params, from);
  params.out = out.mutable_data_ptr();
  params.count = out.numel();
  params.element = cuda::element_of(out);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor linear_nf4_cuda(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& absmax,
                           const at::Tensor& scales, const at::Tensor& offset, const at::Tensor& workspace,
                           const OptionalTensor& residual) {
  const Nf4Tensor weight{.codes = codes, .absmax = absmax, .scales = scales, .offset = offset};
  check_linear_nf4(x, weight, workspace, residual);
  const c10::cuda::CUDAGuard guard(x.device());
  cuda::Nf4Linear params{};
  params.inner = workspace.size(1);
  params.width = workspace.size(0);
  params.rows = x.numel() / params.inner;
  if (cuda::use_kernel(x)) params.element = cuda::element_of(x);
  if (!cuda::use_kernel(x) || !fits(params) || !cuda::is_aligned(codes) ||
      at::cuda::getDeviceProperties(x.get_device())->major < 8) {
    return linear_nf4_dequantized(x, weight, workspace, residual);
  }
  const at::Tensor rows = cuda::aligned_rows(x), added = residual ? residual->contiguous() : at::Tensor();
  const at::Tensor out = at::empty(with_last_size(x, params.width), x.options());
  set_weight(params, weight);
  params.x = rows.const_data_ptr();
  params.residual = added.defined() ? added.const_data_ptr() : nullptr;
  params.out = out.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("nf4_quantize", &nf4_quantize_cuda);
  m.impl("nf4_dequantize_", &nf4_dequantize_cuda_);
  m.impl("linear_nf4", &linear_nf4_cuda);
}

}  // namespace hrm::ops
