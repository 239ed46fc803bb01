// The readable version, the CPU implementation, and the oracle of the CUDA kernels.
#include <ATen/ATen.h>

#include "ops/common/accumulate_type.h"
#include "ops/embedding/embed_impl.h"

namespace hrm::ops::reference {
namespace {

// Sum of the gradient rows of each entry; with few of them a product, which needs no host synchronisation.
at::Tensor table_gradient(const at::Tensor& rows, const at::Tensor& ids, int64_t entries) {
  if (entries > kOneHotEntries) {
    return at::embedding_dense_backward(rows, ids, entries, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false);
  }
  const at::Tensor entry = at::arange(entries, ids.options()).unsqueeze(1);
  return at::mm(ids.unsqueeze(0).eq(entry).to(rows.scalar_type()), rows);
}

}  // namespace

at::Tensor embed(const at::Tensor& inputs, const at::Tensor& table, const std::optional<at::Tensor>& puzzle_rows,
                 int64_t prefix, double scale, at::ScalarType dtype) {
  const int64_t width = table.size(1);
  at::Tensor rows = at::embedding(table.to(dtype), inputs);
  if (prefix > 0) {
    const at::Tensor padded = at::constant_pad_nd(puzzle_rows->to(dtype), {0, prefix * width - puzzle_rows->size(1)});
    rows = at::cat({padded.view({-1, prefix, width}), rows}, 1);
  }
  return rows * scale;
}

std::tuple<at::Tensor, at::Tensor> embed_backward(const at::Tensor& grad_x, const at::Tensor& inputs, int64_t entries,
                                                  int64_t puzzle_width, double scale) {
  const at::ScalarType type = accumulate_type(grad_x);
  const int64_t width = grad_x.size(2), prefix = grad_x.size(1) - inputs.size(1);
  const at::Tensor rows = grad_x.narrow(1, prefix, inputs.size(1)).to(type).reshape({-1, width});
  const at::Tensor grad_table = table_gradient(rows, inputs.reshape({-1}), entries) * scale;
  if (puzzle_width == 0) return {grad_table, at::Tensor()};
  const at::Tensor slots = grad_x.narrow(1, 0, prefix).reshape({grad_x.size(0), prefix * width});
  return {grad_table, slots.narrow(1, 0, puzzle_width).to(type) * scale};
}

}  // namespace hrm::ops::reference
