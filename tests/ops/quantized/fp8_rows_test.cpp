#include "ops/quantized/fp8_rows_cases.h"

#include <array>

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8Rows, AreTheDefinition) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool factored : {false, true}) {
      check_quantize_fp8_rows(48, 80, dtype, factored, at::kCPU);
      check_quantize_fp8_rows(7, 13, dtype, factored, at::kCPU);
      check_quantize_fp8_rows(0, 16, dtype, factored, at::kCPU);
      check_quantize_fp8_rows(3, 0, dtype, factored, at::kCPU);
    }
    check_fp8_rows_not_finite(48, dtype, at::kCPU);
  }
}

TEST(Fp8Rows, AnyStrides) {
  const at::Tensor x = normal({9, 24}, 1, at::kFloat), across = x.t().contiguous().t();
  const auto [values, scales] = quantize_fp8_rows(x);
  const auto [other, other_scales] = quantize_fp8_rows(across);
  EXPECT_TRUE(other.is_contiguous());
  expect_same_bits(weight8_bytes_of(other), weight8_bytes_of(values));
  expect_same_bits(other_scales, scales);
}

TEST(Fp8Rows, WeightsAllAtOnce) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    check_fp8_weight_rows({{32, 48}, {16, 16}, {64, 16}, {7, 13}}, dtype, dtype, at::kCPU);
    check_fp8_weight_rows({{32, 48}, {16, 16}, {64, 16}}, at::kFloat, dtype, at::kCPU);
  }
  const at::Tensor weight = at::ones({16, 32}), values = at::empty({16, 32}, at::kFloat8_e4m3fn),
                   across = at::empty({32, 16}, at::kFloat8_e4m3fn), sixteen = at::ones({16});
  const at::Tensor slots = make_fp8_wide_slots(1, false, at::kCPU);
  const std::vector<at::Tensor> w{weight}, v{values}, t{across}, s{sixteen}, none;
  const char* op = "hrm::quantize_fp8_weight_rows_";
  const auto message = [&](const Fp8WeightRows& rows, at::ScalarType compute) {
    return error_of([&] { quantize_fp8_weight_rows_(rows, slots, compute); });
  };
  expect_message(message({w, v, t, s, none}, at::kFloat), {op, "got 1, 1, 1 and 0"});
  expect_message(message({w, v, t, s, s}, at::kFloat), {op, "[16, 32]", "must be 32 contiguous float32"});
  expect_message(message({w, v, t, s, s}, at::kDouble), {op, "compute must be", "Double"});
}

TEST(Fp8Rows, Transposed) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{48, 80}, {7, 13}, {1, 5}, {0, 16}}) {
    check_transpose_fp8(rows, columns, at::kCPU);
    check_transpose_fp8(rows, columns, at::kCPU, 3);
  }
}

TEST(Fp8Rows, Products) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool adds : {false, true}) {
      check_fp8_rows_product(48, 80, 64, dtype, adds, at::kCPU);
      check_fp8_rows_product(7, 13, 33, dtype, adds, at::kCPU);
    }
  }
}

TEST(Fp8Rows, ProductsAndGradientsOfFrozenWeights) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    check_weight8_rows(48, 80, 112, dtype, at::kCPU);
    check_weight8_rows(5, 33, 47, dtype, at::kCPU);
  }
}

// A CPU has no products in 8 bits, so it keeps the exact ones.
TEST(Fp8Rows, ACpuDoesNotQuantiseRows) {
  EXPECT_FALSE(has_fp8_products(at::kCPU));
  const Weight8RowsCase c = weight8_rows_case(48, 32, 64, at::kBFloat16, at::kCPU);
  expect_same_bits(linear_weight8(c.x, c.q, c.residual, c.workspace, true),
                   linear_weight8(c.x, c.q, c.residual, c.workspace, false));
  expect_same_bits(linear_weight8_grad_x(c.grad, c.q, c.workspace, true),
                   linear_weight8_grad_x(c.grad, c.q, c.workspace, false));
  const at::Tensor x = c.x.detach().clone().requires_grad_();
  const at::Tensor y = linear_weight8(x, c.q, {}, c.workspace, true);
  expect_same_bits(torch::autograd::grad({y}, {x}, {c.grad})[0], linear_weight8_grad_x(c.grad, c.q));
}

