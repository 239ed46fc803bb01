#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/attention/cuda/qkv_heads.h"
#include "ops/attention/cuda/qkv_params.h"
#include "ops/attention/qkv_heads_impl.h"
#include "ops/common/optional_tensor.h"
#include "ops/cuda/launcher.h"
#include "ops/linear/cuda/sm90/linear_epilogues.h"
#include "ops/linear/linear_impl.h"

namespace hrm::ops {
namespace {

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

at::Tensor product_cuda(const at::Tensor& x, const at::Tensor& weight, int64_t heads, int64_t kv_heads,
                        int64_t head_dim, const at::Tensor& cos, const at::Tensor& sin) {
  const QkvSizes sizes{heads, kv_heads, head_dim};
  check_qkv_heads_product(x, weight, sizes, cos, sin);
  const c10::cuda::CUDAGuard guard(x.device());
  const auto compose = [&] { return composed::qkv_heads_product(x, weight, sizes, cos, sin); };
  if (!cuda::use_kernel(x) || x.numel() == 0 || head_dim != 64) return compose();
  cuda::sm90::LinearRotated params{};
  params.rows = x.size(0) * x.size(1);
  params.width = weight.size(0);
  params.inner = x.size(2);
  params.table_rows = cos.size(0);
  params.turned = (heads + kv_heads) * head_dim;
  params.element = cuda::element_of(x);
  if (!cuda::sm90::fits(params) || !(always_tiles() || cuda::sm90::fills_the_chip(params.rows, params.width))) {
    return compose();
  }
  const at::Tensor rows = cuda::aligned_rows(x), weight_rows = cuda::aligned_rows(weight),
                   table_cos = cuda::aligned_rows(cos), table_sin = cuda::aligned_rows(sin);
  at::Tensor out = at::empty({x.size(0), x.size(1), params.width}, x.options());
  params.x = rows.const_data_ptr();
  params.weight = weight_rows.const_data_ptr();
  params.cos = table_cos.const_data_ptr<float>();
  params.sin = table_sin.const_data_ptr<float>();
  params.out = out.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::sm90::launch(params, c10::cuda::getCurrentCUDAStream()));
  return out;
}

void qkv_heads_rotate_cuda(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                           const at::Tensor& cos, const at::Tensor& sin) {
  const QkvSizes sizes{heads, kv_heads, head_dim};
  check_qkv_heads(qkv, sizes, {cos, sin});
  const c10::cuda::CUDAGuard guard(qkv.device());
  if (!cuda::use_kernel(qkv)) return reference::qkv_heads_rotate_(qkv, sizes, cos, sin);
  if (qkv.numel() == 0) return;
  const QkvHeadOptions options = cuda::contiguous_options({cos, sin});
  cuda::QkvHeadsForward params{};
  params.shape = cuda::qkv_rows(qkv.size(0) * qkv.size(1), sizes, options, qkv.scalar_type());
  params.from = params.to = qkv.mutable_data_ptr();
  params.from_pitch = params.to_pitch = qkv.size(2);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor norm_cuda(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, int64_t head_dim,
                     const OptionalTensor& cos, const OptionalTensor& sin, const at::Tensor& q_weight,
                     const at::Tensor& k_weight, double eps) {
  const QkvSizes sizes{heads, kv_heads, head_dim};
  const QkvHeadOptions options = cuda::contiguous_options(qkv_options(cos, sin, q_weight, k_weight, eps));
  check_qkv_heads(qkv, sizes, options);
  const c10::cuda::CUDAGuard guard(qkv.device());
  if (!cuda::use_kernel(qkv)) return reference::qkv_heads_norm(qkv, sizes, options);
  cuda::QkvHeadsForward params{};
  params.shape = cuda::qkv_rows(qkv.size(0) * qkv.size(1), sizes, options, qkv.scalar_type());
  const at::Tensor from = cuda::aligned_rows(qkv);
  if (!cuda::qkv_heads_fit(params.shape)) return reference::qkv_heads_norm(qkv, sizes, options);
  at::Tensor to = at::empty({qkv.size(0), qkv.size(1), heads + kv_heads, head_dim}, qkv.options());
  if (qkv.numel() == 0) return to;
  params.from = from.const_data_ptr();
  params.to = to.mutable_data_ptr();
  params.from_pitch = qkv.size(2);
  params.to_pitch = (heads + kv_heads) * head_dim;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return to;
}

Gradients qkv_heads_backward_cuda(const at::Tensor& grad_q, const at::Tensor& grad_k, const at::Tensor& grad_v,
                                  const OptionalTensor& qkv, const OptionalTensor& cos, const OptionalTensor& sin,
                                  const OptionalTensor& q_weight, const OptionalTensor& k_weight, double eps,
                                  bool needs_weights) {
  const QkvHeadOptions options = cuda::contiguous_options(qkv_options(cos, sin, q_weight, k_weight, eps));
  const at::Tensor before = qkv.value_or(at::Tensor());
  check_qkv_heads_backward(grad_q, grad_k, grad_v, before, options);
  const c10::cuda::CUDAGuard guard(grad_q.device());
  const int64_t batch = grad_q.size(0), length = grad_q.size(1);
  const QkvSizes sizes{grad_q.size(2), grad_k.size(2), grad_q.size(3)};
  const bool norm = options.q_weight.defined(), sums = norm && needs_weights;
  cuda::QkvHeadsBackward params{};
  if (cuda::use_kernel(grad_q)) params.shape = cuda::qkv_rows(batch * length, sizes, options, grad_q.scalar_type());
  if (!cuda::use_kernel(grad_q) || !cuda::qkv_heads_fit(params.shape)) {
    return reference::qkv_heads_backward(grad_q, grad_k, grad_v, before, options, needs_weights);
  }
  at::Tensor grad = at::empty({batch, length, (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim}, grad_q.options());
  at::Tensor grad_weight, partial;
  if (sums) {
    grad_weight = at::empty({2, sizes.head_dim}, options.q_weight.options());
    partial = at::empty({2, cuda::kQkvParts, sizes.head_dim}, options.q_weight.options());
  }
  const auto gradients = [&]() -> Gradients {
    if (!sums) return {grad, at::Tensor(), at::Tensor()};
    return {grad, grad_weight[0], grad_weight[1]};
  };
  if (grad.numel() == 0) {
    if (sums) grad_weight.zero_();
    return gradients();
  }
  const at::Tensor rows = norm ? cuda::aligned_rows(before) : at::Tensor();
  const cuda::HeadGradients grads(params, grad_q, grad_k, grad_v, norm);
  params.length = length;
  params.qkv = norm ? rows.const_data_ptr() : nullptr;
  params.grad_qkv = grad.mutable_data_ptr();
  params.partial = sums ? partial.mutable_data_ptr<float>() : nullptr;
  params.grad_weight = sums ? grad_weight.mutable_data_ptr<float>() : nullptr;
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return gradients();
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("qkv_heads_product", &product_cuda);
  m.impl("qkv_heads_rotate_", &qkv_heads_rotate_cuda);
  m.impl("qkv_heads_norm", &norm_cuda);
  m.impl("qkv_heads_backward", &qkv_heads_backward_cuda);
}

}  // namespace hrm::ops
