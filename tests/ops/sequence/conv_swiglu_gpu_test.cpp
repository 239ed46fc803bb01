#include "ops/gpu_testing.h"
#include "ops/sequence/conv_swiglu_cases.h"
#include "ops/sequence/conv_swiglu_impl.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(ConvSwigluGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact_products;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [B, L, F] : conv_swiglu_sizes()) {
      expect_good_conv_swiglu(conv_swiglu_inputs(B, L, F, dtype, at::kCUDA), cat(dtype, " ", B, "x", L, "x", F));
    }
    // Where exp overflows and where the sigmoid is 0 or 1.
    ConvSwigluInputs large = conv_swiglu_inputs(4, 40, 64, at::kFloat, at::kCUDA);
    large.gate_up = (large.gate_up * 60).to(dtype);
    large.grad_act = large.grad_act.to(dtype);
    expect_good_conv_swiglu(large, cat(dtype, " large values"));
  }
}

// More groups of runs than blocks, so that each block walks along several.
TEST(ConvSwigluGpu, AsGoodAsPlainAtenLarge) {
  HRM_NEEDS_GPU();
  const WithoutTf32 exact_products;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    expect_good_conv_swiglu(conv_swiglu_inputs(384, 82, 1536, dtype, at::kCUDA), cat(dtype, " a step of the recipe"));
  }
}

TEST(ConvSwigluGpu, CausalWithinASample) {
  HRM_NEEDS_GPU();
  expect_causal_conv_swiglu(at::kCUDA);
}

// Pointers that are not aligned to 16 bytes take the element-wise path. Values do not depend on it, sums do.
TEST(ConvSwigluGpu, MisalignedInputs) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const ConvSwigluInputs in = conv_swiglu_inputs(3, 20, 64, dtype, at::kCUDA);
    const auto moved = [](const at::Tensor& t) {
      const at::Tensor copy = at::empty({t.numel() + 1}, t.options()).slice(0, 1).view(t.sizes());
      copy.copy_(t);
      return copy;
    };
    const ConvSwigluInputs shifted{moved(in.gate_up), moved(in.taps), moved(in.bias), moved(in.grad_act)};
    expect_good_conv_swiglu(shifted, cat(dtype, " moved by one element"));
    expect_same_bits(conv_swiglu(shifted.gate_up, shifted.taps, shifted.bias),
                     conv_swiglu(in.gate_up, in.taps, in.bias), cat(dtype, " value"));
    expect_same_bits(std::get<0>(conv_swiglu_backward(shifted.grad_act, shifted.gate_up, shifted.taps, shifted.bias)),
                     std::get<0>(conv_swiglu_backward(in.grad_act, in.gate_up, in.taps, in.bias)),
                     cat(dtype, " gradient"));
  }
}

TEST(ConvSwigluGpu, ReferenceBackendIsTheReference) {
  HRM_NEEDS_GPU();
  const ConvSwigluInputs in = conv_swiglu_inputs(2, 20, 48, at::kBFloat16, at::kCUDA);
  const WithReference with_reference;
  expect_same_bits(conv_swiglu(in.gate_up, in.taps, in.bias), reference::conv_swiglu(in.gate_up, in.taps, in.bias));
  expect_same_bits(std::get<1>(conv_swiglu_backward(in.grad_act, in.gate_up, in.taps, in.bias)),
                   std::get<1>(reference::conv_swiglu_backward(in.grad_act, in.gate_up, in.taps, in.bias, true)));
}

TEST(ConvSwigluGpu, SameBitsEachTimeAndInACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t F : {97, 256}) {
      const ConvSwigluInputs in = conv_swiglu_inputs(64, 50, F, dtype, at::kCUDA);
      const auto run = [&] {
        const auto [gate_up, taps, bias] = conv_swiglu_backward(in.grad_act, in.gate_up, in.taps, in.bias);
        return std::vector<at::Tensor>{conv_swiglu(in.gate_up, in.taps, in.bias), gate_up, taps, bias};
      };
      expect_same_each_time(run, 5, cat(dtype, " width ", F));
      std::vector<at::Tensor> got;
      Captured captured([&] { got = run(); });
      for (uint64_t round = 0; round < 3; ++round) {
        in.gate_up.copy_(normal(in.gate_up.sizes(), 10 + round, dtype));
        in.taps.copy_(normal(in.taps.sizes(), 20 + round, at::kFloat));
        captured.replay();
        const std::vector<at::Tensor> eager = run();
        for (size_t i = 0; i < eager.size(); ++i) expect_same_bits(got[i], eager[i], cat(dtype, " result ", i));
      }
    }
  }
}

}  // namespace
}  // namespace hrm::ops
