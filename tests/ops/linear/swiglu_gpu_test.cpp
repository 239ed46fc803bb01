#include "hrm/ops/swiglu.h"

#include "ops/gpu_testing.h"
#include "ops/linear/swiglu_cases.h"
#include "ops/linear/swiglu_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(SwigluGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : swiglu_widths()) {
      expect_good_swiglu(normal({5, 3, 2 * width}, 1, dtype, at::kCUDA), cat(dtype, " width ", width));
    }
    // Where exp overflows and where the sigmoid is 0 or 1.
    expect_good_swiglu(normal({16, 512}, 1, at::kFloat, at::kCUDA).mul_(60).to(dtype), cat(dtype, " large values"));
  }
}

TEST(SwigluGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_good_swiglu(normal({96, 82, 3072}, 1, dtype, at::kCUDA), cat(dtype, " a quarter of HRM's size"));
  }
}

TEST(SwigluGpu, TheValueHasTheRoundingOfPlainAten) {
  HRM_NEEDS_GPU();
  const at::Tensor gate_up = normal({1000, 3072}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor differs = swiglu(gate_up).ne(plain_swiglu(gate_up));
  // The two exponentials differ by float32 roundings, which seldom decide one to bfloat16.
  EXPECT_LE(differs.to(at::kFloat).mean().item<float>(), 1e-3);
}

// A slice that starts in the middle of a 16-byte word must take the element-wise path, with the same result.
TEST(SwigluGpu, MisalignedInputs) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t by : {int64_t{1}, 8 / static_cast<int64_t>(c10::elementSize(dtype))}) {
      const at::Tensor shifted = normal({7 * 64 + by}, 1, dtype, at::kCUDA).slice(0, by).view({7, 64});
      const at::Tensor grad_act = normal({7 * 32 + by}, 2, dtype, at::kCUDA).slice(0, by).view({7, 32});
      expect_good_swiglu(shifted, cat(dtype, " moved by ", by));
      expect_same_bits(swiglu_backward(grad_act, shifted), swiglu_backward(grad_act.clone(), shifted.clone()),
                       cat(dtype, " gradient, moved by ", by));
      expect_same_bits(swiglu(shifted), swiglu(shifted.clone()), cat(dtype, " value, moved by ", by));
    }
  }
}

TEST(SwigluGpu, NonContiguousInputs) {
  HRM_NEEDS_GPU();
  expect_good_swiglu(normal({12, 6, 4}, 1, at::kBFloat16, at::kCUDA).transpose(0, 2), "strided");
}

TEST(SwigluGpu, ReferenceBackendIsTheReference) {
  HRM_NEEDS_GPU();
  const at::Tensor gate_up = normal({7, 48}, 1, at::kBFloat16, at::kCUDA);
  const at::Tensor expected = reference::swiglu_backward(grad_for(gate_up), gate_up);
  const WithReference with_reference;
  expect_same_bits(swiglu(gate_up), reference::swiglu(gate_up));
  expect_same_bits(swiglu_backward(grad_for(gate_up), gate_up), expected);
}

TEST(SwigluGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {97, 1536}) {
      const at::Tensor gate_up = normal({20, 2 * width}, 1, dtype, at::kCUDA).requires_grad_();
      const at::Tensor grad_act = normal({20, width}, 3, dtype, at::kCUDA);
      at::Tensor act, grad;
      Captured captured([&] {
        act = swiglu(gate_up);
        grad = torch::autograd::grad({act}, {gate_up}, {grad_act})[0];
      });
      for (uint64_t round = 0; round < 3; ++round) {
        {
          const at::NoGradGuard no_grad;
          gate_up.copy_(normal({20, 2 * width}, 10 + round, dtype));
          grad_act.copy_(normal({20, width}, 20 + round, dtype));
        }
        captured.replay();
        const SwigluResult eager = run_swiglu(swiglu, gate_up, grad_act);
        expect_same_bits(act.detach(), eager.act, cat(dtype, " width ", width, " round ", round));
        expect_same_bits(grad, eager.grad, cat(dtype, " width ", width, " round ", round, ", gradient"));
      }
    }
  }
}

}  // namespace
}  // namespace hrm::ops
