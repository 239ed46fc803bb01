#include "hrm/runtime/precision.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/runtime/device.h"

namespace hrm {
namespace {

using config::ComputePrecision;
using config::SdpaBackend;

class PrecisionGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda();
  }
  void TearDown() override { apply_arithmetic({}, {}, at::kCUDA); }

  static Precision applied(ComputePrecision compute, const config::RuntimeConfig& runtime = {}) {
    config::PrecisionConfig config;
    config.compute = compute;
    const Precision precision = choose_precision(config, at::Device(at::kCUDA, 0), /*reference_ops=*/false);
    apply_arithmetic(precision, runtime, at::Device(at::kCUDA, 0));
    return precision;
  }

  // Largest error of a float32 product against float64.
  static double product_error() {
    const at::Tensor a = at::linspace(-1, 1, 512 * 512, at::device(at::kCUDA)).view({512, 512}).sin();
    const at::Tensor b = at::linspace(2, 5, 512 * 512, at::device(at::kCUDA)).view({512, 512}).cos();
    return (at::mm(a, b).to(at::kDouble) - at::mm(a.to(at::kDouble), b.to(at::kDouble))).abs().max().item<double>();
  }
};

TEST_F(PrecisionGpu, Tf32RoundsProductsAndFp32DoesNot) {
  applied(ComputePrecision::fp32);
  const double exact = product_error();
  applied(ComputePrecision::tf32);
  const double rounded = product_error();
  EXPECT_LT(exact, 1e-3);
  EXPECT_GT(rounded, 4 * exact);
}

TEST_F(PrecisionGpu, TheAskedSdpaBackendIsTaken) {
  const at::Device gpu(at::kCUDA, 0);
  for (const auto& [asked, taken] : std::vector<std::pair<SdpaBackend, std::string>>{
           {SdpaBackend::flash, "flash"}, {SdpaBackend::efficient, "efficient"}, {SdpaBackend::math, "math"}}) {
    config::RuntimeConfig runtime;
    runtime.sdpa = asked;
    applied(ComputePrecision::bf16, runtime);
    EXPECT_EQ(sdpa_backend(gpu, at::kBFloat16, 8, 4, 128, 64), taken) << asked;
  }
  // Flash attention has no float32: the plain product stands behind it.
  config::RuntimeConfig runtime;
  runtime.sdpa = SdpaBackend::flash;
  applied(ComputePrecision::fp32, runtime);
  EXPECT_EQ(sdpa_backend(gpu, at::kFloat, 8, 4, 128, 64), "math");
}

// The memory-efficient and the cuDNN backend sum gradients in any order.
TEST_F(PrecisionGpu, DeterministicModeIsSwitchedOnAndOff) {
  const at::Device gpu(at::kCUDA, 0);
  for (const bool on : {true, false, true, false}) {
    config::RuntimeConfig runtime;
    runtime.deterministic = on;
    applied(ComputePrecision::bf16, runtime);
    EXPECT_EQ(at::globalContext().deterministicAlgorithms(), on);
    EXPECT_EQ(at::globalContext().deterministicCuDNN(), on);
    EXPECT_EQ(at::globalContext().userEnabledMemEfficientSDP(), !on);
    EXPECT_EQ(at::globalContext().userEnabledCuDNNSDP(), !on);
    if (on) {
      EXPECT_EQ(sdpa_backend(gpu, at::kBFloat16, 8, 4, 128, 64), "flash");
      EXPECT_EQ(sdpa_backend(gpu, at::kFloat, 8, 4, 128, 64), "math") << "flash attention has no float32";
    }
  }
}

TEST_F(PrecisionGpu, TheAllocatorIsTheOneAskedFor) {
  config::Config config;
  config.runtime.device = config::DeviceChoice::cuda;
  config.runtime.allocator = config::GpuAllocator::native;
  EXPECT_EQ(start_runtime(config).allocator, "fixed segments");
  config.runtime.allocator = config::GpuAllocator::expandable;
  EXPECT_EQ(start_runtime(config).allocator, "expandable segments");
}

}  // namespace
}  // namespace hrm
