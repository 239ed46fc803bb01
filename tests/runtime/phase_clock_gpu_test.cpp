#include "hrm/runtime/phase_clock.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <chrono>

#include "hrm/runtime/captured_step.h"

namespace hrm {
namespace {

// Replays measure, each anew, and the larger part as the larger one.
TEST(PhaseClockGpu, PartsOfACapturedStep) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const at::Device gpu(at::kCUDA, 0);
  PhaseClock clock(gpu, 2);
  const at::Tensor a = at::eye(2048, at::device(gpu)), b = at::zeros_like(a);
  CapturedStep captured({.name = "products", .device = gpu});
  const auto step = [&] {
    captured.run({1}, {a}, [&] {
      clock.begin();
      for (int i = 0; i < 20; ++i) b.copy_(at::mm(a, a));
      clock.end(0);
      b.copy_(at::mm(a, a));
      clock.end(1);
    });
    clock.step();
  };
  for (int i = 0; i < 5; ++i) step();
  c10::cuda::device_synchronize();
  clock.take();
  ASSERT_TRUE(captured.captured({1}));
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) step();
  c10::cuda::device_synchronize();
  const double wall = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count() / 20;
  const std::vector<double> ms = clock.take();
  ASSERT_EQ(ms.size(), 2U);
  EXPECT_GT(ms[1], 0);
  EXPECT_GT(ms[0], 5 * ms[1]);
  EXPECT_LT(ms[0] + ms[1], 1.1 * wall + 0.1);
}

}  // namespace
}  // namespace hrm
