#include "hrm/ops/mlp_mix.h"
#include "ops/cuda/sm90/tensor_map.h"
#include "ops/gpu_testing.h"
#include "ops/mixing/cuda/mlp_mix.h"
#include "ops/mixing/mlp_mix_cases.h"
#include "ops/mixing/mlp_mix_ways.h"

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

// Of the backward pass alone: y and rstd come from the forward kernel. Gradients are added to zeros.
std::vector<at::Tensor> gradients(const MixCase& c, const at::Tensor& y, const at::Tensor& rstd, bool takes_turns) {
  const MixTurns turns(takes_turns);
  const at::Tensor grad_gate_up = at::zeros(c.gate_up.sizes(), rstd.options());
  const at::Tensor grad_down = at::zeros(c.down.sizes(), rstd.options());
  const at::Tensor grad_h = mlp_mix_backward(c.grad_y, c.h, y, rstd, c.gate_up, c.down, grad_gate_up, grad_down);
  return {grad_h, grad_gate_up, grad_down};
}

// Both ways: the same work on each sample, sums over the batch in another order. Those of one unit have one order.
void expect_same_both_ways(const MixSizes& sizes, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const std::string what = name_of(sizes, dtype);
  const MixCase c = make_mix(sizes, dtype, at::kCUDA);
  const auto [y, rstd] = mlp_mix_forward(c.h, c.gate_up, c.down, kMixEps);
  const std::vector<at::Tensor> at_once = gradients(c, y, rstd, false), in_turns = gradients(c, y, rstd, true);
  expect_same_bits(at_once[0], in_turns[0], what + ", gradient of h");
  for (const size_t i : {1, 2}) {
    const char* const name = i == 1 ? ", gradient of gate_up" : ", gradient of down";
    if (sizes.batch * sizes.width == 64) {
      expect_same_bits(at_once[i], in_turns[i], what + name);
    } else {
      EXPECT_LE(largest_difference(at_once[i], in_turns[i]), 0x1p-13 * in_turns[i].abs().max().item<double>())
          << what << name << ": " << describe_differences(at_once[i], in_turns[i]);
    }
  }
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

TEST(MlpMixGpu, AsGoodAsPlainAtenInTurns) {
  HRM_NEEDS_GPU();
  if (!cuda::sm90::is_hopper()) GTEST_SKIP() << "the kernels that take turns need a Hopper GPU and a build for it";
  const MixTurns turns(true);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const MixSizes& sizes : mix_sizes()) {
      expect_good_mix(make_mix(sizes, dtype, at::kCUDA), name_of(sizes, dtype) + " in turns");
    }
  }
}

// Else the tests of both ways would test one of them twice.
TEST(MlpMixGpu, OneKernelOrTurns) {
  HRM_NEEDS_GPU();
  if (!cuda::sm90::is_hopper()) GTEST_SKIP() << "both ways need a Hopper GPU and a build for it";
  const auto is_one_kernel = [](int64_t length, bool takes_turns) {
    cuda::MlpMixBackward params{};
    params.batch = params.part = 3;
    params.length = length;
    params.width = 512;
    params.inner = 256;
    params.takes_turns = takes_turns;
    return cuda::mlp_mix_scratch(params).flags > 0;
  };
  for (const int64_t length : {1, 96, 97, 104, 105, 112, 113, 128}) {
    EXPECT_EQ(is_one_kernel(length, false), length <= 112) << "L " << length;
    EXPECT_FALSE(is_one_kernel(length, true)) << "L " << length;
  }
}

// On 132 multiprocessors 192 warpgroups of the one kernel write. One unit of 64 channels, one for each warpgroup of a
// block, one more, fewer units than writers, a whole round, one unit more; few hidden units, many, more than the one
// kernel takes; more positions than it takes.
TEST(MlpMixGpu, SameBothWays) {
  HRM_NEEDS_GPU();
  if (!cuda::sm90::is_hopper()) GTEST_SKIP() << "both ways need a Hopper GPU and a build for it";
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const MixSizes& sizes : std::vector<MixSizes>{{1, 97, 64, 512},
                                                       {1, 97, 128, 256},
                                                       {3, 82, 64, 256},
                                                       {5, 1, 128, 256},
                                                       {23, 17, 512, 512},
                                                       {24, 96, 512, 256},
                                                       {193, 97, 64, 512},
                                                       {3, 105, 64, 1536},
                                                       {3, 97, 64, 2048},
                                                       {5, 113, 64, 256},
                                                       {3, 128, 512, 512}}) {
      expect_same_both_ways(sizes, dtype);
    }
  }
}

// Rounds enough that all slots are used again, the last one whole and not; sums that are put away on the way; in turns
// more than one part of the batch, the last one smaller.
TEST(MlpMixGpu, SameBothWaysLarge) {
  HRM_NEEDS_GPU();
  if (!cuda::sm90::is_hopper()) GTEST_SKIP() << "both ways need a Hopper GPU and a build for it";
  for (const MixSizes& sizes : std::vector<MixSizes>{
           {120, 97, 512, 512}, {1201, 33, 64, 256}, {401, 112, 512, 256}, {97, 81, 576, 768}, {768, 97, 512, 512}}) {
    expect_same_both_ways(sizes, at::kBFloat16);
  }
  expect_same_both_ways({201, 104, 512, 512}, at::kHalf);
}

