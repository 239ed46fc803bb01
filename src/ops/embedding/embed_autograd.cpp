#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "hrm/ops/embed.h"
#include "ops/common/optional_tensor.h"

namespace hrm::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
struct Embed : torch::autograd::Function<Embed> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& inputs, const at::Tensor& table,
                            const OptionalTensor& puzzle_rows, int64_t prefix, double scale, at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({inputs});
    ctx->saved_data["entries"] = table.size(0);
    ctx->saved_data["puzzle_width"] = puzzle_rows ? puzzle_rows->size(1) : 0;
    ctx->saved_data["scale"] = scale;
    return embed(inputs, table, puzzle_rows, prefix, scale, dtype);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto [table, puzzle_rows] =
        embed_backward(grads[0], ctx->get_saved_variables()[0], ctx->saved_data["entries"].toInt(),
                       ctx->saved_data["puzzle_width"].toInt(), ctx->saved_data["scale"].toDouble());
    return {at::Tensor(), table, puzzle_rows, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor embed_autograd(const at::Tensor& inputs, const at::Tensor& table, const OptionalTensor& puzzle_rows,
                          int64_t prefix, double scale, at::ScalarType dtype) {
  if (at::GradMode::is_enabled() && (table.requires_grad() || (puzzle_rows && puzzle_rows->requires_grad()))) {
    return Embed::apply(inputs, table, puzzle_rows, prefix, scale, dtype);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  return embed(inputs, table, puzzle_rows, prefix, scale, dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("embed", &embed_autograd);
  m.impl("embed_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
