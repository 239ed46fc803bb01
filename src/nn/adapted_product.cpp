#include "nn/adapted_product.h"

#include <ATen/ATen.h>

#include "hrm/nn/lora.h"
#include "hrm/nn/recompute.h"
#include "hrm/ops/dropout.h"
#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "ops/common/accumulate_type.h"

namespace hrm::nn {
namespace {

// ops::dropout() of some columns of x, whose mask is that of all. Rounded once, as the op rounds.
at::Tensor drop(const at::Tensor& x, const at::Tensor& step, double p, int64_t seed, const DropoutColumns& columns) {
  if (columns.all == 0) return ops::dropout(x, step, p, seed);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = columns.all;
  const at::ScalarType wide = ops::accumulate_type(x);
  const at::Tensor factors = ops::dropout(at::ones(sizes, x.options().dtype(wide)), step, p, seed);
  return x.to(wide).mul(factors.narrow(-1, columns.first, x.size(-1))).to(x.scalar_type());
}

}  // namespace

AdaptedProduct AdaptedProduct::of(const Linear& linear) {
  if (const LoraAdapter* adapter = linear.adapter()) return adapter->product(linear.frozen_weight());
  return {.weight = linear.frozen_weight(), .A = {}, .B = {}, .A_master = {}, .B_master = {}};
}

// u, of which B makes what the adapter adds.
at::Tensor AdaptedProduct::adapter_input(const at::Tensor& x) const {
  const at::Tensor seen = p > 0 ? drop(x, step, p, seed, columns) : x;
  at::Tensor u = matrix_of(ops::linear(seen, A, A));
  if (scale != 1) u.mul_(scale);
  return u;
}

// Returns u.
at::Tensor AdaptedProduct::add_adapter(const at::Tensor& x, const at::Tensor& y) const {
  at::Tensor u = adapter_input(x);
  ops::lora_add_(y.view({-1, y.size(-1)}), u, B, slices);
  return u;
}

AdaptedProduct::Result AdaptedProduct::forward(const at::Tensor& x, const std::optional<at::Tensor>& residual) const {
  if (residual && result_is_unread())
    return {at::empty_like(*residual), is_adapted() ? adapter_input(x) : at::Tensor()};
  const at::Tensor y = weight.product(x, residual);
  return {y, is_adapted() ? add_adapter(x, y) : at::Tensor()};
}

AdaptedProduct::Result AdaptedProduct::forward(const ops::Fp8RowsBeside& x, at::ScalarType dtype,
                                               const std::optional<at::Tensor>& residual) const {
  if (residual && result_is_unread()) {
    return {at::empty_like(*residual), is_adapted() ? adapter_input(x.wide) : at::Tensor()};
  }
  const at::Tensor y = weight.product(x, dtype, residual);
  return {y, is_adapted() ? add_adapter(x.wide, y) : at::Tensor()};
}

std::vector<at::Tensor> AdaptedProduct::saved(const at::Tensor& x, const at::Tensor& u) const {
  return {is_adapted() ? x : at::Tensor(), A, B, u, step};
}

void AdaptedProduct::keep(torch::autograd::AutogradContext* ctx, const std::string& name) const {
  std::vector<int64_t> flat{seed, columns.first, columns.all};
  for (const ops::LoraSlice& s : slices) flat.insert(flat.end(), {s.out, s.first, s.rows});
  const auto buffer = [&](const at::Tensor& master) {
    return is_adapted() ? ops::gradient_buffer(master) : at::Tensor();
  };
  ctx->saved_data[name] =
      c10::ivalue::Tuple::create(weight.to_ivalue(), std::vector<at::Tensor>{buffer(A_master), buffer(B_master)},
                                 c10::ivalue::Tuple::create(flat, std::vector<double>{scale, p}));
}

AdaptedGradient AdaptedGradient::of(torch::autograd::AutogradContext* ctx, const std::string& name,
                                    at::ArrayRef<at::Tensor> saved) {
  const auto kept = ctx->saved_data[name].toTuple();
  const auto& parts = kept->elements();
  const std::vector<at::Tensor> buffers = parts[1].toTensorVector();
  const auto numbers = parts[2].toTuple();
  const std::vector<int64_t> flat = numbers->elements()[0].toIntVector();
  const std::vector<double> factors = numbers->elements()[1].toDoubleVector();
  AdaptedGradient out{.weight = FrozenWeight::from_ivalue(parts[0]),
                      .x = saved[0],
                      .A = saved[1],
                      .B = saved[2],
                      .u = saved[3],
                      .step = saved[4],
                      .grad_A = buffers[0],
                      .grad_B = buffers[1],
                      .slices = {},
                      .scale = factors[0],
                      .p = factors[1],
                      .seed = flat[0],
                      .columns = {.first = flat[1], .all = flat[2]}};
  for (size_t i = 3; i < flat.size(); i += 3) out.slices.push_back({flat[i], flat[i + 1], flat[i + 2]});
  return out;
}

at::Tensor AdaptedGradient::grad_u(const at::Tensor& grad) const {
  at::Tensor grad_u = ops::lora_gradients(matrix_of(grad), u, B, grad_B, slices, scale);
  if (grad_A.defined()) ops::linear_accumulate_(grad_A, grad_u, matrix_of(p > 0 ? drop(x, step, p, seed, columns) : x));
  return grad_u;
}

void AdaptedGradient::add_grad_x(const at::Tensor& grad_x, const at::Tensor& grad_u) const {
  if (p > 0 && columns.all > 0) {
    grad_x.add_(drop(ops::linear_grad_x(grad_u, A).view(grad_x.sizes()), step, p, seed, columns));
  } else if (p > 0) {
    ops::dropout_add_(grad_x, ops::linear_grad_x(grad_u, A).view(grad_x.sizes()), step, p, seed);
  } else {
    ops::linear_grad_x_add_(grad_x, grad_u, A);
  }
}

at::Tensor AdaptedGradient::backward(const at::Tensor& grad, bool needs_x) const {
  const at::Tensor through = is_adapted() ? grad_u(grad) : at::Tensor();
  if (!needs_x) return {};
  at::Tensor grad_x = weight.grad_x(grad);
  if (is_adapted()) add_grad_x(grad_x, through);
  return grad_x;
}

at::Tensor AdaptedGradient::backward(const ops::Fp8RowsBeside& grad, at::ScalarType dtype, bool needs_x) const {
  const at::Tensor through = is_adapted() ? grad_u(grad.wide) : at::Tensor();
  if (!needs_x) return {};
  at::Tensor grad_x = weight.grad_x(grad, dtype);
  if (is_adapted()) add_grad_x(grad_x, through);
  return grad_x;
}

}  // namespace hrm::nn
