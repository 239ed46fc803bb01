#include "ops/gpu_testing.h"
#include "ops/quantized/weight8_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Weight8Gpu, IsTheDefinition) {
  HRM_NEEDS_GPU();
  expect_good_weight8(at::kCUDA);
}

TEST(Weight8Gpu, WritesNothingElse) {
  HRM_NEEDS_GPU();
  expect_weight8_writes_nothing_else(at::kCUDA);
}

// A model's weights quantised here or there are the same, so that a run may change its device.
TEST(Weight8Gpu, IsWhatTheCpuGives) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType format : kWeight8Formats) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor weight = normal({1000, 264}, 9, dtype);
      const Weight8 here = quantize_weight8(weight, format), there = quantize_weight8(weight.to(at::kCUDA), format);
      const std::string what = cat(format, " ", dtype);
      expect_same_bits(weight8_bytes_of(there.values), weight8_bytes_of(here.values), what + ", values");
      expect_same_bits(there.scales.to(at::kCPU), here.scales, what + ", scales");
      for (const auto to : {at::kFloat, at::kBFloat16, at::kHalf}) {
        expect_same_bits(dequantize_weight8(there, to).to(at::kCPU), dequantize_weight8(here, to),
                         cat(what, " to ", to));
      }
    }
  }
}

TEST(Weight8Gpu, ProductsAndGradients) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without;
  expect_good_linear_weight8(at::kCUDA, {{1, 16, 8},
                                         {1, 1024, 1024},
                                         {5, 48, 7},
                                         {8, 528, 1543},
                                         {9, 2064, 33},
                                         {16, 4096, 1536},
                                         {17, 64, 3072},
                                         {32, 1040, 1552},
                                         {33, 64, 40},    // beyond the kernel's rows
                                         {4, 33, 40},     // no multiple of 16
                                         {3, 12288, 17},  // several rounds of a warp
                                         {0, 16, 8}});
}

// A row alone is the row among others.
TEST(Weight8Gpu, RowsDoNotDependOnEachOther) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const at::ScalarType format : kWeight8Formats) {
    for (const int64_t out : {1024, 2048}) {
      const Weight8 q = quantize_weight8(normal({out, 1024}, 1, at::kBFloat16, at::kCUDA), format);
      ASSERT_TRUE(at::isfinite(q.scales).all().item<bool>());
      const at::Tensor x = normal({32, 1024}, 2, at::kBFloat16, at::kCUDA), all = linear_weight8(x, q);
      for (const int64_t rows : {1, 8, 9, 16, 20}) {
        expect_same_bits(linear_weight8(x.narrow(0, 3, rows), q), all.narrow(0, 3, rows), cat(format, " ", rows));
      }
    }
  }
}

// Rows that begin anywhere, a weight that does not begin at 16 bytes, and a residual with strides.
TEST(Weight8Gpu, Alignment) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const at::ScalarType format : kWeight8Formats) {
    const Weight8 q = quantize_weight8(normal({48, 64}, 1, at::kBFloat16, at::kCUDA), format);
    ASSERT_TRUE(at::isfinite(q.scales).all().item<bool>());
    const at::Tensor x = normal({6, 64}, 2, at::kBFloat16, at::kCUDA),
                     residual = normal({48, 6}, 3, at::kBFloat16, at::kCUDA).t();
    const at::Tensor want = linear_weight8(x, q, residual.contiguous());
    const at::Tensor shifted = at::empty({6 * 64 + 1}, x.options()).narrow(0, 1, 6 * 64).view({6, 64});
    shifted.copy_(x);
    expect_same_bits(linear_weight8(shifted, q, residual), want, cat(format, ", x"));
    const at::Tensor bytes = at::empty({48 * 64 + 1}, q.values.options());
    const at::Tensor odd = bytes.narrow(0, 1, 48 * 64).view({48, 64});
    odd.view(at::kByte).copy_(q.values.view(at::kByte));
    expect_near(linear_weight8(x, {.values = odd, .scales = q.scales}, residual), want, cat(format, ", weight"));
  }
}

// Two layers in one graph, by the kernel and, with more rows, by turns in one workspace.
TEST(Weight8Gpu, Captured) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const at::ScalarType format : kWeight8Formats) {
    for (const int64_t rows : {12, 48}) {
      const at::Tensor x = normal({rows, 256}, 1, at::kBFloat16, at::kCUDA);
      const Weight8 first = quantize_weight8(normal({256, 256}, 2, at::kBFloat16, at::kCUDA), format),
                    second = quantize_weight8(normal({128, 256}, 3, at::kBFloat16, at::kCUDA), format);
      ASSERT_TRUE(at::isfinite(second.scales).all().item<bool>());
      const at::Tensor workspace = at::empty({256 * 256}, x.options());
      const auto layer = [&](const at::Tensor& input, const Weight8& weight) {
        const int64_t out = weight.values.size(0);
        return linear_weight8(input, weight, {}, workspace.narrow(0, 0, out * 256).view({out, 256}));
      };
      const auto run = [&] { return layer(layer(x, first), second); };
      at::Tensor y;
      Captured captured([&] { y = run(); });
      for (uint64_t i = 0; i < 3; ++i) {
        x.copy_(normal({rows, 256}, 10 + i, at::kBFloat16, at::kCUDA));
        captured.replay();
        const at::Tensor replayed = y.clone();
        expect_same_bits(replayed, run(), cat(format, " replay ", i));
      }
    }
  }
}

TEST(Weight8Gpu, LargeIsItsReference) {
  HRM_NEEDS_GPU();
  const at::Tensor weight = normal({6144, 4096}, 5, at::kBFloat16, at::kCUDA);
  for (const at::ScalarType format : kWeight8Formats) {
    const auto run = [&] { return quantize_weight8(weight, format); };
    const Weight8 ours = run();
    const at::Tensor back = dequantize_weight8(ours, at::kBFloat16);
    const WithReference reference;
    const Weight8 plain = run();
    EXPECT_TRUE(at::equal(ours.values.view(at::kByte), plain.values.view(at::kByte))) << format;
    EXPECT_TRUE(at::equal(ours.scales, plain.scales)) << format;
    EXPECT_TRUE(at::equal(back, dequantize_weight8(plain, at::kBFloat16))) << format;
  }
}

}  // namespace
}  // namespace hrm::ops
