#include "hrm/ops/mlp_mix.h"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/gpu_testing.h"
#include "ops/mlp_mix_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// Both sides of every choice: the widths of the kernels' tiles (96, 104, 112, 128 positions), one unit of 64 channels
// and many, batches that fill no round; and what falls to the library (L, D, F that do not fit).
std::vector<MixSizes> mix_sizes() {
  return {{3, 97, 512, 512}, {5, 81, 128, 256},  {1, 96, 64, 256},  {7, 98, 64, 256},   {3, 104, 128, 512},
          {3, 105, 64, 256}, {1, 112, 512, 256}, {5, 113, 64, 256}, {3, 128, 128, 512}, {3, 9, 64, 256},
          {3, 129, 64, 256}, {3, 97, 40, 256},   {3, 97, 64, 64},   {0, 97, 64, 256}};
}

TEST(MlpMixGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without_tf32;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const MixSizes& sizes : mix_sizes()) {
      expect_good_mix(make_mix(sizes, dtype, at::kCUDA), name_of(sizes, dtype));
    }
  }
}

// More than one part of the batch in the backward pass, and more than one round of every block.
TEST(MlpMixGpu, LargeBatch) {
  HRM_NEEDS_GPU();
  const MixSizes sizes{401, 97, 512, 256};
  expect_good_mix(make_mix(sizes, at::kBFloat16, at::kCUDA), name_of(sizes, at::kBFloat16));
  const MixSizes by_library{131, 20, 24, 64};
  expect_good_mix(make_mix(by_library, at::kBFloat16, at::kCUDA), name_of(by_library, at::kBFloat16));
}

// The batch is only a loop: a sample's result does not depend on its neighbours.
TEST(MlpMixGpu, ASampleAloneIsTheSame) {
  HRM_NEEDS_GPU();
  if (!cuda::sm90::is_hopper()) GTEST_SKIP() << "the fused kernel needs a Hopper GPU and a build for it";
  const MixCase c = make_mix({67, 97, 512, 512}, at::kBFloat16, at::kCUDA);
  const at::Tensor all = mlp_mix(c.h, c.gate_up, c.down, kMixEps);
  for (const int64_t b : {0, 33, 66}) {
    expect_same_bits(mlp_mix(c.h.narrow(0, b, 1), c.gate_up, c.down, kMixEps), all.narrow(0, b, 1), cat("sample ", b));
  }
}

TEST(MlpMixGpu, ExtremeGates) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    MixCase c = make_mix({3, 97, 64, 256}, dtype, at::kCUDA);
    c.h.select(1, 0).mul_(100);  // gates far into both ends of the logistic function
    c.h.select(2, 5).zero_();    // a column of zeros: eps alone keeps its factor finite
    expect_good_mix(c, cat(dtype, " extreme gates"));
  }
}

TEST(MlpMixGpu, NonContiguousAndMisaligned) {
  HRM_NEEDS_GPU();
  const MixCase c = make_mix({3, 97, 128, 256}, at::kBFloat16, at::kCUDA);
  const MixResult expected = run_mix(c);
  const auto shifted = [](const at::Tensor& t) {
    at::Tensor storage = at::empty({t.numel() + 1}, t.options());
    at::Tensor view = storage.narrow(0, 1, t.numel()).view(t.sizes());
    return view.copy_(t);
  };
  for (const bool misaligned : {false, true}) {
    MixCase other = c;
    for (at::Tensor* t : {&other.h, &other.grad_y, &other.gate_up, &other.down}) {
      *t = misaligned ? shifted(*t) : t->transpose(0, 1).contiguous().transpose(0, 1);
    }
    const MixResult ours = run_mix(other);
    // The library chooses another algorithm for another layout.
    const auto expect_same = cuda::sm90::is_hopper() ? &expect_same_bits : &expect_near;
    expect_same(ours.y, expected.y, "y");
    expect_same(ours.grad_h, expected.grad_h, "gradient of h");
    expect_same(ours.grad_gate_up, expected.grad_gate_up, "gradient of gate_up");
    expect_same(ours.grad_down, expected.grad_down, "gradient of down");
  }
}

TEST(MlpMixGpu, Deterministic) {
  HRM_NEEDS_GPU();
  const MixCase c = make_mix({37, 97, 512, 512}, at::kBFloat16, at::kCUDA);
  const auto run = [&] {
    const MixResult result = run_mix(c);
    return std::vector<at::Tensor>{result.y, result.grad_h, result.grad_gate_up, result.grad_down};
  };
  expect_same_each_time(run, 10, "y and the gradients of h, gate_up and down");
}

TEST(MlpMixGpu, CapturedEqualsEager) {
  HRM_NEEDS_GPU();
  MixCase c = make_mix({5, 97, 128, 256}, at::kBFloat16, at::kCUDA);
  const at::Tensor grad_gate_up = at::zeros({512, 97}, c.h.options().dtype(at::kFloat));
  const at::Tensor grad_down = at::zeros({97, 256}, c.h.options().dtype(at::kFloat));
  at::Tensor y, grad_h;
  const auto work = [&] {
    at::Tensor rstd;
    std::tie(y, rstd) = mlp_mix_forward(c.h, c.gate_up, c.down, kMixEps);
    grad_h = mlp_mix_backward(c.grad_y, c.h, y, rstd, c.gate_up, c.down, grad_gate_up, grad_down);
  };
  Captured captured(work);
  const at::Tensor captured_y = y, captured_grad_h = grad_h;
  for (const uint64_t seed : {11, 12, 13}) {
    c.h.copy_(normal(c.h.sizes(), seed, at::kBFloat16, at::kCUDA));
    c.gate_up.mul_(1.0625);
    grad_gate_up.zero_();
    grad_down.zero_();
    captured.replay();
    const at::Tensor replayed_gate_up = grad_gate_up.clone(), replayed_down = grad_down.clone();
    grad_gate_up.zero_();
    grad_down.zero_();
    work();
    expect_same_bits(captured_y, y, "y");
    expect_same_bits(captured_grad_h, grad_h, "gradient of h");
    expect_same_bits(replayed_gate_up, grad_gate_up, "gradient of gate_up");
    expect_same_bits(replayed_down, grad_down, "gradient of down");
  }
}

}  // namespace
}  // namespace hrm::ops
