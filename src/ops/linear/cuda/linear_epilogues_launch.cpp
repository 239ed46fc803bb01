// linear_swiglu and linear_rms_norm on a GPU.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "hrm/ops/rms_norm.h"
#include "ops/common/sizes.h"
#include "ops/cuda/launcher.h"
#include "ops/linear/cuda/skinny_gemm_product.h"
#include "ops/linear/cuda/sm90/linear_epilogues.h"
#include "ops/linear/linear_impl.h"
#include "ops/linear/linear_rms_norm_impl.h"
#include "ops/linear/linear_swiglu_impl.h"

namespace hrm::ops {
namespace {

// A counter for a launch whose blocks draw their tiles; undefined for one that is too short.
template <class Params>
at::Tensor counter_of_draws(Params& params, const at::TensorOptions& options) {
  if (!cuda::sm90::worth_draws(params)) return {};
  at::Tensor counter = at::zeros({1}, options.dtype(at::kInt));
  params.draws = static_cast<uint32_t*>(counter.mutable_data_ptr());
  return counter;
}

// act, and gate_up if `save`; none where the kernel does not take the input.
std::optional<std::tuple<at::Tensor, at::Tensor>> swiglu_by_kernel(const at::Tensor& x, const at::Tensor& weight,
                                                                   bool save) {
  if (!cuda::use_kernel(x) || x.numel() == 0) return {};
  cuda::sm90::LinearSwigluForward params{};
  params.rows = x.numel() / x.size(-1);
  params.width = weight.size(0) / 2;
  params.inner = x.size(-1);
  params.element = cuda::element_of(x);
  if (!cuda::sm90::fits(params)) return {};
  const at::Tensor x_rows = cuda::aligned_rows(x), weight_rows = cuda::aligned_rows(weight);
  at::Tensor act = at::empty(with_last_size(x, params.width), x_rows.options()), gate_up;
  if (save) gate_up = at::empty(with_last_size(x, 2 * params.width), x_rows.options());
  params.x = x_rows.const_data_ptr();
  params.weight = weight_rows.const_data_ptr();
  params.act = act.mutable_data_ptr();
  params.gate_up = save ? gate_up.mutable_data_ptr() : nullptr;
  const at::Tensor counter = counter_of_draws(params, x_rows.options());
  C10_CUDA_CHECK(cuda::sm90::launch(params, c10::cuda::getCurrentCUDAStream()));
  return std::tuple{act, gate_up};
}

at::Tensor linear_swiglu_cuda(const at::Tensor& x, const at::Tensor& weight) {
  check_linear_swiglu(x, weight);
  const c10::cuda::CUDAGuard guard(x.device());
  if (at::Tensor few = cuda::skinny_gemm(x, weight, {.gated = true}); few.defined()) return few;
  const auto out = swiglu_by_kernel(x, weight, /*save=*/false);
  return std::get<0>(out ? *out : composed::linear_swiglu(x, weight));
}

std::tuple<at::Tensor, at::Tensor> linear_swiglu_forward_cuda(const at::Tensor& x, const at::Tensor& weight) {
  check_linear_swiglu(x, weight);
  const c10::cuda::CUDAGuard guard(x.device());
  // By the kernel of linear_swiglu, so that act has the same bits.
  if (at::Tensor few = cuda::skinny_gemm(x, weight, {.gated = true}); few.defined()) {
    const at::Tensor gate_up = cuda::skinny_gemm(x, weight);
    return {few, gate_up.defined() ? gate_up : linear_forward(x, weight, {})};
  }
  const auto out = swiglu_by_kernel(x, weight, /*save=*/true);
  return out ? *out : composed::linear_swiglu(x, weight);
}

at::Tensor linear_swiglu_backward_cuda(const at::Tensor& grad_out, const at::Tensor& weight_down,
                                       const at::Tensor& gate_up) {
  check_linear_swiglu_backward(grad_out, weight_down, gate_up);
  const c10::cuda::CUDAGuard guard(grad_out.device());
  const auto compose = [&] { return composed::linear_swiglu_backward(grad_out, weight_down, gate_up); };
  if (!cuda::use_kernel(grad_out) || gate_up.numel() == 0) return compose();
  cuda::sm90::LinearSwigluBackward params{};
  params.rows = grad_out.numel() / grad_out.size(-1);
  params.width = weight_down.size(1);
  params.inner = weight_down.size(0);
  params.element = cuda::element_of(grad_out);
  if (!cuda::sm90::fits(params)) return compose();
  const at::Tensor grad_rows = cuda::aligned_rows(grad_out), weight_rows = cuda::aligned_rows(weight_down),
                   gate_up_rows = cuda::aligned_rows(gate_up);
  at::Tensor grad_gate_up = at::empty(gate_up.sizes(), grad_rows.options());
  params.grad_out = grad_rows.const_data_ptr();
  params.weight_down = weight_rows.const_data_ptr();
  params.gate_up = gate_up_rows.const_data_ptr();
  params.grad_gate_up = grad_gate_up.mutable_data_ptr();
  const at::Tensor counter = counter_of_draws(params, grad_rows.options());
  C10_CUDA_CHECK(cuda::sm90::launch(params, c10::cuda::getCurrentCUDAStream()));
  return grad_gate_up;
}

// y, and rstd if `save`; none where the kernel does not take the input. With an addend: y + addend in y's place.
std::optional<std::tuple<at::Tensor, at::Tensor>> rms_norm_by_kernel(const at::Tensor& x, const at::Tensor& weight,
                                                                     const at::Tensor& residual, double eps, bool save,
                                                                     const at::Tensor& addend = {}) {
  if (!cuda::use_kernel(x) || x.numel() == 0) return {};
  cuda::sm90::LinearRmsNorm params{};
  params.rows = x.numel() / x.size(-1);
  params.width = weight.size(0);
  params.inner = x.size(-1);
  params.eps = static_cast<float>(eps);
  params.element = cuda::element_of(x);
  const at::Tensor addend_rows = addend.defined() ? cuda::aligned_rows(addend) : addend;
  params.addend = addend.defined() ? addend_rows.const_data_ptr() : nullptr;
  if (!cuda::sm90::fits(params)) return {};
  const at::Tensor x_rows = cuda::aligned_rows(x), weight_rows = cuda::aligned_rows(weight),
                   residual_rows = cuda::aligned_rows(residual);
  at::Tensor y = at::empty(residual.sizes(), x_rows.options()), rstd;
  if (save) {
    rstd = at::empty(residual.sizes().slice(0, residual.dim() - 1), x_rows.options().dtype(at::kFloat));
    params.rstd = rstd.mutable_data_ptr<float>();
  }
  params.x = x_rows.const_data_ptr();
  params.weight = weight_rows.const_data_ptr();
  params.residual = residual_rows.const_data_ptr();
  params.y = y.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::sm90::launch(params, c10::cuda::getCurrentCUDAStream()));
  return std::tuple{y, rstd};
}

at::Tensor linear_rms_norm_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, double eps) {
  check_linear_rms_norm(x, weight, residual, eps);
  const c10::cuda::CUDAGuard guard(x.device());
  if (const auto out = rms_norm_by_kernel(x, weight, residual, eps, /*save=*/false)) return std::get<0>(*out);
  return rms_norm_residual(linear_forward(x, weight, {}), residual, eps);
}

