#include "hrm/runtime/captured_step.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "hrm/runtime/streams.h"
#include "support/expect_error.h"

namespace hrm {
namespace {

#define HRM_NEEDS_GPU() \
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device"

const at::Device kGpu(at::kCUDA, 0);

// A little training: a weight, a batch that the host refills, a rate on the device.
struct Training {
  explicit Training(int64_t rows)
      : batch(at::zeros({rows, 16}, at::device(kGpu))),
        weight(at::linspace(-1, 1, 16 * 8, at::device(kGpu)).view({16, 8}).clone()),
        rate(at::zeros({}, at::device(kGpu))),
        loss(at::zeros({}, at::device(kGpu))) {}

  void fill(int64_t step) {
    batch.copy_((at::arange(batch.numel(), at::device(kGpu)).view_as(batch) * (step + 1)).remainder(7) / 7);
    rate.fill_(1.0 / static_cast<double>(step + 2));
  }
  void work() {
    at::Tensor leaf = weight.detach().requires_grad_();
    const at::Tensor out = at::tanh(at::mm(batch, leaf)).square().mean();
    out.backward();
    const at::NoGradGuard no_grad;
    weight.sub_(leaf.grad() * rate);
    loss.copy_(out);
  }

  at::Tensor batch, weight, rate, loss;
};

TEST(CapturedStepGpu, ReplaysGiveWhatEagerRunsGive) {
  HRM_NEEDS_GPU();
  Training eager(32), captured(32);
  CapturedStep step({.name = "training step", .device = kGpu});
  for (int64_t i = 0; i < 60; ++i) {
    eager.fill(i);
    eager.work();
    captured.fill(i);
    step.run({32}, {captured.batch, captured.rate}, [&] { captured.work(); });
    ASSERT_TRUE(at::equal(eager.weight, captured.weight)) << "step " << i;
    ASSERT_TRUE(at::equal(eager.loss, captured.loss)) << "step " << i;
  }
  EXPECT_TRUE(step.captured({32}));
  EXPECT_EQ(step.replays(), 57);
  EXPECT_EQ(step.reason(), "");
  EXPECT_EQ(graph_pool_bytes_in_use(), 0);
}

// What was left for good gives its memory back, and starts anew should it return after all.
// Warm-ups and captures run on the compute stream, whose priority is above that of the communication (lower numbers).
TEST(CapturedStepGpu, ComputesBeforeCommunication) {
  HRM_NEEDS_GPU();
  std::vector<int> priorities;
  CapturedStep step({.name = "training step", .device = kGpu});
  const at::Tensor a = at::ones({8}, at::device(kGpu));
  for (int i = 0; i < 5; ++i) {
    step.run({8}, {a}, [&] {
      int priority = 0;
      EXPECT_EQ(cudaStreamGetPriority(c10::cuda::getCurrentCUDAStream(), &priority), cudaSuccess);
      priorities.push_back(priority);
      a.add_(1);
    });
  }
  EXPECT_TRUE(step.captured({8}));
  int communication = 0, lowest = 0, highest = 0;
  ASSERT_EQ(cudaStreamGetPriority(communication_stream(0), &communication), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&lowest, &highest), cudaSuccess);
  EXPECT_EQ(communication, lowest);
  ASSERT_EQ(priorities.size(), 4U);  // three of warm-up and the capture
  for (const int priority : priorities) EXPECT_LT(priority, communication);
  EXPECT_EQ(a.sum().item<double>(), 8 * 6);
}

TEST(CapturedStepGpu, ForgottenShapesFreeTheirMemory) {
  HRM_NEEDS_GPU();
  Training first(4096), second(24), eager(24);
  CapturedStep step({.name = "training step", .device = kGpu, .warmup = 1});
  const auto run = [&](Training& training, int64_t i) {
    training.fill(i);
    step.run({training.batch.size(0)}, {training.batch, training.rate}, [&] { training.work(); });
  };
  for (int64_t i = 0; i < 3; ++i) run(first, i);
  ASSERT_TRUE(step.captured({4096}));
  step.forget_others({4096});
  EXPECT_TRUE(step.captured({4096}));
  step.forget_others({24});
  EXPECT_FALSE(step.captured({4096}));
  for (int64_t i = 0; i < 5; ++i) {
    eager.fill(i);
    eager.work();
    run(second, i);
    ASSERT_TRUE(at::equal(eager.weight, second.weight)) << "step " << i;
  }
  EXPECT_TRUE(step.captured({24}));
  for (int64_t i = 3; i < 6; ++i) run(first, i);
  EXPECT_TRUE(step.captured({4096}));
}

// Shapes A, B, A, B in one pool, with another captured work (an evaluation) and eager allocations between them.
TEST(CapturedStepGpu, AlternatingShapesShareThePool) {
  HRM_NEEDS_GPU();
  Training small(24), large(4096), small_eager(24), large_eager(4096);
  CapturedStep step({.name = "training step", .device = kGpu, .warmup = 1});
  CapturedStep evaluation({.name = "evaluation", .device = kGpu, .warmup = 1});
  at::Tensor score = at::zeros({}, at::device(kGpu));
  const auto evaluate = [&] { score.copy_(at::tanh(at::mm(large.batch, small.weight)).sum()); };
  for (int64_t i = 0; i < 20; ++i) {
    for (auto [captured, eager] : {std::pair{&small, &small_eager}, std::pair{&large, &large_eager}}) {
      captured->fill(i);
      eager->fill(i);
      eager->work();
      step.run({captured->batch.size(0)}, {captured->batch, captured->rate}, [&] { captured->work(); });
      const at::Tensor other = at::full({1 << 20}, 3.0, at::device(kGpu));
      ASSERT_TRUE(at::equal(eager->weight, captured->weight)) << "step " << i << ", rows " << eager->batch.size(0);
    }
    evaluation.run({4096}, {large.batch}, evaluate);
    const at::Tensor expected = at::tanh(at::mm(large_eager.batch, small_eager.weight)).sum();
    ASSERT_TRUE(at::equal(score, expected)) << "evaluation " << i;
  }
  EXPECT_TRUE(step.captured({24}) && step.captured({4096}) && evaluation.captured({4096}));
  EXPECT_EQ(graph_pool_bytes_in_use(), 0);
}

TEST(CapturedStepGpu, WorkThatWaitsIsRefusedWithAReasonAndRunsEagerly) {
  HRM_NEEDS_GPU();
  CapturedStep step({.name = "test", .device = kGpu, .warmup = 1});
  at::Tensor sum = at::zeros({}, at::device(kGpu));
  const at::Tensor one = at::ones({}, at::device(kGpu));
  double seen = 0;
  for (int i = 1; i <= 6; ++i) {
    step.run({1}, {one}, [&] {
      sum.add_(one);
      seen = sum.item<double>();
    });
    EXPECT_EQ(seen, i);
  }
  EXPECT_FALSE(step.captured({1}));
  EXPECT_NE(step.reason(), "");
  // Neither the allocator nor the random numbers of LibTorch are left in the state of a capture.
  const at::Tensor random = at::rand({1 << 16}, at::device(kGpu));
  EXPECT_GT(random.std().item<double>(), 0.1);
  EXPECT_EQ(graph_pool_bytes_in_use(), 0);
  // And other work can still be captured.
  Training eager(32), captured(32);
  CapturedStep good({.name = "good", .device = kGpu, .warmup = 1});
  for (int64_t i = 0; i < 5; ++i) {
    eager.fill(i);
    captured.fill(i);
    eager.work();
    good.run({32}, {captured.batch}, [&] { captured.work(); });
  }
  EXPECT_TRUE(good.captured({32})) << good.reason();
  EXPECT_TRUE(at::equal(eager.weight, captured.weight));
}

TEST(CapturedStepGpu, WorkThatThrowsInTheCaptureRunsEagerly) {
  HRM_NEEDS_GPU();
  CapturedStep step({.name = "test", .device = kGpu, .warmup = 1});
  at::Tensor sum = at::zeros({}, at::device(kGpu));
  int calls = 0;
  for (int i = 1; i <= 4; ++i) {
    step.run({1}, {}, [&] {
      if (++calls == 2) throw std::runtime_error("only in the capture");
      sum.add_(1);
    });
  }
  EXPECT_EQ(sum.item<double>(), 4);
  EXPECT_NE(step.reason().find("only in the capture"), std::string::npos) << step.reason();
}

// A caller that asked captured() gives no work any more.
TEST(CapturedStepGpu, ARefusedShapeLeavesTheOthersTheirGraphs) {
  HRM_NEEDS_GPU();
  CapturedStep step({.name = "test", .device = kGpu, .warmup = 1});
  at::Tensor sum = at::zeros({}, at::device(kGpu));
  for (int i = 0; i < 3; ++i) step.run({1}, {}, [&] { sum.add_(1); });
  for (int i = 0; i < 3; ++i) {
    step.run({2}, {}, [&] {
      sum.add_(10);
      sum.item<float>();
    });
  }
  EXPECT_NE(step.reason(), "");
  ASSERT_TRUE(step.captured({1}));
  EXPECT_FALSE(step.captured({2}));
  const int64_t replays = step.replays();
  step.run({1}, {}, {});
  EXPECT_EQ(step.replays(), replays + 1);
  int calls = 0;
  step.run({3}, {}, [&] { ++calls; });
  EXPECT_EQ(calls, 1) << "after a refusal new shapes run eagerly";
  EXPECT_EQ(sum.item<float>(), 34);
}

TEST(CapturedStepGpu, RefusedFromTheStartAndSwitchedOff) {
  HRM_NEEDS_GPU();
  int calls = 0;
  CapturedStep refused({.name = "test", .device = kGpu, .refusal = "because"});
  for (int i = 0; i < 5; ++i) refused.run({}, {}, [&] { ++calls; });
  EXPECT_EQ(refused.reason(), "because");
  CapturedStep off({.name = "test", .device = kGpu, .enabled = false});
  for (int i = 0; i < 5; ++i) off.run({}, {}, [&] { ++calls; });
  EXPECT_EQ(off.reason(), "");
  EXPECT_EQ(calls, 10);
}

TEST(CapturedStepGpu, AMovedInputIsNoticed) {
  HRM_NEEDS_GPU();
  CapturedStep step({.name = "test", .device = kGpu, .warmup = 1});
  at::Tensor sum = at::zeros({4}, at::device(kGpu));
  at::Tensor input = at::ones({4}, at::device(kGpu));
  const auto work = [&] { sum.add_(input); };
  for (int i = 0; i < 3; ++i) step.run({}, {input}, work);
  const at::Tensor kept = input;
  input = at::ones({4}, at::device(kGpu));
  test::expect_error(ExitCode::unexpected, {"test", "input 0"}, [&] { step.run({}, {input}, work); });
  EXPECT_EQ(sum[0].item<float>(), 3);
}

// The prefetch thread allocates and frees pinned memory at any time, also while a step is captured.
TEST(CapturedStepGpu, AnotherThreadMayPinMemoryDuringTheCapture) {
  HRM_NEEDS_GPU();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (int64_t size = 1; !stop; size = size % 64 + 1) {
      at::empty({size << 16}, at::TensorOptions().pinned_memory(true)).fill_(1);
    }
  });
  Training eager(512), captured(512);
  for (int round = 0; round < 5; ++round) {
    CapturedStep step({.name = "test", .device = kGpu, .warmup = 1});
    for (int64_t i = 0; i < 4; ++i) {
      eager.fill(i);
      captured.fill(i);
      eager.work();
      step.run({}, {captured.batch}, [&] { captured.work(); });
    }
    EXPECT_TRUE(step.captured({})) << step.reason();
  }
  stop = true;
  other.join();
  EXPECT_TRUE(at::equal(eager.weight, captured.weight));
}

}  // namespace
}  // namespace hrm
