#include "ops/gpu_testing.h"
#include "ops/quantized/fp8_rows_cases.h"

// Products in 8 bits; other GPUs dequantise.
#define HRM_NEEDS_FP8_ROWS() \
  HRM_NEEDS_GPU();           \
  if (!has_fp8_products(at::kCUDA)) GTEST_SKIP() << "no products with scales for rows on this GPU"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8RowsGpu, AreTheDefinition) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool factored : {false, true}) {
      check_quantize_fp8_rows(48, 80, dtype, factored, at::kCUDA);
      check_quantize_fp8_rows(7, 13, dtype, factored, at::kCUDA);
      check_quantize_fp8_rows(0, 16, dtype, factored, at::kCUDA);
      check_quantize_fp8_rows(3, 0, dtype, factored, at::kCUDA);
    }
    for (const int64_t width : {16, 48, 1040}) check_fp8_rows_not_finite(width, dtype, at::kCUDA);
  }
}

// Every number of registers, rows that are read twice, and rows that do not begin at 16 bytes.
TEST(Fp8RowsGpu, AreWhatTheCpuGives) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {16, 272, 1024, 2048, 3072, 4096, 8208, 12288, 24576, 32768, 40000, 1033}) {
      const at::Tensor x = normal({35, width}, 5, dtype), factors = normal({width}, 6, at::kFloat) / 100;
      for (const bool factored : {false, true}) {
        const std::string what = cat(dtype, " of ", width, factored ? ", factors" : "");
        const auto by = [&](at::Device device) {
          return quantize_fp8_rows(x.to(device), factored ? std::optional(factors.to(device)) : std::nullopt);
        };
        const auto [values, scales] = by(at::kCUDA);
        const auto [want, want_scales] = by(at::kCPU);
        expect_same_bits(weight8_bytes_of(values), weight8_bytes_of(want), what);
        expect_same_bits(scales.to(at::kCPU), want_scales, what + ", scales");
        const WithReference reference;
        const auto [plain, plain_scales] = by(at::kCUDA);
        expect_same_bits(weight8_bytes_of(plain), weight8_bytes_of(want), what + ", reference");
        expect_same_bits(plain_scales.to(at::kCPU), want_scales, what + ", scales of the reference");
      }
      const at::Tensor shifted = at::empty({35 * width + 1}, x.options().device(at::kCUDA)).narrow(0, 1, 35 * width);
      shifted.copy_(x.view({-1}));
      expect_same_bits(weight8_bytes_of(std::get<0>(quantize_fp8_rows(shifted.view({35, width})))),
                       weight8_bytes_of(std::get<0>(quantize_fp8_rows(x))), cat(dtype, " of ", width, ", shifted"));
    }
  }
}

// More weights than one launch takes, and sizes that the kernels do not.
TEST(Fp8RowsGpu, WeightsAllAtOnce) {
  HRM_NEEDS_GPU();
  std::vector<std::vector<int64_t>> sizes;
  for (int64_t i = 0; i < 80; ++i) sizes.push_back({16 * (i % 9 + 1), 16 * (i % 14 + 1)});
  sizes.push_back({2304, 768});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    check_fp8_weight_rows(sizes, dtype, dtype, at::kCUDA);
    check_fp8_weight_rows({{32, 48}, {16, 16}, {7, 13}}, dtype, dtype, at::kCUDA);
    if (dtype != at::kFloat) check_fp8_weight_rows(sizes, at::kFloat, dtype, at::kCUDA);
  }
}

TEST(Fp8RowsGpu, Transposed) {
  HRM_NEEDS_GPU();
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{16, 16}, {48, 80}, {272, 144}, {1040, 4112}, {4096, 1024}, {7, 13}, {0, 16}}) {
    for (const int64_t offset : {0, 16, 1}) check_transpose_fp8(rows, columns, at::kCUDA, offset);
  }
}

// In 16 bits by the library, otherwise by the reference; sizes that are multiples of 16 and not of 64.
TEST(Fp8RowsGpu, Products) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool adds : {false, true}) {
      check_fp8_rows_product(48, 80, 112, dtype, adds, at::kCUDA);
      check_fp8_rows_product(1040, 272, 144, dtype, adds, at::kCUDA);
      check_fp8_rows_product(528, 1536, 4096, dtype, adds, at::kCUDA);
      check_fp8_rows_product(7, 13, 33, dtype, adds, at::kCUDA);
    }
  }
}

// Behind 64 large terms of a sum, tensor cores lose small ones, all 16,320 if the sum did not leave them on the way.
TEST(Fp8RowsGpu, LongSumsAreExact) {
  HRM_NEEDS_FP8_ROWS();
  constexpr int64_t kTerms = 16384;
  const at::Tensor a = at::full({48, kTerms}, 1.0, at::device(at::kCUDA).dtype(at::kFloat)), b = a.clone();
  a.narrow(1, 0, 64).fill_(448);
  const at::Tensor ones = at::ones({48}, a.options());
  const double want = 64 * 448 + kTerms - 64;
  const at::Tensor y = fp8_rows_product(a.to(at::kFloat8_e4m3fn), b.to(at::kFloat8_e4m3fn), ones, ones, at::kBFloat16);
  EXPECT_LE((y.to(at::kFloat) - want).abs().max().item<double>(), 100 + want * 0x1p-8);
}

