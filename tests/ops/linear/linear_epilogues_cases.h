#pragma once
// Checks of linear_swiglu and linear_rms_norm that hold on every device.

#include <string>
#include <tuple>
#include <vector>

#include "hrm/ops/linear_rms_norm.h"
#include "hrm/ops/linear_swiglu.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

constexpr double kNormEps = 1e-5;

// Rows, inner size and width (of act, or of the norm).
struct ProductShape {
  int64_t rows, inner, width;
};

inline std::string name_of(at::ScalarType dtype, const ProductShape& shape) {
  return cat(dtype, " rows ", shape.rows, " inner ", shape.inner, " width ", shape.width);
}

// The formulas in plain ATen operations.
inline std::tuple<at::Tensor, at::Tensor> plain_linear_swiglu(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor gate_up = at::linear(x, weight);
  const auto parts = gate_up.chunk(2, -1);
  return {at::silu(parts[0]) * parts[1], gate_up};
}

inline std::tuple<at::Tensor, at::Tensor> plain_linear_rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                                                const at::Tensor& residual) {
  const at::Tensor h = residual + at::linear(x, weight);
  const at::Tensor wide = h.scalar_type() == at::kDouble ? h : h.to(at::kFloat);
  const at::Tensor rstd = at::rsqrt(wide.square().mean(-1, true) + kNormEps);
  return {(wide * rstd).to(h.scalar_type()), rstd.squeeze(-1)};
}

struct ProductInput {
  at::Tensor x, weight, residual;
};

// Columns of very different sizes, so that an exchanged or a doubled one is seen; products of about 1.
inline ProductInput product_input(const ProductShape& shape, int64_t out, at::ScalarType dtype, at::Device device) {
  ProductInput input;
  input.x = normal({shape.rows, shape.inner}, 1, dtype, device);
  const double scale = 1 / std::sqrt(static_cast<double>(shape.inner));
  const at::Tensor weight = normal({out, shape.inner}, 2, at::kFloat, device) * scale;
  input.weight = (weight * at::linspace(0.5, 2, out, weight.options()).unsqueeze(1)).to(dtype);
  input.residual = normal({shape.rows, out}, 3, dtype, device);
  return input;
}

inline void expect_good_linear_swiglu(const ProductShape& shape, at::ScalarType dtype, at::Device device) {
  const std::string what = name_of(dtype, shape);
  const auto [x, weight, residual] = product_input(shape, 2 * shape.width, dtype, device);
  const auto [act, gate_up] = linear_swiglu_forward(x, weight);
  const auto [plain_act, plain_gate_up] = plain_linear_swiglu(x, weight);
  const auto [exact_act, exact_gate_up] = plain_linear_swiglu(x.to(at::kDouble), weight.to(at::kDouble));
  expect_as_good(gate_up, plain_gate_up, exact_gate_up, what + ", gate_up");
  expect_as_good(act, plain_act, exact_act, what + ", act");
  // On a CPU the rows are multiplied in parts, and a library's sums may depend on how many there are.
  const at::Tensor alone = linear_swiglu(x, weight);
  expect_as_good(alone, plain_act, exact_act, what + ", without gate_up");
  if (!device.is_cpu()) expect_same_bits(alone, act, what + ", without gate_up");
}

inline void expect_good_linear_rms_norm(const ProductShape& shape, at::ScalarType dtype, at::Device device) {
  const std::string what = name_of(dtype, shape);
  const auto [x, weight, residual] = product_input(shape, shape.width, dtype, device);
  const auto [y, rstd] = linear_rms_norm_forward(x, weight, residual, kNormEps);
  const auto [plain_y, plain_rstd] = plain_linear_rms_norm(x, weight, residual);
  const auto [exact_y, exact_rstd] =
      plain_linear_rms_norm(x.to(at::kDouble), weight.to(at::kDouble), residual.to(at::kDouble));
  expect_as_good(y, plain_y, exact_y, what + ", y");
  expect_as_good(rstd, plain_rstd, exact_rstd, what + ", rstd", exact_rstd.abs().max().item<double>());
  expect_same_bits(linear_rms_norm(x, weight, residual, kNormEps), y, what + ", without rstd");
  const at::Tensor addend = normal(residual.sizes(), 4, dtype, device);
  expect_same_bits(linear_rms_norm_add(x, weight, residual, kNormEps, addend), y + addend, what + ", with an addend");
}

// Equals the two ops it is made of, up to the rounding of the product between them.
inline void expect_good_linear_swiglu_backward(const ProductShape& shape, at::ScalarType dtype, at::Device device) {
  const std::string what = name_of(dtype, shape);
  const at::Tensor grad_out = normal({shape.rows, shape.inner}, 1, dtype, device);
  const double scale = 1 / std::sqrt(static_cast<double>(shape.inner));
  const at::Tensor weight = (normal({shape.inner, shape.width}, 2, at::kFloat, device) * scale).to(dtype);
  const at::Tensor gate_up = normal({shape.rows, 2 * shape.width}, 3, dtype, device);
  const auto run = [](const at::Tensor& grad, const at::Tensor& down, const at::Tensor& gates) {
    const at::Tensor leaf = gates.detach().requires_grad_();
    const auto parts = leaf.chunk(2, -1);
    const at::Tensor act = at::silu(parts[0]) * parts[1];
    return torch::autograd::grad({act}, {leaf}, {at::matmul(grad, down)})[0];
  };
  expect_as_good(linear_swiglu_backward(grad_out, weight, gate_up), run(grad_out, weight, gate_up),
                 run(grad_out.to(at::kDouble), weight.to(at::kDouble), gate_up.to(at::kDouble)), what);
}

}  // namespace hrm::ops::testing
