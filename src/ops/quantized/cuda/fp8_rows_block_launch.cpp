// Parts of a block that write rows in 8 bits, on a GPU: the kernels, or the ops one by one where sizes or addresses do
// not fit.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/attention/cuda/qkv_params.h"
#include "ops/attention/qkv_heads_impl.h"
#include "ops/cuda/launcher.h"
#include "ops/quantized/cuda/fp8_rows_block.h"
#include "ops/quantized/fp8_rows_block_impl.h"

namespace hrm::ops {
namespace {

// The tensors of a result, and where a kernel writes them.
struct Results {
  at::Tensor wide, values, scales;

  Results(const at::Tensor& like, int64_t rows, int64_t columns, bool with_wide) {
    if (with_wide) wide = at::empty({rows, columns}, like.options());
    values = at::empty({rows, columns}, like.options().dtype(at::kFloat8_e4m3fn));
    scales = at::empty({rows}, like.options().dtype(at::kFloat));
  }

  cuda::QuantisedRows params(const at::Tensor& factors) const {
    return {.wide = wide.defined() ? wide.mutable_data_ptr() : nullptr,
            .values = static_cast<uint8_t*>(values.mutable_data_ptr()),
            .scales = scales.mutable_data_ptr<float>(),
            .factors = factors.defined() ? factors.const_data_ptr<float>() : nullptr};
  }
};

RowsFour norm_rows_cuda(const at::Tensor& x, const at::Tensor& weight, double eps, bool wide) {
  check_weighted_rms_norm_rows(x, weight, eps);
  const c10::cuda::CUDAGuard guard(x.device());
  cuda::WeightedRmsNormRows params{};
  params.rows = x.size(0);
  params.width = x.size(1);
  params.eps = static_cast<float>(eps);
  if (cuda::use_kernel(x)) params.element = cuda::element_of(x);
  if (!cuda::use_kernel(x) || !cuda::fits(params)) return composed::weighted_rms_norm_rows(x, weight, eps, wide);
  const at::Tensor from = cuda::aligned_rows(x), by = cuda::aligned_rows(weight);
  const Results y(x, params.rows, params.width, wide);
  const at::Tensor rstd = at::empty({params.rows}, x.options().dtype(at::kFloat));
  params.x = from.const_data_ptr();
  params.weight = by.const_data_ptr<float>();
  params.y = y.params({});
  params.rstd = rstd.mutable_data_ptr<float>();
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {y.wide, y.values, y.scales, rstd};
}

RowsThree swiglu_rows_cuda(const at::Tensor& gate_up, bool wide) {
  check_swiglu_rows(gate_up);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  cuda::SwigluRows params{};
  params.rows = gate_up.size(0);
  params.width = gate_up.size(1) / 2;
  if (cuda::use_kernel(gate_up)) params.element = cuda::element_of(gate_up);
  if (!cuda::use_kernel(gate_up) || !cuda::fits(params)) return composed::swiglu_rows(gate_up, wide);
  const at::Tensor from = cuda::aligned_rows(gate_up);
  const Results act(gate_up, params.rows, params.width, wide);
  params.gate_up = from.const_data_ptr();
  params.act = act.params({});
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {act.wide, act.values, act.scales};
}

RowsThree swiglu_backward_rows_cuda(const at::Tensor& grad_act, const at::Tensor& gate_up, const at::Tensor& factors,
                                    bool wide) {
  check_swiglu_backward_rows(grad_act, gate_up, factors);
  const c10::cuda::CUDAGuard guard(gate_up.device());
  cuda::SwigluBackwardRows params{};
  params.rows = gate_up.size(0);
  params.width = gate_up.size(1) / 2;
  if (cuda::use_kernel(gate_up)) params.element = cuda::element_of(gate_up);
  if (!cuda::use_kernel(gate_up) || !cuda::fits(params)) {
    return composed::swiglu_backward_rows(grad_act, gate_up, factors, wide);
  }
  const at::Tensor from = cuda::aligned_rows(gate_up), grads = cuda::aligned_rows(grad_act),
                   by = cuda::aligned_rows(factors);
  const Results grad(gate_up, params.rows, 2 * params.width, wide);
  params.gate_up = from.const_data_ptr();
  params.grad_act = grads.const_data_ptr();
  params.grad = grad.params(by);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {grad.wide, grad.values, grad.scales};
}

RowsThree qkv_backward_rows_cuda(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                 const OptionalTensor& qkv, const OptionalTensor& cos, const OptionalTensor& sin,
                                 const OptionalTensor& q_weight, const OptionalTensor& k_weight, double eps,
                                 const at::Tensor& factors, bool wide) {
  const QkvHeadOptions options = cuda::contiguous_options(qkv_options(cos, sin, q_weight, k_weight, eps));
  const at::Tensor before = qkv.value_or(at::Tensor());
  check_qkv_heads_backward_rows(grad_q, grad_k, grad_v, before, options, factors);
  const c10::cuda::CUDAGuard guard(grad_q.device());
  const QkvSizes sizes{grad_q.size(2), grad_k.size(2), grad_q.size(3)};
  const int64_t rows = grad_q.size(0) * grad_q.size(1), columns = factors.size(0);
  cuda::QkvBackwardRows params{};
  cuda::QkvHeadsBackward& heads = params.heads;
  if (cuda::use_kernel(grad_q)) heads.shape = cuda::qkv_rows(rows, sizes, options, grad_q.scalar_type());
  if (!cuda::use_kernel(grad_q) || !cuda::fits(params)) {
    return composed::qkv_heads_backward_rows(grad_q, grad_k, grad_v, before, options, factors, wide);
  }
  const Results grad(grad_q, rows, columns, wide);
  const bool norms = options.q_weight.defined();
  const at::Tensor read = norms ? cuda::aligned_rows(before) : at::Tensor(), by = cuda::aligned_rows(factors);
  const cuda::HeadGradients grads(heads, grad_q, grad_k, grad_v, /*must_align=*/true);
  heads.length = grad_q.size(1);
  heads.qkv = norms ? read.const_data_ptr() : nullptr;
  params.grad = grad.params(by);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {grad.wide, grad.values, grad.scales};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("weighted_rms_norm_rows", &norm_rows_cuda);
  m.impl("swiglu_rows", &swiglu_rows_cuda);
  m.impl("swiglu_backward_rows", &swiglu_backward_rows_cuda);
  m.impl("qkv_heads_backward_rows", &qkv_backward_rows_cuda);
}

}  // namespace hrm::ops
