// The matrix products: on Hopper a kernel of ours where it is faster, otherwise cuBLASLt with tuned algorithms
// (blaslt.h) or cuBLAS through ATen.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>

#include "hrm/ops/backend.h"
#include "ops/common/sizes.h"
#include "ops/cuda/launcher.h"
#include "ops/linear/cuda/blaslt.h"
#include "ops/linear/cuda/skinny_gemm_product.h"
#include "ops/linear/cuda/sm90/linear_epilogues.h"
#include "ops/linear/linear_impl.h"

namespace hrm::ops {
namespace {

std::atomic<bool> g_always_tiles{false};

}  // namespace

void set_always_tiles(bool always) {
  g_always_tiles = always;
}

bool always_tiles() {
  return g_always_tiles;
}

namespace {

bool is_faster(const cuda::sm90::LinearForward& p) {
  if (p.width % 256 != 0 || p.inner % 64 != 0) return false;
  // Of long sums cuBLAS hides the loads better: 16,384 x 2,304 with an inner width of 768 in 80 us instead of 87.
  if (p.inner > 512) return false;
  return cuda::sm90::fills_the_chip(p.rows, p.width);
}

// x @ weight^T by our kernel; undefined where it does not take the input or cuBLAS is faster.
at::Tensor product_by_tiles(const at::Tensor& x, const at::Tensor& weight) {
  if (!cuda::use_kernel(x) || x.numel() == 0) return {};
  const c10::cuda::CUDAGuard guard(x.device());
  cuda::sm90::LinearForward params{};
  params.rows = x.numel() / x.size(-1);
  params.width = weight.size(0);
  params.inner = x.size(-1);
  params.element = cuda::element_of(x);
  if (!cuda::sm90::fits(params) || !(g_always_tiles || is_faster(params))) return {};
  if (!cuda::is_aligned(x) || !cuda::is_aligned(weight)) return {};
  at::Tensor out = at::empty(with_last_size(x, params.width), x.options());
  params.x = x.const_data_ptr();
  params.weight = weight.const_data_ptr();
  params.out = out.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::sm90::launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

at::Tensor linear_cuda(const at::Tensor& x, const at::Tensor& weight_compute, const at::Tensor& master,
                       const OptionalTensor& bias, const OptionalTensor& grad_weight, const OptionalTensor& grad_bias) {
  check_linear(x, weight_compute, master, bias, grad_weight, grad_bias);
  if (!bias) {
    if (const at::Tensor out = g_always_tiles ? at::Tensor() : cuda::skinny_gemm(x, weight_compute); out.defined()) {
      return out;
    }
    if (const at::Tensor out = product_by_tiles(x, weight_compute); out.defined()) return out;
  }
  return linear_forward(x, weight_compute, bias);
}

void linear_accumulate_cuda(const at::Tensor& grad_weight, const at::Tensor& grad_y, const at::Tensor& x) {
  check_linear_accumulate(grad_weight, grad_y, x);
  const c10::cuda::CUDAGuard guard(x.device());
  if (cuda::tuned_gemm(grad_weight, grad_y.t(), x, /*accumulates=*/true)) return;
  const bool narrow = x.scalar_type() != grad_weight.scalar_type();
  if (backend() == Backend::reference || !narrow) return reference::linear_accumulate_(grad_weight, grad_y, x);
  // 16-bit factors, float32 sums, added to the buffer in the product's epilogue: one pass over grad_weight.
  const at::NoGradGuard no_grad;
  at::Tensor out = grad_weight;
  at::addmm_out(out, grad_weight, grad_y.t(), x, at::kFloat);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("linear", &linear_cuda);
  m.impl("linear_accumulate_", &linear_accumulate_cuda);
}

}  // namespace hrm::ops
