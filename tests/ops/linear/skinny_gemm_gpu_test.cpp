// Products of a few rows, as decoding has them: by linear, linear_add and linear_swiglu.

#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"
#include "hrm/ops/linear_swiglu.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;

at::Tensor plain_gated(const at::Tensor& x, const at::Tensor& weight) {
  const auto halves = at::linear(x, weight).chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

TEST(SkinnyGemmGpu, AgainstFloat64) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const int64_t rows : {1, 2, 3, 5, 7, 8, 9, 16, 17, 32, 33, 64, 65}) {
      for (const auto& [inner, width] : {std::pair<int64_t, int64_t>{8, 1},
                                         {264, 3},
                                         {768, 96},
                                         {1032, 40},
                                         {2048, 1024},
                                         {2056, 31},
                                         {3072, 1024},
                                         {4096, 5},
                                         {64, 8200}}) {
        const std::string what = cat(dtype, " ", rows, " rows, ", inner, " -> ", width);
        const at::Tensor x = normal({rows, inner}, 1, dtype, at::kCUDA);
        const at::Tensor weight = normal({width, inner}, 2, dtype, at::kCUDA) / std::sqrt(static_cast<double>(inner));
        const at::Tensor both = normal({2 * width, inner}, 3, dtype, at::kCUDA) / std::sqrt(static_cast<double>(inner));
        const auto exact = [](const at::Tensor& t) { return t.to(at::kDouble); };
        expect_as_good(linear(x, weight, weight), at::linear(x, weight), at::linear(exact(x), exact(weight)), what, 1);
        const at::Tensor residual = normal({rows, width}, 4, dtype, at::kCUDA);
        expect_as_good(linear_add(x, weight, weight, residual), at::linear(x, weight) + residual,
                       at::linear(exact(x), exact(weight)) + exact(residual), what + ", added", 1);
        expect_as_good(linear_swiglu(x, both), plain_gated(x, both), plain_gated(exact(x), exact(both)),
                       what + ", swiglu", 1);
      }
    }
  }
}

TEST(SkinnyGemmGpu, ARowAloneGivesTheSameBits) {
  HRM_NEEDS_GPU();
  constexpr int64_t kRows = 64;
  const at::NoGradGuard no_grad;
  const at::Tensor x = normal({kRows, 768}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor weight = normal({100, 768}, 2, at::kBFloat16, at::kCUDA) / 28;
  const at::Tensor all = linear(x, weight, weight), gated = linear_swiglu(x, weight);
  for (int64_t first = 0; first < kRows; first += 5) {
    for (int64_t rows = 1; first + rows <= kRows; rows += 3) {
      const at::Tensor part = x.narrow(0, first, rows);
      expect_same_bits(linear(part, weight, weight), all.narrow(0, first, rows), cat(first, " ", rows));
      expect_same_bits(linear_swiglu(part, weight), gated.narrow(0, first, rows), cat(first, " ", rows, ", swiglu"));
    }
  }
}

// Where a cluster shares the sums (Hopper), in one round of loads and in several.
TEST(SkinnyGemmGpu, ARowAloneGivesTheSameBitsOfLongSums) {
  HRM_NEEDS_GPU();
  constexpr int64_t kRows = 32;
  const at::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& [inner, width] :
         {std::pair<int64_t, int64_t>{1024, 2048}, {1032, 40}, {2048, 1024}, {3072, 1024}, {6152, 71}}) {
      const at::Tensor x = normal({kRows, inner}, 1, dtype, at::kCUDA);
      const at::Tensor weight = normal({width, inner}, 2, dtype, at::kCUDA) / std::sqrt(static_cast<double>(inner));
      const at::Tensor residual = normal({kRows, width}, 3, dtype, at::kCUDA);
      const at::Tensor all = linear(x, weight, weight), added = linear_add(x, weight, weight, residual);
      for (int64_t rows = 1; rows <= kRows; ++rows) {
        const int64_t first = 5 * rows % (kRows + 1 - rows);
        const at::Tensor part = x.narrow(0, first, rows);
        const std::string what = cat(dtype, " ", inner, " -> ", width, ", ", rows, " rows from ", first);
        expect_same_bits(linear(part, weight, weight), all.narrow(0, first, rows), what);
        expect_same_bits(linear_add(part, weight, weight, residual.narrow(0, first, rows)),
                         added.narrow(0, first, rows), what + ", added");
      }
    }
  }
}

TEST(SkinnyGemmGpu, Captured) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const at::Tensor x = normal({3, 256}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor up = normal({1024, 256}, 2, at::kBFloat16, at::kCUDA) / 64;
  const at::Tensor down = normal({256, 512}, 3, at::kBFloat16, at::kCUDA) / 64;  // so small that the chain stays finite
  // A chain, so that a kernel that began too early would read what the one before has not written.
  const auto chain = [&] {
    at::Tensor h = x;
    for (int i = 0; i < 20; ++i) h = linear(linear_swiglu(h, up), down, down) + x;
    return h;
  };
  const at::Tensor out = at::empty_like(x);
  Captured captured([&] { out.copy_(chain()); });
  for (uint64_t seed = 10; seed < 14; ++seed) {
    x.copy_(normal({3, 256}, seed, at::kBFloat16, at::kCUDA));
    const at::Tensor want = chain();
    captured.replay();
    expect_same_bits(out, want, cat("seed ", seed));
  }
}

}  // namespace
}  // namespace hrm::ops
