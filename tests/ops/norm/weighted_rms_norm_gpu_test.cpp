#include "hrm/ops/weighted_rms_norm.h"

#include "ops/gpu_testing.h"
#include "ops/norm/weighted_rms_norm_cases.h"
#include "ops/norm/weighted_rms_norm_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(WeightedRmsNormGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : weighted_norm_widths()) {
      expect_good_weighted_norm(normal({5, 3, width}, 1, dtype, at::kCUDA), cat(dtype, " width ", width));
      const at::Tensor shifted = normal({7 * width + 1}, 1, dtype, at::kCUDA).slice(0, 1).view({7, width});
      expect_good_weighted_norm(shifted, cat(dtype, " width ", width, ", misaligned"));
    }
    // More rows than parts that they are summed in.
    expect_good_weighted_norm(normal({1500, 72}, 1, dtype, at::kCUDA), cat(dtype, " many rows"));
    expect_good_weighted_norm(normal({1500, 73}, 1, dtype, at::kCUDA), cat(dtype, " many odd rows"));
    // Several rows for each warp, and a different number of them.
    expect_good_weighted_norm(normal({9001, 72}, 1, dtype, at::kCUDA), cat(dtype, " more rows"));
    expect_good_weighted_norm(normal({7000, 512}, 1, dtype, at::kCUDA), cat(dtype, " more wide rows"));
  }
  expect_good_weighted_norm(normal({24, 6, 4}, 1, at::kBFloat16, at::kCUDA).transpose(0, 2), "strided");
  expect_good_weighted_norm(at::zeros({0, 4, 8}, at::device(at::kCUDA)), "empty");
}

TEST(WeightedRmsNormGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  expect_good_weighted_norm(normal({16, 1024, 768}, 1, at::kBFloat16, at::kCUDA), "a language model's size");
}

TEST(WeightedRmsNormGpu, ReferenceBackendIsTheReference) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({7, 24}, 1, at::kBFloat16, at::kCUDA), weight = normal({24}, 2, at::kFloat, at::kCUDA);
  const auto expected = reference::weighted_rms_norm(x, weight, 1e-5);
  const WithReference with_reference;
  expect_same_bits(weighted_rms_norm(x, weight, 1e-5), std::get<0>(expected));
}

TEST(WeightedRmsNormGpu, SameBitsEachTime) {
  HRM_NEEDS_GPU();
  for (const int64_t width : {97, 768, 3001}) {
    const at::Tensor x = normal({3000, width}, 1, at::kFloat, at::kCUDA),
                     g = normal({3000, width}, 3, at::kFloat, at::kCUDA),
                     weight = normal({width}, 2, at::kFloat, at::kCUDA);
    expect_same_each_time(
        [&] {
          const auto [y, rstd] = weighted_rms_norm_forward(x, weight, 1e-5);
          const auto [grad_x, grad_weight] = weighted_rms_norm_backward(g, x, rstd, weight, g);
          return std::vector<at::Tensor>{y, grad_x, grad_weight};
        },
        5, cat("width ", width));
  }
}

TEST(WeightedRmsNormGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const int64_t width : {97, 768, 3000}) {
    const at::Tensor x = normal({20, width}, 1, at::kBFloat16, at::kCUDA),
                     g = normal({20, width}, 3, at::kBFloat16, at::kCUDA),
                     weight = normal({width}, 2, at::kFloat, at::kCUDA);
    WeightedNormResult got;
    Captured captured([&] { got = run_weighted_norm(weighted_rms_norm_stream, x, weight, g, g, 1e-5); });
    for (uint64_t round = 0; round < 3; ++round) {
      x.copy_(normal({20, width}, 10 + round, at::kBFloat16));
      g.copy_(normal({20, width}, 20 + round, at::kBFloat16));
      captured.replay();
      const WeightedNormResult eager = run_weighted_norm(weighted_rms_norm_stream, x, weight, g, g, 1e-5);
      expect_same_bits(got.y, eager.y, cat("width ", width));
      expect_same_bits(got.grad_x, eager.grad_x, cat("width ", width));
      expect_same_bits(got.grad_weight, eager.grad_weight, cat("width ", width));
    }
  }
}

}  // namespace
}  // namespace hrm::ops
