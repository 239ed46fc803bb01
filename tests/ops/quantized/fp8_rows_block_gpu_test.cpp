#include "ops/gpu_testing.h"
#include "ops/quantized/fp8_rows_block_cases.h"
#include "ops/quantized/fp8_rows_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8RowsBlockGpu, PartsAreTheirOpsAndThenQuantised) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{48, 80},
                                      {7, 13},
                                      {1041, 768},
                                      {300, 1024},
                                      {3, 1536},
                                      {80, 2048},
                                      {45, 4096},
                                      {5, 8192},
                                      {3, 12288}}) {
      check_norm_rows(rows, width, dtype, at::kCUDA);
    }
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{48, 80},
                                      {5, 11},
                                      {1041, 272},
                                      {300, 3072},
                                      {9, 4096},
                                      {40, 12288},
                                      {6, 16384},
                                      {2, 20480}}) {
      check_swiglu_rows(rows, width, dtype, at::kCUDA);
    }
    for (const bool rotated : {false, true}) {
      for (const bool normed : {false, true}) {
        check_qkv_gradient_rows(2, 24, {4, 2, 32}, dtype, {rotated, normed, rotated}, at::kCUDA);
        check_qkv_gradient_rows(4, 65, {16, 8, 128}, dtype, {rotated, normed, true}, at::kCUDA);
        check_qkv_gradient_rows(2, 9, {32, 8, 128}, dtype, {rotated, normed, normed}, at::kCUDA);
        check_qkv_gradient_rows(2, 72, {5, 1, 48}, dtype, {rotated, normed, false}, at::kCUDA);
        check_qkv_gradient_rows(3, 5, {3, 1, 6}, dtype, {rotated, normed, normed}, at::kCUDA);
        check_qkv_gradient_rows(1, 3, {64, 64, 256}, dtype, {rotated, normed, true}, at::kCUDA);
      }
    }
  }
}

// A row with a number that is not finite stands for nothing finite, and leaves the other rows alone.
TEST(Fp8RowsBlockGpu, RowsThatAreNotFinite) {
  HRM_NEEDS_GPU();
  const at::Tensor gate_up = normal({6, 160}, 1, at::kBFloat16, at::kCUDA);
  const Fp8RowsBeside clean = swiglu_rows(gate_up, true);
  gate_up[2][100].fill_(NAN);
  gate_up[4][3].fill_(INFINITY);
  const Fp8RowsBeside ours = swiglu_rows(gate_up, true);
  const auto stand = [](const Fp8RowsBeside& rows) { return rows_stand_for({rows.values, rows.scales}); };
  for (const int64_t row : {0, 1, 3, 5}) expect_same_bits(stand(ours)[row], stand(clean)[row], cat("row ", row));
  for (const int64_t row : {2, 4}) EXPECT_FALSE(at::isfinite(stand(ours)[row]).any().item<bool>()) << row;
}

// Rows of any number: chats are padded to multiples of 8.
TEST(Fp8RowsBlockGpu, TheLibraryMultipliesAnyNumberOfRows) {
  HRM_NEEDS_GPU();
  if (!has_fp8_products(at::kCUDA)) GTEST_SKIP() << "no products with scales for rows on this GPU";
  const Weight8 weight = quantize_weight8(normal({272, 528}, 1, at::kFloat, at::kCUDA), at::kFloat8_e4m3fn);
  for (const int64_t rows : {1, 33, 40, 72, 1000, 2041}) {
    const auto [values, scales] = quantize_fp8_rows(normal({rows, 528}, 2, at::kBFloat16, at::kCUDA));
    const at::Tensor residual = normal({rows, 272}, 3, at::kBFloat16, at::kCUDA);
    for (const bool adds : {false, true}) {
      EXPECT_TRUE(fp8_rows_product_by_library(values, weight.values, scales, weight.scales, at::kBFloat16,
                                              adds ? std::optional(residual) : std::nullopt)
                      .defined())
          << rows << " rows";
      check_fp8_rows_product(rows, 272, 528, at::kBFloat16, adds, at::kCUDA);
    }
  }
  for (const int64_t rows : {40, 1000}) check_weight8_rows(rows, 272, 144, at::kBFloat16, at::kCUDA);
}

// A weight that keeps its transposed copy gives the same gradient.
TEST(Fp8RowsBlockGpu, KeptTransposedWeights) {
  HRM_NEEDS_GPU();
  if (!has_fp8_products(at::kCUDA)) GTEST_SKIP() << "no products with scales for rows on this GPU";
  const Weight8 weight = quantize_weight8(normal({272, 528}, 1, at::kFloat, at::kCUDA), at::kFloat8_e4m3fn);
  const at::Tensor grad = normal({96, 272}, 2, at::kBFloat16, at::kCUDA);
  expect_same_bits(linear_weight8_grad_x(grad, with_transposed(weight), {}, true),
                   linear_weight8_grad_x(grad, weight, {}, true));
}

TEST(Fp8RowsBlockGpu, CapturedEqualsEager) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({1024, 256}, 1, at::kBFloat16, at::kCUDA), weight = at::ones({256}, at::kCUDA);
  const at::Tensor gate_up = normal({1024, 512}, 2, at::kBFloat16, at::kCUDA),
                   factors = normal({512}, 3, at::kFloat, at::kCUDA);
  const at::Tensor q = x.view({2, 512, 4, 64});
  const at::Tensor angle = normal({512, 32}, 4, at::kFloat, at::kCUDA), cos = angle.cos(), sin = angle.sin();
  const at::Tensor by = normal({768}, 5, at::kFloat, at::kCUDA);
  std::vector<at::Tensor> results;
  const auto run = [&] {
    results.clear();
    const auto keep = [&](const Fp8RowsBeside& rows) {
      results.insert(results.end(), {rows.wide, rows.values.view(at::kByte), rows.scales});
    };
    keep(weighted_rms_norm_rows(x, weight, 1e-5, true).y);
    keep(swiglu_rows(gate_up, true));
    keep(swiglu_backward_rows(x, gate_up, factors, true));
    keep(qkv_heads_backward_rows(q, q, q, {}, {.cos = cos, .sin = sin}, by, true));
  };
  Captured captured(run);
  captured.replay();
  std::vector<at::Tensor> replayed;
  for (const at::Tensor& t : results) replayed.push_back(t.clone());
  run();
  for (size_t i = 0; i < results.size(); ++i) expect_same_bits(replayed[i], results[i], cat("part ", i));
}

}  // namespace
}  // namespace hrm::ops
