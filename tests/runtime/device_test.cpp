#include "hrm/runtime/device.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "hrm/build_config.h"
#include "support/expect_error.h"

namespace hrm {
namespace {

// This program sees no GPU, wherever it runs: CUDA reads the variable at its first call.
const bool kNoGpu = setenv("CUDA_VISIBLE_DEVICES", "", 1) == 0;

config::Config on(config::DeviceChoice device) {
  config::Config config;
  config.runtime.device = device;
  config.runtime.threads = 1;
  return config;
}

TEST(Kernels, RunWhereCudaRunsThem) {
  EXPECT_EQ(kernels_for(90, "80,90a,120"), "built for 90a");
  EXPECT_EQ(kernels_for(89, "80,90a"), "built for 80");
  EXPECT_EQ(kernels_for(90, "80"), "translated from 80 at first use");
  EXPECT_EQ(kernels_for(90, "80-real"), "");
  EXPECT_EQ(kernels_for(100, "90a"), "");
}
TEST(Kernels, WhatABuildLacksIsSaidWithTheRemedy) {
  EXPECT_EQ(lacking_kernels(90, "80,90a,120"), "");
  EXPECT_EQ(lacking_kernels(80, "80"), "");
  for (const char* archs : {"80", "90"}) {
    EXPECT_NE(lacking_kernels(90, archs).find("for Hopper: those for every GPU"), std::string::npos) << archs;
    EXPECT_NE(lacking_kernels(90, archs).find("HRM_CUDA_ARCHS=90a"), std::string::npos) << archs;
  }
  EXPECT_NE(lacking_kernels(89, "90a").find("plain ATen does their work, slower; build again with HRM_CUDA_ARCHS=89"),
            std::string::npos);
}

TEST(StartRuntime, CudaWithoutAGpuIsAnError) {
  ASSERT_TRUE(kNoGpu);
  const std::string reason = why_no_cuda();
  ASSERT_FALSE(reason.empty());
  EXPECT_EQ(reason.find('\n'), std::string::npos);
  test::expect_error(ExitCode::environment, {"runtime.device is 'cuda'", reason, "set runtime.device=cpu"},
                     [] { start_runtime(on(config::DeviceChoice::cuda)); });
}

TEST(ChooseDevice, SaysWhatStartRuntimeWillDo) {
  EXPECT_TRUE(choose_device(on(config::DeviceChoice::cpu).runtime).is_cpu());
  EXPECT_TRUE(choose_device(on(config::DeviceChoice::automatic).runtime).is_cpu());
  test::expect_error(ExitCode::environment, {"runtime.device is 'cuda'", why_no_cuda(), "set runtime.device=cpu"},
                     [] { choose_device(on(config::DeviceChoice::cuda).runtime); });
}

TEST(StartRuntime, AutoTakesTheCpuWithoutAGpu) {
  const Runtime runtime = start_runtime(on(config::DeviceChoice::automatic));
  EXPECT_TRUE(runtime.device.is_cpu());
  EXPECT_EQ(runtime.compute_dtype, at::kFloat);
}

TEST(StartRuntime, CpuAndItsThreads) {
  const int before = at::get_num_threads();
  Runtime runtime = start_runtime(on(config::DeviceChoice::cpu));
  EXPECT_TRUE(runtime.device.is_cpu());
  EXPECT_EQ(runtime.device_name, "CPU, 1 thread");
  EXPECT_EQ(at::get_num_threads(), 1);
  EXPECT_GT(runtime.peak_flops, 0);
  EXPECT_FALSE(runtime.peak_flops_origin.empty());

  config::Config config = on(config::DeviceChoice::cpu);
  config.runtime.threads = 3;
  runtime = start_runtime(config);
  EXPECT_EQ(runtime.device_name, "CPU, 3 threads");
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(before);
}

TEST(StartRuntime, Deterministic) {
  at::Context& context = at::globalContext();
  start_runtime(on(config::DeviceChoice::cpu));
  EXPECT_FALSE(context.deterministicAlgorithms());
  config::Config config = on(config::DeviceChoice::cpu);
  config.runtime.deterministic = true;
  start_runtime(config);
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
  EXPECT_FALSE(context.userEnabledMemEfficientSDP());
  EXPECT_STREQ(getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  context.setDeterministicAlgorithms(false, false);
  context.setSDPUseMemEfficient(true);
  context.setSDPUseCuDNN(true);
}

TEST(Device, SaysHowThreadsWait) {
  const char* names[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"};
  std::optional<std::string> before[2];
  for (int i = 0; i < 2; ++i) {
    if (const char* value = std::getenv(names[i])) before[i] = value;
    unsetenv(names[i]);
  }
  EXPECT_EQ(thread_waiting(), "by spinning");
  setenv("OMP_WAIT_POLICY", "ACTIVE", 1);
  EXPECT_EQ(thread_waiting(), "by spinning");
  setenv("GOMP_SPINCOUNT", "100", 1);
  EXPECT_EQ(thread_waiting(), "spinning 100 times, then asleep (GOMP_SPINCOUNT)");
  setenv("OMP_WAIT_POLICY", "Passive", 1);
  EXPECT_EQ(thread_waiting(), "asleep (OMP_WAIT_POLICY)");
  for (int i = 0; i < 2; ++i) {
    if (before[i]) {
      setenv(names[i], before[i]->c_str(), 1);
    } else {
      unsetenv(names[i]);
    }
  }
}

TEST(Device, CpuNeedsNoWaiting) {
  synchronize(at::kCPU);
}

#if HRM_WITH_CUDA
// What CUDA_VISIBLE_DEVICES is afterwards.
std::string left_to(int index, int processes, const char* listed) {
  constexpr const char* kVariable = "CUDA_VISIBLE_DEVICES";
  const char* before = std::getenv(kVariable);
  const std::optional<std::string> saved = before != nullptr ? std::optional<std::string>(before) : std::nullopt;
  listed != nullptr ? setenv(kVariable, listed, 1) : unsetenv(kVariable);
  const auto restore = [&] { saved ? setenv(kVariable, saved->c_str(), 1) : unsetenv(kVariable); };
  try {
    take_one_gpu(index, processes);
  } catch (...) {
    restore();
    throw;
  }
  const char* now = std::getenv(kVariable);
  const std::string result = now != nullptr ? now : "unset";
  restore();
  return result;
}

TEST(Device, EachProcessTakesOneGpu) {
  EXPECT_EQ(left_to(0, 1, nullptr), "unset");
  EXPECT_EQ(left_to(0, 1, "2,3"), "2,3");
  EXPECT_EQ(left_to(1, 2, nullptr), "1");
  EXPECT_EQ(left_to(0, 2, "5,GPU-0a1b,7"), "5");
  EXPECT_EQ(left_to(1, 2, "5,GPU-0a1b,7"), "GPU-0a1b");
  EXPECT_EQ(left_to(1, 2, "6"), "6");  // the launcher's choice
  EXPECT_EQ(left_to(1, 2, ""), "");    // none
  test::expect_error(ExitCode::environment, {"CUDA_VISIBLE_DEVICES='4,5' lists 2 GPUs for 3 ranks"},
                     [] { left_to(2, 3, "4,5"); });
}
#endif

}  // namespace
}  // namespace hrm
