#pragma once
// Checks of hrm::linear that hold on every device.

#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "hrm/ops/linear_weight_gradient.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct LinearCase {
  at::Tensor x, weight, bias, grad_y;  // x and grad_y in the compute dtype, weight and bias float32
};

inline LinearCase make_linear(std::vector<int64_t> lead, int64_t in, int64_t out, at::ScalarType dtype,
                              at::Device device) {
  LinearCase c;
  std::vector<int64_t> x_sizes = lead, y_sizes = lead;
  x_sizes.push_back(in);
  y_sizes.push_back(out);
  c.x = normal(x_sizes, 1, dtype, device);
  c.weight = normal({out, in}, 2, at::kFloat, device) / std::sqrt(static_cast<double>(in));
  c.bias = normal({out}, 3, at::kFloat, device);
  c.grad_y = normal(y_sizes, 4, dtype, device);
  return c;
}

struct LinearResult {
  at::Tensor y, grad_x, grad_weight, grad_bias;
};

// Ours: the buffers start at 0.5, which must still be in them afterwards.
inline LinearResult run_ours(const LinearCase& c) {
  const at::Tensor x = c.x.detach().requires_grad_();
  const at::Tensor master = c.weight.detach().requires_grad_();
  const at::Tensor bias = c.bias.detach().requires_grad_();
  const at::Tensor copy = x.scalar_type() == at::kFloat ? master : c.weight.to(x.scalar_type());
  at::Tensor grad_weight = at::full_like(c.weight, 0.5);
  at::Tensor grad_bias = at::full_like(c.bias, 0.5);
  const at::Tensor y = linear(x, copy, master, bias, grad_weight, grad_bias);
  const at::Tensor grad_x = torch::autograd::grad({y}, {x}, {c.grad_y})[0];
  return {y.detach(), grad_x, grad_weight, grad_bias};
}

// ATen's linear in any dtype, with leaves of that dtype; 0.5 is added to the weight's and bias' gradients.
inline LinearResult run_plain(const LinearCase& c, at::ScalarType dtype) {
  const at::Tensor x = c.x.to(dtype).detach().requires_grad_();
  const at::Tensor weight = c.weight.to(c.x.scalar_type()).to(dtype).detach().requires_grad_();
  const at::Tensor bias = c.bias.to(c.x.scalar_type()).to(dtype).detach().requires_grad_();
  const at::Tensor y = at::linear(x, weight, bias);
  const auto grads = torch::autograd::grad({y}, {x, weight, bias}, {c.grad_y.to(dtype)});
  return {y.detach(), grads[0], grads[1] + 0.5, grads[2] + 0.5};
}

inline void expect_good_linear(const LinearCase& c, const std::string& what) {
  const LinearResult ours = run_ours(c);
  const LinearResult exact = run_plain(c, at::kDouble);
  const LinearResult plain = run_plain(c, c.x.scalar_type());
  expect_as_good(ours.y, plain.y, exact.y, what + ", y");
  expect_as_good(ours.grad_x, plain.grad_x, exact.grad_x, what + ", gradient of x");
  // The weight's gradient is float32 whatever the compute dtype is: it is held to what float32 ATen loses.
  const LinearResult wide = run_plain(c, at::kFloat);
  const at::Tensor gy_rows = c.grad_y.to(at::kDouble).reshape({-1, c.bias.size(0)}).abs();
  const at::Tensor x_rows = c.x.to(at::kDouble).reshape({-1, c.x.size(-1)}).abs();
  expect_as_good(ours.grad_weight, wide.grad_weight, exact.grad_weight, what + ", gradient of the weight",
                 gy_rows.t().mm(x_rows).max().item<double>());
  expect_as_good(ours.grad_bias, wide.grad_bias, exact.grad_bias, what + ", gradient of the bias",
                 gy_rows.sum(0).max().item<double>());
}

