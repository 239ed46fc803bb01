#include "hrm/ops/rms_norm.h"

#include "ops/gpu_testing.h"
#include "ops/norm/rms_norm_cases.h"
#include "ops/norm/rms_norm_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(RmsNormGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : norm_widths()) {
      // 15 rows: the last block of four warps is not full.
      expect_good_norm(normal({5, 3, width}, 1, dtype, at::kCUDA), normal({5, 3, width}, 2, dtype, at::kCUDA),
                       cat(dtype, " width ", width));
    }
  }
}

TEST(RmsNormGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_good_norm(normal({384, 82, 512}, 1, dtype, at::kCUDA), normal({384, 82, 512}, 2, dtype, at::kCUDA),
                     cat(dtype, " HRM's size"));
    expect_good_norm(normal({64, 512, 97}, 1, dtype, at::kCUDA), normal({64, 512, 97}, 2, dtype, at::kCUDA),
                     cat(dtype, " TRM's norm over the sequence"));
  }
}

TEST(RmsNormGpu, SecondGradient) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : norm_widths()) expect_good_second_gradient(dtype, width, at::kCUDA);
  }
}

TEST(RmsNormGpu, ExtremeRows) {
  HRM_NEEDS_GPU();
  at::Tensor x = normal({6, 512}, 1, at::kFloat, at::kCUDA);
  x[0].zero_();
  x[1].mul_(1e-12);
  x[2].mul_(1e12);
  x[3][5] = 1e6;
  expect_good_norm(x, at::zeros_like(x), "extreme rows");
}

// A slice that starts in the middle of a 16-byte word must take the element-wise path, with the same result.
TEST(RmsNormGpu, MisalignedInputs) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {8, 512, 4096}) {
      const auto shifted = [&](uint64_t seed, int64_t by) {
        return normal({7 * width + by}, seed, dtype, at::kCUDA).slice(0, by).view({7, width});
      };
      expect_good_norm(shifted(1, 1), shifted(2, 0), cat(dtype, " width ", width, ", x misaligned"));
      expect_good_norm(shifted(1, 0), shifted(2, 3), cat(dtype, " width ", width, ", residual misaligned"));
      // Aligned to 8 bytes, not to 16.
      const int64_t half = 8 / static_cast<int64_t>(c10::elementSize(dtype));
      expect_good_norm(shifted(1, half), shifted(2, half), cat(dtype, " width ", width, ", 8-byte aligned"));
    }
  }
}

TEST(RmsNormGpu, MisalignedGradient) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({7, 512}, 1, at::kBFloat16, at::kCUDA);
  const auto [y, rstd] = rms_norm_residual_forward(x, x, 1e-5);
  const at::Tensor shifted = normal({7 * 512 + 1}, 3, at::kBFloat16, at::kCUDA).slice(0, 1).view({7, 512});
  // Two orders of the same float32 sum, one rounding to bfloat16: neighbours at most.
  const at::Tensor a = rms_norm_backward(shifted, y, rstd);
  const at::Tensor b = rms_norm_backward(shifted.clone(), y, rstd);
  EXPECT_LE(largest_difference(a, b), 0x1p-7 * b.abs().max().item<double>());
}

TEST(RmsNormGpu, NonContiguousInputs) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = normal({24, 6, 4}, 1, dtype, at::kCUDA).transpose(0, 2);
    const at::Tensor residual = normal({4, 6, 48}, 2, dtype, at::kCUDA).slice(2, 0, 48, 2);
    expect_good_norm(x, residual, "strided");
    expect_same_bits(rms_norm_residual(x, residual, 1e-5),
                     rms_norm_residual(x.contiguous(), residual.contiguous(), 1e-5));
  }
}

TEST(RmsNormGpu, AgreesWithTheCpu) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({33, 512}, 1, at::kFloat);
  const at::Tensor residual = normal({33, 512}, 2, at::kFloat);
  const at::Tensor grad_y = normal({33, 512}, 3, at::kFloat);
  const NormResult cpu = run_norm(rms_norm_residual, x, residual, grad_y, 1e-5);
  const NormResult gpu = run_norm(rms_norm_residual, x.cuda(), residual.cuda(), grad_y.cuda(), 1e-5);
  EXPECT_LE(largest_difference(cpu.y, gpu.y), 1e-6 * cpu.y.abs().max().item<double>());
  EXPECT_LE(largest_difference(cpu.grad_x, gpu.grad_x), 1e-6 * cpu.grad_x.abs().max().item<double>());
}

TEST(RmsNormGpu, ReferenceBackendIsTheReference) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({7, 24}, 1, at::kBFloat16, at::kCUDA);
  const auto expected = reference::rms_norm_residual(x, x, 1e-5);
  const WithReference with_reference;
  const auto [y, rstd] = rms_norm_residual_forward(x, x, 1e-5);
  expect_same_bits(y, expected.y);
  expect_same_bits(rstd, expected.rstd);
}

TEST(RmsNormGpu, SameBitsEachTime) {
  HRM_NEEDS_GPU();
  for (const int64_t width : {97, 512, 5001}) {
    SCOPED_TRACE(width);
    const at::Tensor x = normal({1000, width}, 1, at::kFloat, at::kCUDA);
    const at::Tensor grad_y = normal({1000, width}, 3, at::kFloat, at::kCUDA);
    const NormResult first = run_norm(rms_norm_residual, x, grad_y, grad_y, 1e-5);
    for (int i = 0; i < 3; ++i) {
      const NormResult again = run_norm(rms_norm_residual, x, grad_y, grad_y, 1e-5);
      expect_same_bits(again.y, first.y);
      expect_same_bits(again.grad_x, first.grad_x);
    }
  }
}

TEST(RmsNormGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {97, 512, 5000}) {
      const at::Tensor x = normal({20, width}, 1, dtype, at::kCUDA).requires_grad_();
      const at::Tensor residual = normal({20, width}, 2, dtype, at::kCUDA);
      const at::Tensor grad_y = normal({20, width}, 3, dtype, at::kCUDA);
      at::Tensor y, grad_x;
      Captured captured([&] {
        y = rms_norm_residual(x, residual, 1e-5);
        grad_x = torch::autograd::grad({y}, {x}, {grad_y})[0];
      });
      for (uint64_t round = 0; round < 4; ++round) {
        {
          const at::NoGradGuard no_grad;
          x.copy_(normal({20, width}, 10 + round, dtype));
          grad_y.copy_(normal({20, width}, 20 + round, dtype));
        }
        captured.replay();
        const NormResult eager = run_norm(rms_norm_residual, x, residual, grad_y, 1e-5);
        expect_same_bits(y.detach(), eager.y, cat(dtype, " width ", width, " round ", round));
        expect_same_bits(grad_x, eager.grad_x, cat(dtype, " width ", width, " round ", round, ", gradient"));
      }
    }
  }
}

TEST(RmsNormGpu, BadInputIsNamed) {
  HRM_NEEDS_GPU();
  const at::Tensor x = at::zeros({2, 8}, at::device(at::kCUDA));
  expect_message(error_of([&] {
                   rms_norm_residual(x, at::zeros({2, 9}, x.options()), 1e-5);
                 }),
                 {"hrm::rms_norm_residual", "[2, 8]", "[2, 9]"});
  expect_message(error_of([&] {
                   rms_norm_residual(x, at::zeros({2, 8}), 1e-5);
                 }),
                 {"hrm::rms_norm_residual", "cuda", "cpu", "[2, 8]"});
}

}  // namespace
}  // namespace hrm::ops
