#include "hrm/runtime/precision.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace hrm {
namespace {

using config::ComputePrecision;

config::PrecisionConfig computing(ComputePrecision compute) {
  config::PrecisionConfig config;
  config.compute = compute;
  return config;
}

TEST(Precision, EachNameOnEachDevice) {
  struct Case {
    ComputePrecision compute;
    at::Device device;
    at::ScalarType dtype;
    const char* name;
    bool tf32, scaled;
  };
  for (const Case& c : std::vector<Case>{{ComputePrecision::automatic, at::kCPU, at::kFloat, "fp32", false, false},
                                         {ComputePrecision::automatic, at::kCUDA, at::kBFloat16, "bf16", true, false},
                                         {ComputePrecision::bf16, at::kCPU, at::kBFloat16, "bf16", true, false},
                                         {ComputePrecision::fp16, at::kCUDA, at::kHalf, "fp16", true, true},
                                         {ComputePrecision::tf32, at::kCUDA, at::kFloat, "tf32", true, false},
                                         {ComputePrecision::tf32, at::kCPU, at::kFloat, "fp32", false, false},
                                         {ComputePrecision::fp32, at::kCUDA, at::kFloat, "fp32", false, false}}) {
    const Precision got = choose_precision(computing(c.compute), c.device, /*reference_ops=*/false);
    EXPECT_EQ(got.compute_dtype, c.dtype) << c.compute;
    EXPECT_EQ(got.name, c.name) << c.compute;
    EXPECT_EQ(got.tf32, c.tf32) << c.compute;
    EXPECT_EQ(got.loss_scaling, c.scaled) << c.compute;
    EXPECT_FALSE(got.fp8_recursions);
  }
}

TEST(Precision, Fp8NeedsAGpuOrTheReferenceOps) {
  config::PrecisionConfig config;
  config.recursions = config::RecursionPrecision::fp8;
  test::expect_error(ExitCode::environment, {"precision.recursions", "need a GPU", "set it to 'same'", "ops.backend"},
                     [&] { choose_precision(config, at::kCPU, /*reference_ops=*/false); });
  const Precision precision = choose_precision(config, at::kCPU, /*reference_ops=*/true);
  EXPECT_TRUE(precision.fp8_recursions);
  EXPECT_EQ(precision.name, "fp32 with fp8 recursions");
}

// Blocks that train in fp8 run by the reference on every CPU.
TEST(Precision, Fp8BlocksRunOnACpu) {
  config::PrecisionConfig config;
  config.blocks = config::BlockPrecision::fp8;
  const Precision precision = choose_precision(config, at::kCPU, /*reference_ops=*/false);
  EXPECT_TRUE(precision.fp8_blocks);
  EXPECT_FALSE(precision.fp8_recursions);
  EXPECT_EQ(precision.name, "fp32 with fp8 blocks");
}

TEST(Precision, Fp8NeedsComputeCapability89) {
  EXPECT_NE(why_no_fp8(86).find("compute capability 8.6"), std::string::npos);
  for (const int capability : {89, 90, 100, 120}) EXPECT_EQ(why_no_fp8(capability), "");
}

TEST(Precision, SdpaBackendsAreSwitched) {
  at::Context& context = at::globalContext();
  config::RuntimeConfig config;
  config.sdpa = config::SdpaBackend::flash;
  apply_arithmetic({}, config, at::kCPU);
  EXPECT_TRUE(context.userEnabledFlashSDP());
  EXPECT_FALSE(context.userEnabledCuDNNSDP());
  EXPECT_FALSE(context.userEnabledMemEfficientSDP());
  EXPECT_EQ(sdpa_backend(at::kCPU, at::kFloat, 4, 2, 9, 16), "flash");
  config.sdpa = config::SdpaBackend::math;
  apply_arithmetic({}, config, at::kCPU);
  EXPECT_EQ(sdpa_backend(at::kCPU, at::kFloat, 4, 2, 9, 16), "math");
  config.sdpa = config::SdpaBackend::automatic;
  apply_arithmetic({}, config, at::kCPU);
  EXPECT_TRUE(context.userEnabledCuDNNSDP());
  EXPECT_TRUE(context.userEnabledMemEfficientSDP());
}

}  // namespace
}  // namespace hrm
