#include "hrm/ops/embed.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "ops/common/op.h"
#include "ops/common/optional_tensor.h"
#include "ops/embedding/embed_impl.h"

namespace hrm::ops {
namespace {

bool is_index(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kInt || tensor.scalar_type() == at::kLong;
}

}  // namespace

void check_embed(const at::Tensor& inputs, const at::Tensor& table, const OptionalTensor& puzzle_rows, int64_t prefix) {
  TORCH_CHECK(inputs.dim() == 2 && table.dim() == 2 && is_index(inputs) && prefix >= 0,
              "hrm::embed: inputs must be (B, S) int32 or int64 and table (V, D), got ", inputs.sizes(), " ",
              inputs.scalar_type(), " and ", table.sizes());
  TORCH_CHECK(table.scalar_type() == at::kFloat || table.scalar_type() == at::kDouble,
              "hrm::embed: table must be float32, got ", table.scalar_type(), " (shape ", table.sizes(), ")");
  TORCH_CHECK(puzzle_rows.has_value() == (prefix > 0), "hrm::embed: puzzle_rows must be given where there are ",
              "positions for them, got a prefix of ", prefix);
  TORCH_CHECK(!puzzle_rows ||
                  (puzzle_rows->dim() == 2 && puzzle_rows->size(0) == inputs.size(0) &&
                   puzzle_rows->size(1) <= prefix * table.size(1) && puzzle_rows->scalar_type() == table.scalar_type()),
              "hrm::embed: puzzle_rows must be (B, W) ", table.scalar_type(), " with W at most ",
              prefix * table.size(1), ", got ", puzzle_rows->sizes(), " ", puzzle_rows->scalar_type(), " for inputs ",
              inputs.sizes());
  TORCH_CHECK(inputs.device() == table.device() && (!puzzle_rows || puzzle_rows->device() == table.device()),
              "hrm::embed: inputs are on ", inputs.device(), ", table on ", table.device(), " (shapes ", inputs.sizes(),
              ", ", table.sizes(), ")");
}

void check_embed_backward(const at::Tensor& grad_x, const at::Tensor& inputs, int64_t entries, int64_t puzzle_width) {
  TORCH_CHECK(grad_x.dim() == 3 && inputs.dim() == 2 && is_index(inputs) && grad_x.size(0) == inputs.size(0) &&
                  grad_x.size(1) >= inputs.size(1) && entries >= 1,
              "hrm::embed_backward: grad_x (B, P + S, D) and inputs (B, S) do not fit, got ", grad_x.sizes(), " and ",
              inputs.sizes());
  const int64_t prefix = grad_x.size(1) - inputs.size(1);
  TORCH_CHECK(puzzle_width >= 0 && puzzle_width <= prefix * grad_x.size(2), "hrm::embed_backward: a puzzle row of ",
              puzzle_width, " does not fit into ", prefix, " positions of grad_x ", grad_x.sizes());
  TORCH_CHECK(at::isFloatingType(grad_x.scalar_type()) && grad_x.device() == inputs.device(),
              "hrm::embed_backward: grad_x is ", grad_x.scalar_type(), " on ", grad_x.device(), ", inputs are on ",
              inputs.device(), " (shape ", grad_x.sizes(), ")");
}

at::Tensor embed(const at::Tensor& inputs, const at::Tensor& table, const OptionalTensor& puzzle_rows, int64_t prefix,
                 double scale, at::ScalarType dtype) {
  static const Op<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&, int64_t, double,
                             at::ScalarType)>
      op("hrm::embed");
  return op(inputs, table, puzzle_rows, prefix, scale, dtype);
}

std::tuple<at::Tensor, at::Tensor> embed_backward(const at::Tensor& grad_x, const at::Tensor& inputs, int64_t entries,
                                                  int64_t puzzle_width, double scale) {
  static const Op<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, int64_t, int64_t, double)>
      op("hrm::embed_backward");
  return op(grad_x, inputs, entries, puzzle_width, scale);
}

namespace {

at::Tensor embed_cpu(const at::Tensor& inputs, const at::Tensor& table, const OptionalTensor& puzzle_rows,
                     int64_t prefix, double scale, at::ScalarType dtype) {
  check_embed(inputs, table, puzzle_rows, prefix);
  return reference::embed(inputs, table, puzzle_rows, prefix, scale, dtype);
}

std::tuple<at::Tensor, at::Tensor> embed_backward_cpu(const at::Tensor& grad_x, const at::Tensor& inputs,
                                                      int64_t entries, int64_t puzzle_width, double scale) {
  check_embed_backward(grad_x, inputs, entries, puzzle_width);
  return reference::embed_backward(grad_x, inputs, entries, puzzle_width, scale);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("embed(Tensor inputs, Tensor table, Tensor? puzzle_rows, int prefix, float scale, ScalarType dtype) -> Tensor");
  m.def(
      "embed_backward(Tensor grad_x, Tensor inputs, int entries, int puzzle_width, float scale) -> "
      "(Tensor grad_table, Tensor grad_puzzle_rows)");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("embed", &embed_cpu);
  m.impl("embed_backward", &embed_backward_cpu);
}

}  // namespace hrm::ops
