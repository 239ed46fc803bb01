#include "hrm/nn/shared_tokens.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace hrm::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x (U, C) -> a copy of its first rows, and the mapped rows. One kernel sums their two gradients, where autograd would
// pad one with zeros and add.
struct Spread : torch::autograd::Function<Spread> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, int64_t first, const ops::RowMap& map) {
    ctx->save_for_backward({map.rows, map.back, map.rows_begin, map.back_begin});
    return {x.narrow(0, 0, first).clone(), ops::sum_rows(x, map)};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list tables = ctx->get_saved_variables();
    const ops::RowMap map{tables[0], tables[1], tables[2], tables[3]};
    return {ops::sum_rows(grads[1], map.reversed(), grads[0]), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

SharedTokens::Rows SharedTokens::to_rows(const at::Tensor& x) const {
  const at::Tensor tokens = x.flatten(0, 1);
  const auto shaped = [&](const at::Tensor& t) { return t.view({rows, positions, x.size(2)}); };
  if (whole_rows == 0) return {{}, shaped(ops::sum_rows(tokens, spread))};
  const variable_list parts = Spread::apply(tokens, whole_rows * whole_positions, spread);
  return {parts[0].view({whole_rows, whole_positions, x.size(2)}), shaped(parts[1])};
}

at::Tensor SharedTokens::to_tokens(const Rows& of) const {
  const at::Tensor whole = of.whole.defined() ? of.whole.flatten(0, 1) : at::Tensor();
  return ops::sum_rows(of.others.flatten(0, 1), collect, whole).unsqueeze(0);
}

}  // namespace hrm::nn
