#include "hrm/ops/embed_tokens.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <vector>

#include "hrm/ops/embed.h"
#include "hrm/ops/linear.h"
#include "ops/common/accumulate_type.h"
#include "ops/common/op.h"
#include "ops/common/sizes.h"
#include "ops/embedding/embed_tokens_impl.h"

namespace hrm::ops {

void check_embed_tokens_backward(const at::Tensor& grad_table, const at::Tensor& grad_x, const at::Tensor& ids) {
  TORCH_CHECK(
      grad_table.dim() == 2 && grad_table.is_contiguous() && grad_x.dim() == ids.dim() + 1 &&
          grad_x.size(-1) == grad_table.size(1) && grad_x.sizes().slice(0, ids.dim()) == ids.sizes(),
      "hrm::embed_tokens_backward_: grad_table (V, D), contiguous, grad_x (..., D) and ids (...) do not fit, got ",
      grad_table.sizes(), ", ", grad_x.sizes(), " and ", ids.sizes());
  const at::ScalarType wide = accumulate_type(grad_x);
  TORCH_CHECK(at::isFloatingType(grad_x.scalar_type()) && grad_table.scalar_type() == wide &&
                  (ids.scalar_type() == at::kInt || ids.scalar_type() == at::kLong),
              "hrm::embed_tokens_backward_: grad_table must be ", wide, " for floating-point grad_x and ids int32 or ",
              "int64, got ", grad_table.scalar_type(), ", ", grad_x.scalar_type(), " and ", ids.scalar_type());
  TORCH_CHECK(grad_table.device() == grad_x.device() && ids.device() == grad_x.device(),
              "hrm::embed_tokens_backward_: grad_table, grad_x and ids must be on one device, got ",
              grad_table.device(), ", ", grad_x.device(), " and ", ids.device());
}

void embed_tokens_backward_(const at::Tensor& grad_table, const at::Tensor& grad_x, const at::Tensor& ids) {
  static const Op<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)> op("hrm::embed_tokens_backward_");
  op(grad_table, grad_x, ids);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor look_up(const at::Tensor& ids, const at::Tensor& table, at::ScalarType dtype) {
  const std::vector<int64_t> sizes = with_last_size(ids.unsqueeze(-1), table.size(1));
  return embed(ids.reshape({1, -1}), table, {}, /*prefix=*/0, /*scale=*/1, dtype).view(sizes);
}

struct EmbedTokens : torch::autograd::Function<EmbedTokens> {
  // read: the table, or a copy of it in `dtype`.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ids, const at::Tensor& table,
                            const at::Tensor& grad_table, const at::Tensor& read, at::ScalarType dtype) {
    ctx->save_for_backward({ids});
    ctx->saved_data["grad_table"] = grad_table;  // no saved variable: each use of the table adds to it in place
    return read.is_same(table) ? look_up(ids, table, dtype) : at::embedding(read, ids);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "hrm::embed_tokens has no second derivative");
    embed_tokens_backward_(ctx->saved_data["grad_table"].toTensor(), grads[0], ctx->get_saved_variables()[0]);
    return {at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void embed_tokens_backward_cpu(const at::Tensor& grad_table, const at::Tensor& grad_x, const at::Tensor& ids) {
  check_embed_tokens_backward(grad_table, grad_x, ids);
  reference::embed_tokens_backward_(grad_table, grad_x, ids);
}

}  // namespace

at::Tensor embed_tokens(const at::Tensor& ids, const at::Tensor& table, at::ScalarType dtype) {
  if (!at::GradMode::is_enabled() || !table.requires_grad()) return look_up(ids, table, dtype);
  return EmbedTokens::apply(ids, table, gradient_buffer(table), table, dtype);
}

at::Tensor embed_tokens(const at::Tensor& ids, const at::Tensor& table, const at::Tensor& copy) {
  TORCH_CHECK(copy.sizes() == table.sizes() && !copy.requires_grad(),
              "hrm::embed_tokens: the copy must have the table's sizes ", table.sizes(), " and no gradient, got ",
              copy.sizes());
  if (!at::GradMode::is_enabled() || !table.requires_grad()) return at::embedding(copy, ids);
  return EmbedTokens::apply(ids, table, gradient_buffer(table), copy, copy.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(hrm, m) {
  m.def("embed_tokens_backward_(Tensor(a!) grad_table, Tensor grad_x, Tensor ids) -> ()");
}

TORCH_LIBRARY_IMPL(hrm, CPU, m) {
  m.impl("embed_tokens_backward_", &embed_tokens_backward_cpu);
}

TORCH_LIBRARY_IMPL(hrm, Autograd, m) {
  m.impl("embed_tokens_backward_", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace hrm::ops
