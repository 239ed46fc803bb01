#include "ops/gpu_testing.h"
#include "ops/quantized/fp8_block_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8BlockGpu, PartsAreTheirOpsAndThenQuantised) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool flag : {false, true}) {
      check_norm_fp8(48, 80, dtype, flag, at::kCUDA);
      check_norm_fp8(7, 13, dtype, flag, at::kCUDA);
      check_norm_fp8(1040, 768, dtype, flag, at::kCUDA);
      check_norm_fp8(16912, 272, dtype, flag, at::kCUDA);
      check_norm_fp8(80, 4096, dtype, flag, at::kCUDA);
      check_swiglu_fp8(48, 80, dtype, flag, at::kCUDA);
      check_swiglu_fp8(1040, 272, dtype, flag, at::kCUDA);
      check_swiglu_fp8(5, 11, dtype, flag, at::kCUDA);
      for (const bool rotated : {false, true}) {
        check_qkv_gradient_fp8(2, 24, {4, 2, 32}, dtype, flag, rotated, rotated, at::kCUDA);
        check_qkv_gradient_fp8(5, 208, {12, 12, 64}, dtype, flag, rotated, flag, at::kCUDA);
        check_qkv_gradient_fp8(2, 72, {5, 1, 48}, dtype, flag, rotated, flag, at::kCUDA);
        check_qkv_gradient_fp8(3, 5, {3, 1, 6}, dtype, flag, rotated, flag, at::kCUDA);
      }
    }
    for (const auto& [rows, in, width] : {std::tuple{48, 96, 48}, std::tuple{1040, 768, 256}, std::tuple{16, 16, 128},
                                          std::tuple{4096, 768, 2048}, std::tuple{304, 4096, 256}}) {
      check_linear_swiglu(rows, in, width, dtype, at::kCUDA);
    }
    check_fp8_residual(48, 96, 64, dtype, at::kCUDA);
    check_fp8_residual(1040, 768, 256, dtype, at::kCUDA);
    check_fp8_residual(512, 4096, 256, dtype, at::kCUDA);
  }
}

TEST(Fp8BlockGpu, CountsWhatIsClamped) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool e5m2 : {false, true}) {
      check_block_counts(32, 48, dtype, e5m2, at::kCUDA);
      check_block_counts(1040, 272, dtype, e5m2, at::kCUDA);
      check_block_counts(4096, 1024, dtype, e5m2, at::kCUDA);
    }
  }
}

// By the kernels and by the ops one by one, of one size.
TEST(Fp8BlockGpu, LargeAreTheirReference) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({4096, 1024}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor weight = at::ones({1024}, at::device(at::kCUDA)), slot = wide_slot(32, false, at::kCUDA);
  const at::Tensor gate_up = normal({4096, 2048}, 2, at::kBFloat16, at::kCUDA);
  const Fp8Normed ours = weighted_rms_norm_fp8(x, weight, 1e-5, slot, true);
  const at::Tensor slot2 = wide_slot(2048, true, at::kCUDA);
  const Fp8SwigluGradient gates = swiglu_backward_fp8(x, gate_up, slot2, true, slot, true, true);
  const WithReference reference;
  const Fp8Normed plain = weighted_rms_norm_fp8(x, weight, 1e-5, wide_slot(32, false, at::kCUDA), true);
  const auto differ = [](const at::Tensor& a, const at::Tensor& b) {
    return a.to(at::kFloat).ne(b.to(at::kFloat)).to(at::kFloat).mean().item<double>();
  };
  EXPECT_LE(differ(ours.y.values, plain.y.values), 2e-3);
  const Fp8SwigluGradient want =
      swiglu_backward_fp8(x, gate_up, wide_slot(2048, true, at::kCUDA), true, slot, true, true);
  // The plain formula rounds twice on the way to the gate's gradient.
  EXPECT_LE(differ(gates.gate_up.values, want.gate_up.values), 1e-2);
  EXPECT_LE(differ(gates.act_transposed, want.act_transposed), 2e-3);
}

TEST(Fp8BlockGpu, CapturedEqualsEager) {
  HRM_NEEDS_GPU();
  const at::Tensor x = normal({1024, 256}, 1, at::kBFloat16, at::kCUDA), weight = at::ones({256}, at::kCUDA);
  const at::Tensor gate_up = normal({1024, 512}, 2, at::kBFloat16, at::kCUDA);
  const at::Tensor slot = wide_slot(32, false, at::kCUDA), grad_slot = wide_slot(2048, true, at::kCUDA);
  Fp8Normed normed;
  Fp8Pair act;
  Fp8SwigluGradient gates;
  const auto run = [&] {
    normed = weighted_rms_norm_fp8(x, weight, 1e-5, slot, true);
    act = swiglu_fp8(gate_up, slot);
    gates = swiglu_backward_fp8(x, gate_up, grad_slot, true, slot, true, true);
  };
  Captured captured(run);
  captured.replay();
  const std::vector<at::Tensor> replayed{normed.y.values.clone(), normed.y.transposed.clone(), act.values.clone(),
                                         gates.gate_up.values.clone(), gates.act_transposed.clone()};
  run();
  const std::vector<at::Tensor> eager{normed.y.values, normed.y.transposed, act.values, gates.gate_up.values,
                                      gates.act_transposed};
  for (size_t i = 0; i < eager.size(); ++i) {
    expect_same_bits(replayed[i].view(at::kByte), eager[i].view(at::kByte), cat("part ", i));
  }
}

}  // namespace
}  // namespace hrm::ops