at::Tensor linear_rms_norm_add_cuda(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual,
                                    double eps, const at::Tensor& addend) {
  check_linear_rms_norm_add(x, weight, residual, eps, addend);
  const c10::cuda::CUDAGuard guard(x.device());
  if (const auto out = rms_norm_by_kernel(x, weight, residual, eps, /*save=*/false, addend)) return std::get<0>(*out);
  return linear_rms_norm_cuda(x, weight, residual, eps).add_(addend);
}

std::tuple<at::Tensor, at::Tensor> linear_rms_norm_forward_cuda(const at::Tensor& x, const at::Tensor& weight,
                                                                const at::Tensor& residual, double eps) {
  check_linear_rms_norm(x, weight, residual, eps);
  const c10::cuda::CUDAGuard guard(x.device());
  if (const auto out = rms_norm_by_kernel(x, weight, residual, eps, /*save=*/true)) return *out;
  return rms_norm_residual_forward(linear_forward(x, weight, {}), residual, eps);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("linear_swiglu", &linear_swiglu_cuda);
  m.impl("linear_swiglu_forward", &linear_swiglu_forward_cuda);
  m.impl("linear_swiglu_backward", &linear_swiglu_backward_cuda);
  m.impl("linear_rms_norm", &linear_rms_norm_cuda);
  m.impl("linear_rms_norm_add", &linear_rms_norm_add_cuda);
  m.impl("linear_rms_norm_forward", &linear_rms_norm_forward_cuda);
}

}  // namespace hrm::ops