// The kernel of fp8_rows.cu: four rows of four bytes become four columns by the same byte permutations.
TEST(Fp8Rows, FourRowsOfFourBytesBecomeColumns) {
  const auto permute = [](uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = a | static_cast<uint64_t>(b) << 32;
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t from = selector >> (4 * i) & 7;
      out |= static_cast<uint32_t>(both >> (8 * from) & 0xff) << (8 * i);
    }
    return out;
  };
  std::array<uint32_t, 4> rows{};
  for (uint32_t r = 0; r < 4; ++r) {
    for (uint32_t c = 0; c < 4; ++c) rows[r] |= (16 * r + c) << (8 * c);
  }
  const uint32_t low = permute(rows[0], rows[1], 0x5140), high = permute(rows[0], rows[1], 0x7362);
  const uint32_t low2 = permute(rows[2], rows[3], 0x5140), high2 = permute(rows[2], rows[3], 0x7362);
  const std::array<uint32_t, 4> columns{permute(low, low2, 0x5410), permute(low, low2, 0x7632),
                                        permute(high, high2, 0x5410), permute(high, high2, 0x7632)};
  for (uint32_t c = 0; c < 4; ++c) {
    for (uint32_t r = 0; r < 4; ++r) EXPECT_EQ(columns[c] >> (8 * r) & 0xff, 16 * r + c) << c << " " << r;
  }
}

TEST(Fp8Rows, NamesWhatDoesNotFit) {
  const at::Tensor x = at::ones({6, 16});
  const auto quantize = [](const at::Tensor& rows, const std::optional<at::Tensor>& factors) {
    return error_of([&] { quantize_fp8_rows(rows, factors); });
  };
  expect_message(quantize(at::ones({4}), {}), {"hrm::quantize_fp8_rows", "a matrix", "[4]"});
  expect_message(quantize(at::ones({4, 4}, at::kInt), {}), {"Int", "[4, 4]"});
  expect_message(quantize(x, at::ones({15})), {"16 contiguous float32", "[15]"});
  const auto [a, scales] = quantize_fp8_rows(x);
  const auto transpose = [&, &a = a](const at::Tensor& out, const at::Tensor& ones) {
    return error_of([&] { transpose_fp8_(out, ones, a); });
  };
  expect_message(transpose(at::empty_like(a), at::ones({16})), {"hrm::transpose_fp8_", "[6, 16]"});
  expect_message(transpose(at::empty({16, 6}, a.options()), at::ones({6})), {"16 contiguous float32", "[6]"});
  const auto product = [&, &a = a, &scales = scales](const at::Tensor& b, const at::Tensor& b_scales,
                                                     const std::optional<at::Tensor>& residual) {
    return error_of([&] { fp8_rows_product(a, b, scales, b_scales, at::kBFloat16, residual); });
  };
  expect_message(product(at::ones({3, 16}), at::ones({3}), {}), {"hrm::fp8_rows_product", "Float", "[3, 16]"});
  expect_message(product(a, at::ones({5}), {}), {"one for each row", "[5]"});
  expect_message(product(a, scales, at::ones({6, 6})), {"residual must be BFloat16", "Float"});
  const Weight8 q = quantize_weight8(x, at::kFloat8_e4m3fn);
  expect_message(error_of([&] {
                   linear_weight8_grad_x(at::ones({2, 5}), q);
                 }),
                 {"hrm::linear_weight8_grad_x", "[2, 5]", "[6, 16]"});
  expect_message(error_of([&] {
                   linear_weight8_grad_x(at::ones({2, 6}), q, at::ones({6, 15}));
                 }),
                 {"workspace must be contiguous", "[6, 15]"});
}

}  // namespace
}  // namespace hrm::ops
