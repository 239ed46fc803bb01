// The GPU's clock, in the stream and in captured steps.

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "hrm/parallel/step_clock.h"
#include "hrm/runtime/captured_step.h"

namespace hrm::parallel {
namespace {

class StepClockGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() < 1) GTEST_SKIP() << "this machine has no GPU";
  }
};

// So many of them take some milliseconds.
void work(const at::Tensor& a, int times) {
  for (int i = 0; i < times; ++i) at::mm(a, a);
}

TEST_F(StepClockGpu, WaitsAreNoWork) {
  const auto options = at::TensorOptions().device(at::kCUDA).dtype(at::kDouble);
  const at::Tensor a = at::ones({4096, 4096}, options.dtype(at::kFloat));
  StepClock clock(at::Device(at::kCUDA, 0));
  at::Tensor own = at::full({}, -1, options), waited = at::full({}, -1, options);
  work(a, 2);
  clock.begin_step(own, waited);
  EXPECT_EQ(own.item<double>(), 0);
  // The host does not wait, so that both parts lie one after the other on the GPU.
  clock.begin_step(own, waited);
  {
    const StepClock::Wait wait(&clock);
    work(a, 30);
  }
  work(a, 10);
  clock.begin_step(own, waited);
  const double worked_ms = own.item<double>(), waited_ms = waited.item<double>();
  EXPECT_GT(worked_ms, 0.5);
  EXPECT_GT(waited_ms, 1.5 * worked_ms);
  EXPECT_LT(waited_ms, 6 * worked_ms);
  // A host that is late counts as work.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  clock.begin_step(own, waited);
  EXPECT_GE(own.item<double>(), 49);
  EXPECT_EQ(waited.item<double>(), 0);
}

TEST_F(StepClockGpu, Captured) {
  const auto options = at::TensorOptions().device(at::kCUDA).dtype(at::kDouble);
  const at::Tensor a = at::ones({2048, 2048}, options.dtype(at::kFloat));
  StepClock clock(at::Device(at::kCUDA, 0));
  at::Tensor own = at::zeros({}, options), waited = at::zeros({}, options);
  CapturedStep step({.name = "step", .device = at::Device(at::kCUDA, 0), .enabled = true, .warmup = 2});
  for (int turn = 0; turn < 6; ++turn) {
    step.run({1}, {own, waited}, [&] {
      clock.begin_step(own, waited);
      work(a, 5);
      const StepClock::Wait wait(&clock);
      work(a, 5);
    });
    if (turn < 2) continue;  // in the second the GPU finds its clocks
    EXPECT_GT(own.item<double>(), 0) << turn;
    EXPECT_GT(waited.item<double>(), 0) << turn;
    EXPECT_LT(waited.item<double>(), 1000) << turn;
  }
  EXPECT_GT(step.replays(), 0) << step.reason();
}

}  // namespace
}  // namespace hrm::parallel
