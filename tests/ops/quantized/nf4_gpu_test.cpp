#include "ops/gpu_testing.h"
#include "ops/quantized/nf4_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Nf4Gpu, IsTheDefinition) {
  HRM_NEEDS_GPU();
  expect_good_nf4(at::kCUDA);
}

TEST(Nf4Gpu, WritesNothingElse) {
  HRM_NEEDS_GPU();
  expect_nf4_writes_nothing_else(at::kCUDA);
}

// A model's weights quantised here or there are the same, so that a run may change its device.
TEST(Nf4Gpu, IsWhatTheCpuGives) {
  HRM_NEEDS_GPU();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool twice : {false, true}) {
      const at::Tensor weight = normal({1000, 264}, 9, dtype);
      const Nf4Tensor here = nf4_quantize(weight, twice), there = nf4_quantize(weight.to(at::kCUDA), twice);
      const std::string what = cat(dtype, twice ? ", twice" : "");
      expect_same_bits(there.codes.to(at::kCPU), here.codes, what + ", codes");
      expect_same_bits(there.absmax.to(at::kCPU), here.absmax, what + ", absmax");
      expect_same_bits(there.scales.to(at::kCPU), here.scales, what + ", scales");
      expect_same_bits(there.offset.to(at::kCPU), here.offset, what + ", offset");
      for (const auto to : {at::kFloat, at::kBFloat16, at::kHalf}) {
        expect_same_bits(nf4_dequantize(there, weight.sizes(), to).to(at::kCPU),
                         nf4_dequantize(here, weight.sizes(), to), cat(what, " to ", to));
      }
    }
  }
}

TEST(Nf4Gpu, LargeIsItsReference) {
  HRM_NEEDS_GPU();
  expect_nf4_is_its_reference({12288, 4096}, at::kCUDA);
  expect_nf4_is_its_reference({4097, 1003}, at::kCUDA);
}

// Layers take turns in one workspace: a replay dequantises each in front of its product.
TEST(Nf4Gpu, Captured) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({32, 256}, 1, at::kBFloat16, at::kCUDA);
  const Nf4Tensor first = nf4_quantize(normal({256, 256}, 2, at::kBFloat16, at::kCUDA)),
                  second = nf4_quantize(normal({128, 256}, 3, at::kBFloat16, at::kCUDA));
  const at::Tensor workspace = at::empty({256 * 256}, x.options());
  const auto layer = [&](const at::Tensor& input, const Nf4Tensor& weight, int64_t out) {
    const at::Tensor place = workspace.narrow(0, 0, out * 256).view({out, 256});
    nf4_dequantize_(place, weight);
    return at::linear(input, place);
  };
  const auto run = [&] { return layer(layer(x, first, 256), second, 128); };
  at::Tensor y;
  Captured captured([&] { y = run(); });
  for (uint64_t i = 0; i < 3; ++i) {
    x.copy_(normal({32, 256}, 10 + i, at::kBFloat16, at::kCUDA));
    captured.replay();
    const at::Tensor replayed = y.clone();
    expect_same_bits(replayed, run(), cat("replay ", i));
    expect_same_bits(replayed,
                     at::linear(at::linear(x, nf4_dequantize(first, {256, 256}, at::kBFloat16)),
                                nf4_dequantize(second, {128, 256}, at::kBFloat16)),
                     "without a workspace");
  }
}

// Both sides of what the kernel for few rows takes; narrow and wide results, sums of one part and of several rounds.
TEST(Nf4Gpu, Products) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without;
  expect_good_linear_nf4(at::kCUDA, {{1, 64, 8},
                                     {1, 1024, 1024},
                                     {5, 192, 7},
                                     {8, 1088, 1543},
                                     {9, 2112, 33},
                                     {16, 4096, 1536},
                                     {17, 64, 3072},
                                     {32, 3072, 1552},
                                     {33, 64, 40},
                                     {4, 96, 40},
                                     {3, 12288, 17},
                                     {0, 64, 8}});
}

TEST(Nf4Gpu, RowsDoNotDependOnEachOther) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const int64_t out : {1024, 2048}) {
    const Nf4Tensor q = nf4_quantize(normal({out, 1024}, 1, at::kBFloat16, at::kCUDA));
    const at::Tensor workspace = nf4_dequantize(q, {out, 1024}, at::kBFloat16);
    ASSERT_TRUE(at::isfinite(workspace).all().item<bool>());
    const at::Tensor x = normal({32, 1024}, 2, at::kBFloat16, at::kCUDA), all = linear_nf4(x, q, workspace);
    for (const int64_t rows : {1, 8, 9, 16, 20}) {
      expect_same_bits(linear_nf4(x.narrow(0, 3, rows), q, workspace), all.narrow(0, 3, rows), cat(out, " ", rows));
    }
  }
}

}  // namespace
}  // namespace hrm::ops
