#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/cuda/launcher.h"
#include "ops/embedding/cuda/embed_tokens.h"
#include "ops/embedding/embed_tokens_impl.h"

namespace hrm::ops {
namespace {

void embed_tokens_backward_cuda(const at::Tensor& grad_table, const at::Tensor& grad_x, const at::Tensor& ids) {
  check_embed_tokens_backward(grad_table, grad_x, ids);
  const c10::cuda::CUDAGuard guard(grad_x.device());
  if (!cuda::use_kernel(grad_x)) return reference::embed_tokens_backward_(grad_table, grad_x, ids);
  if (grad_x.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor rows = grad_x.contiguous();
  // Stable: rows of one entry are summed in the order of their positions.
  const auto [sorted, order] = ids.reshape({-1}).to(at::kLong).sort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  cuda::EmbedTokensBackward params{};
  params.tokens = ids.numel();
  params.width = grad_table.size(1);
  const at::Tensor partial = at::empty({2, cuda::embed_pieces(params.tokens), params.width}, grad_table.options());
  params.grad_x = rows.const_data_ptr();
  params.ids = sorted.const_data_ptr<int64_t>();
  params.order = order.const_data_ptr<int64_t>();
  params.grad_table = grad_table.mutable_data_ptr<float>();
  params.partial = partial.mutable_data_ptr<float>();
  params.element = cuda::element_of(rows);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("embed_tokens_backward_", &embed_tokens_backward_cuda);
}

}  // namespace hrm::ops
