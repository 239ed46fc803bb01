#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "ops/common/optional_tensor.h"
#include "ops/cuda/launcher.h"
#include "ops/embedding/cuda/embed.h"
#include "ops/embedding/embed_impl.h"

namespace hrm::ops {
namespace {

at::Tensor embed_cuda(const at::Tensor& inputs, const at::Tensor& table, const OptionalTensor& puzzle_rows,
                      int64_t prefix, double scale, at::ScalarType dtype) {
  check_embed(inputs, table, puzzle_rows, prefix);
  const c10::cuda::CUDAGuard guard(table.device());
  if (backend() == Backend::reference || !cuda::has_element(dtype) || table.scalar_type() != at::kFloat) {
    return reference::embed(inputs, table, puzzle_rows, prefix, scale, dtype);
  }
  const at::Tensor ids = inputs.to(at::kInt).contiguous(), entries = table.contiguous();
  const at::Tensor puzzles = puzzle_rows ? puzzle_rows->contiguous() : at::Tensor();
  at::Tensor x = at::empty({inputs.size(0), prefix + inputs.size(1), table.size(1)}, table.options().dtype(dtype));
  if (x.numel() == 0) return x;
  cuda::Embed params{};
  params.inputs = ids.const_data_ptr<int32_t>();
  params.table = entries.const_data_ptr<float>();
  params.puzzle_rows = puzzle_rows ? puzzles.const_data_ptr<float>() : nullptr;
  params.x = x.mutable_data_ptr();
  params.samples = inputs.size(0);
  params.tokens = inputs.size(1);
  params.prefix = prefix;
  params.width = table.size(1);
  params.puzzle_width = puzzle_rows ? puzzle_rows->size(1) : 0;
  params.scale = static_cast<float>(scale);
  params.element = cuda::element_of(x);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return x;
}

std::tuple<at::Tensor, at::Tensor> embed_backward_cuda(const at::Tensor& grad_x, const at::Tensor& inputs,
                                                       int64_t entries, int64_t puzzle_width, double scale) {
  check_embed_backward(grad_x, inputs, entries, puzzle_width);
  const c10::cuda::CUDAGuard guard(grad_x.device());
  if (!cuda::use_kernel(grad_x) || !cuda::embed_backward_fits(entries, cuda::element_of(grad_x))) {
    return reference::embed_backward(grad_x, inputs, entries, puzzle_width, scale);
  }
  const at::Tensor grad_rows = grad_x.contiguous(), ids = inputs.to(at::kInt).contiguous();
  const int64_t width = grad_x.size(2);
  const auto floats = grad_rows.options().dtype(at::kFloat);
  at::Tensor grad_table = at::empty({entries, width}, floats), grad_puzzles;
  if (puzzle_width > 0) grad_puzzles = at::empty({grad_x.size(0), puzzle_width}, floats);
  if (width == 0) return {grad_table, grad_puzzles};
  const at::Tensor partial = at::empty({cuda::kEmbedParts, entries, width}, floats);
  cuda::EmbedBackward params{};
  params.grad_x = grad_rows.const_data_ptr();
  params.inputs = ids.const_data_ptr<int32_t>();
  params.grad_table = grad_table.mutable_data_ptr<float>();
  params.grad_puzzle_rows = puzzle_width > 0 ? grad_puzzles.mutable_data_ptr<float>() : nullptr;
  params.partial = partial.mutable_data_ptr<float>();
  params.samples = inputs.size(0);
  params.tokens = inputs.size(1);
  params.prefix = grad_x.size(1) - inputs.size(1);
  params.width = width;
  params.puzzle_width = puzzle_width;
  params.entries = entries;
  params.scale = static_cast<float>(scale);
  params.element = cuda::element_of(grad_x);
  C10_CUDA_CHECK(cuda::launch(params, c10::cuda::getCurrentCUDAStream()));
  return {grad_table, grad_puzzles};
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, CUDA, m) {
  m.impl("embed", &embed_cuda);
  m.impl("embed_backward", &embed_backward_cuda);
}

}  // namespace hrm::ops