TEST(Fp8RowsGpu, ProductsAndGradientsOfFrozenWeights) {
  HRM_NEEDS_FP8_ROWS();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    check_weight8_rows(48, 80, 112, dtype, at::kCUDA);
    check_weight8_rows(1040, 272, 144, dtype, at::kCUDA);
    check_weight8_rows(1040, 1536, 528, dtype, at::kCUDA);
    check_weight8_rows(2048, 1024, 6144, dtype, at::kCUDA);
    check_weight8_rows(96, 12288, 4096, dtype, at::kCUDA);
  }
}

// The reference quantises the same rows, so that only roundings of sums differ.
TEST(Fp8RowsGpu, TheReferenceQuantisesTheSameRows) {
  HRM_NEEDS_FP8_ROWS();
  for (const auto& [rows, in, out] : {std::tuple<int64_t, int64_t, int64_t>{48, 80, 112}, {1040, 1536, 528}}) {
    const Weight8RowsCase c = weight8_rows_case(rows, in, out, at::kBFloat16, at::kCUDA);
    const Weight8RowsResult ours = run_weight8_rows(c, true);
    const WithReference reference;
    const Weight8RowsResult plain = run_weight8_rows(c, true);
    expect_near(ours.y, plain.y, cat("y of ", rows));
    expect_near(ours.grad_x, plain.grad_x, cat("gradient of ", rows));
  }
}

// What is not multiplied in 8 bits is what it was: int8, few rows, weights whose sizes are no multiples of 16, float32.
TEST(Fp8RowsGpu, OtherProductsDequantise) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  struct Case {
    int64_t rows, in, out;
    at::ScalarType dtype, format;
  };
  for (const Case& c :
       {Case{48, 64, 80, at::kBFloat16, at::kChar}, Case{32, 64, 80, at::kBFloat16, at::kFloat8_e4m3fn},
        Case{48, 72, 80, at::kBFloat16, at::kFloat8_e4m3fn}, Case{48, 64, 72, at::kBFloat16, at::kFloat8_e4m3fn},
        Case{48, 64, 80, at::kFloat, at::kFloat8_e4m3fn}}) {
    const std::string what = cat(c.format, " ", c.dtype, " ", c.rows, " x ", c.in, " -> ", c.out);
    const at::Tensor x = normal({c.rows, c.in}, 1, c.dtype, at::kCUDA),
                     grad = normal({c.rows, c.out}, 2, c.dtype, at::kCUDA);
    const Weight8 q = quantize_weight8(normal({c.out, c.in}, 3, at::kFloat, at::kCUDA), c.format);
    ASSERT_TRUE(at::isfinite(q.scales).all().item<bool>());
    expect_same_bits(linear_weight8(x, q, {}, {}, true), linear_weight8(x, q), what);
    expect_same_bits(linear_weight8_grad_x(grad, q, {}, true), linear_weight8_grad_x(grad, q), what + ", gradient");
  }
}

// Two layers by turns in one workspace, forward and backward, in one graph.
TEST(Fp8RowsGpu, CapturedEqualsEager) {
  HRM_NEEDS_FP8_ROWS();
  const at::NoGradGuard no_grad;
  for (const int64_t rows : {48, 1040}) {
    const at::Tensor x = normal({rows, 272}, 1, at::kBFloat16, at::kCUDA);
    const Weight8 first = quantize_weight8(normal({528, 272}, 2, at::kFloat, at::kCUDA) / 16, at::kFloat8_e4m3fn),
                  second = quantize_weight8(normal({272, 528}, 3, at::kFloat, at::kCUDA) / 23, at::kFloat8_e4m3fn);
    ASSERT_TRUE(at::isfinite(second.scales).all().item<bool>());
    const at::Tensor workspace = at::empty({528 * 272}, x.options());
    const auto room = [&](const Weight8& weight) { return workspace.view(weight.values.sizes()); };
    const auto run = [&] {
      const at::Tensor h = linear_weight8(x, first, {}, room(first), true);
      const at::Tensor y = linear_weight8(h, second, x, room(second), true);
      const at::Tensor grad = linear_weight8_grad_x(y, second, room(second), true);
      return std::vector<at::Tensor>{y, linear_weight8_grad_x(grad, first, room(first), true)};
    };
    std::vector<at::Tensor> results;
    Captured captured([&] { results = run(); });
    for (uint64_t i = 0; i < 3; ++i) {
      x.copy_(normal({rows, 272}, 10 + i, at::kBFloat16, at::kCUDA));
      captured.replay();
      const std::vector<at::Tensor> replayed{results[0].clone(), results[1].clone()}, eager = run();
      for (size_t k = 0; k < eager.size(); ++k) {
        expect_same_bits(replayed[k], eager[k], cat(rows, " rows, replay ", i, ", result ", k));
      }
    }
    expect_same_each_time(run, 20, cat(rows, " rows"));
  }
}

}  // namespace
}  // namespace hrm::ops
