#include "hrm/runtime/phase_clock.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <gtest/gtest.h>

#include <string>

#include "hrm/runtime/captured_step.h"

namespace hrm {
namespace {

double gpu_ms_of(const PhaseTimes& times, const std::string& name) {
  for (const auto& [key, ms] : times) {
    if (key == name) return ms;
  }
  return 0;
}

// Replays measure, each anew, and the larger part as the larger one. The phases' sum is the time by the GPU's events.
TEST(PhaseClockGpu, PhasesOfEagerAndCapturedSteps) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const at::Device gpu(at::kCUDA, 0);
  for (const bool graphs : {false, true}) {
    PhaseClock clock(gpu);
    const PhaseClock::Scope scope(&clock);
    const at::Tensor a = at::eye(2048, at::device(gpu)), b = at::zeros_like(a);
    CapturedStep captured({.name = "products", .device = gpu, .enabled = graphs});
    const auto step = [&] {
      captured.run({1}, {a}, [&] {
        clock.end(Phase::data);
        {
          const PhaseRange range(Phase::forward);
          for (int i = 0; i < 20; ++i) b.copy_(at::mm(a, a));
        }
        const PhaseRange range(Phase::backward);
        b.copy_(at::mm(a, a));
      });
    };
    for (int i = 0; i < 5; ++i) step();
    ASSERT_EQ(captured.captured({1}), graphs);
    clock.read(5);
    EXPECT_FALSE(clock.take(5).empty());
    c10::cuda::CUDAEvent begun(cudaEventDefault), ended(cudaEventDefault);
    clock.begin();
    begun.record();
    for (int i = 0; i < 20; ++i) step();
    ended.record();
    clock.read(25);
    const PhaseTimes times = clock.take(25);
    const double forward = gpu_ms_of(times, "forward"), backward = gpu_ms_of(times, "backward");
    const double sum = forward + backward + gpu_ms_of(times, "data"), whole = begun.elapsed_time(ended);
    EXPECT_GT(backward, 0);
    EXPECT_GT(forward, 5 * backward);
    EXPECT_NEAR(sum, whole, 0.03 * whole) << (graphs ? "captured" : "eager");
  }
}

}  // namespace
}  // namespace hrm