// More than one part of the batch in the backward pass, and more than one round of every block.
TEST(MlpMixGpu, LargeBatch) {
  HRM_NEEDS_GPU();
  const MixSizes sizes{401, 97, 512, 256};
  for (const bool takes_turns : {false, true}) {
    const MixTurns turns(takes_turns);
    expect_good_mix(make_mix(sizes, at::kBFloat16, at::kCUDA), name_of(sizes, at::kBFloat16) + way_name(takes_turns));
  }
  const MixSizes by_library{131, 20, 24, 64};
  expect_good_mix(make_mix(by_library, at::kBFloat16, at::kCUDA), name_of(by_library, at::kBFloat16));
}

// The batch is only a loop: a sample's result does not depend on its neighbours.
TEST(MlpMixGpu, ASampleAloneIsTheSame) {
  HRM_NEEDS_GPU();
  if (!cuda::sm90::is_hopper()) GTEST_SKIP() << "the fused kernel needs a Hopper GPU and a build for it";
  const at::NoGradGuard no_grad;
  const MixCase c = make_mix({67, 97, 512, 512}, at::kBFloat16, at::kCUDA);
  const auto [all, rstd] = mlp_mix_forward(c.h, c.gate_up, c.down, kMixEps);
  const at::Tensor grad_h = gradients(c, all, rstd, false)[0];
  for (const int64_t b : {0, 33, 66}) {
    const MixCase one{c.h.narrow(0, b, 1), c.gate_up, c.down, c.grad_y.narrow(0, b, 1)};
    const auto [y, one_rstd] = mlp_mix_forward(one.h, c.gate_up, c.down, kMixEps);
    expect_same_bits(y, all.narrow(0, b, 1), cat("sample ", b));
    expect_same_bits(gradients(one, y, one_rstd, false)[0], grad_h.narrow(0, b, 1), cat("gradient of sample ", b));
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
  for (const bool takes_turns : {false, true}) {
    const MixTurns turns(takes_turns);
    expect_same_each_time(run, 10, cat("y and the gradients of h, gate_up and down", way_name(takes_turns)));
  }
}

// Slots and flags go round many times, whoever is early or late.
TEST(MlpMixGpu, DeterministicLarge) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const MixCase c = make_mix({333, 97, 512, 512}, at::kBFloat16, at::kCUDA);
  const auto [y, rstd] = mlp_mix_forward(c.h, c.gate_up, c.down, kMixEps);
  for (const bool takes_turns : {false, true}) {
    const auto run = [&, &y = y, &rstd = rstd] { return gradients(c, y, rstd, takes_turns); };
    expect_same_each_time(run, 30, cat("the gradients of h, gate_up and down", way_name(takes_turns)));
  }
}

// Kernels whose blocks wait for each other, on two streams at a time: each begins with all of its blocks or not yet.
TEST(MlpMixGpu, TwoStreams) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const MixCase c = make_mix({37, 97, 512, 512}, at::kBFloat16, at::kCUDA);
  const auto [y, rstd] = mlp_mix_forward(c.h, c.gate_up, c.down, kMixEps);
  const std::vector<at::Tensor> alone = gradients(c, y, rstd, false);
  at::cuda::device_synchronize();
  constexpr int kTimesEach = 20;
  const std::vector<c10::cuda::CUDAStream> streams = {c10::cuda::getStreamFromPool(), c10::cuda::getStreamFromPool()};
  std::vector<std::vector<at::Tensor>> results;
  for (int i = 0; i < kTimesEach; ++i) {
    for (const c10::cuda::CUDAStream& stream : streams) {
      const c10::cuda::CUDAStreamGuard guard(stream);
      results.push_back(gradients(c, y, rstd, false));
    }
  }
  at::cuda::device_synchronize();
  for (const std::vector<at::Tensor>& result : results) {
    for (size_t i = 0; i < result.size(); ++i) expect_same_bits(result[i], alone[i], cat("result ", i));
  }
}

void expect_captured_equals_eager(int64_t batch, int64_t width, bool takes_turns) {
  const MixTurns turns(takes_turns);
  const std::string way = way_name(takes_turns);
  MixCase c = make_mix({batch, 97, width, 256}, at::kBFloat16, at::kCUDA);
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
    expect_same_bits(captured_y, y, "y" + way);
    expect_same_bits(captured_grad_h, grad_h, "gradient of h" + way);
    expect_same_bits(replayed_gate_up, grad_gate_up, "gradient of gate_up" + way);
    expect_same_bits(replayed_down, grad_down, "gradient of down" + way);
  }
}

TEST(MlpMixGpu, CapturedEqualsEager) {
  HRM_NEEDS_GPU();
  for (const bool takes_turns : {false, true}) expect_captured_equals_eager(5, 128, takes_turns);
}

// More than one round of all writers, and in turns more than one part.
TEST(MlpMixGpu, CapturedEqualsEagerLarge) {
  HRM_NEEDS_GPU();
  for (const bool takes_turns : {false, true}) expect_captured_equals_eager(201, 512, takes_turns);
}

}  // namespace
}  // namespace hrm::ops