// Seven uses of one weight at bfloat16, as in TRM: the float32 buffer must beat a bfloat16 leaf, whose gradient is
// rounded after each use, by far, and be as good as seven float32 products.
inline void expect_float32_accumulation(at::Device device) {
  constexpr int kUses = 7;
  const at::Tensor master = (normal({48, 32}, 2, at::kFloat, device) / 6).requires_grad_();
  const at::Tensor copy = master.detach().to(at::kBFloat16);
  const at::Tensor leaf = copy.clone().requires_grad_();
  at::Tensor buffer = at::zeros({48, 32}, at::device(device));
  at::Tensor exact = at::zeros({48, 32}, at::device(device).dtype(at::kDouble));
  at::Tensor ours_sum = at::zeros({}, at::device(device)), leaf_sum = ours_sum;
  for (int use = 0; use < kUses; ++use) {
    const at::Tensor x = normal({64, 32}, 100 + static_cast<uint64_t>(use), at::kBFloat16, device);
    const at::Tensor grad_y = normal({64, 48}, 200 + static_cast<uint64_t>(use), at::kBFloat16, device);
    ours_sum = ours_sum + (linear(x, copy, master, {}, buffer, {}) * grad_y).sum().to(at::kFloat);
    leaf_sum = leaf_sum + (at::linear(x, leaf) * grad_y).sum().to(at::kFloat);
    exact += grad_y.to(at::kDouble).t().mm(x.to(at::kDouble));
  }
  ours_sum.backward();
  leaf_sum.backward();
  EXPECT_LE(largest_difference(buffer, exact), 1e-5 * exact.abs().max().item<double>());
  EXPECT_LE(100 * mean_difference(buffer, exact), mean_difference(leaf.grad(), exact));
  EXPECT_FALSE(master.grad().defined()) << "the gradient belongs into the buffer alone";
}

// linear_weight_gradient_ over what stands in the buffer, against linear_accumulate_ to zeros.
inline void expect_good_weight_gradient(const LinearCase& c, const std::string& what) {
  const at::Tensor grad_y = c.grad_y.flatten(0, -2), x = c.x.flatten(0, -2);
  const at::Tensor ours = at::full_like(c.weight, std::nan("")), added = at::zeros_like(c.weight);
  linear_weight_gradient_(ours, grad_y, x);
  linear_accumulate_(added, grad_y, x);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  expect_as_good(ours, added, at::matmul(wide(grad_y).t(), wide(x)), what + ", gradient of the weight alone",
                 at::matmul(wide(grad_y).abs().t(), wide(x).abs()).max().item<double>());
}

// linear_add with a float32 buffer that starts at 0.5, against the plain product and sum.
inline void expect_good_linear_add(const LinearCase& c, const std::string& what) {
  const at::Tensor residual = normal(c.grad_y.sizes(), 5, c.grad_y.scalar_type(), c.grad_y.device());
  const at::Tensor x = c.x.detach().requires_grad_(), added = residual.detach().requires_grad_();
  const at::Tensor master = c.weight.detach().requires_grad_();
  master.mutable_grad() = at::full_like(c.weight, 0.5);
  const at::Tensor copy = x.scalar_type() == at::kFloat ? master : c.weight.to(x.scalar_type());
  const at::Tensor y = linear_add(x, copy, master, added);
  const auto grads = torch::autograd::grad({y}, {x, added}, {c.grad_y});
  LinearCase without = c;
  without.bias = at::zeros_like(c.bias);
  const LinearResult exact = run_plain(without, at::kDouble), plain = run_plain(without, c.x.scalar_type());
  expect_as_good(y, plain.y + residual, exact.y + residual.to(at::kDouble), what + ", y");
  const double sums =
      at::mm(c.grad_y.reshape({-1, c.weight.size(0)}).to(at::kFloat).abs(), c.weight.abs().to(at::kFloat))
          .max()
          .item<double>();
  expect_as_good(grads[0], plain.grad_x, exact.grad_x, what + ", gradient of x", sums);
  expect_same_bits(grads[1], c.grad_y, what + ", gradient of the residual");
  const LinearResult wide = run_plain(without, at::kFloat);
  const double terms = at::mm(c.grad_y.reshape({-1, c.weight.size(0)}).to(at::kFloat).abs().t(),
                              c.x.reshape({-1, c.weight.size(1)}).to(at::kFloat).abs())
                           .max()
                           .item<double>();
  expect_as_good(master.grad(), wide.grad_weight, exact.grad_weight, what + ", gradient of the weight", terms);
  const at::NoGradGuard no_grad;
  expect_same_bits(linear_add(c.x, copy, master, residual), y.detach(), what + ", without gradient");
}

}  // namespace hrm::ops::testing
