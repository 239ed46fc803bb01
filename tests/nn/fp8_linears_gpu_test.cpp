#include <c10/cuda/CUDAFunctions.h>

#include "hrm/runtime/precision.h"
#include "nn/fp8_linears_cases.h"

namespace hrm::nn {
namespace {

using namespace testing;  // NOLINT

TEST(Fp8LinearsGpu, GradientsOfBlocksAreThoseOfTheComputeDtype) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const bool e5m2 : {false, true}) {
    for (const bool current : {false, true}) {
      check_fp8_blocks(at::kCUDA, at::kBFloat16, {.e5m2 = e5m2, .current = current});
    }
    check_fp8_blocks(at::kCUDA, at::kBFloat16, {.e5m2 = e5m2, .rows = true});
  }
}

TEST(Fp8LinearsGpu, HalvesOfABlockAreTheirLayers) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const bool current : {false, true}) {
    for (const bool qk_norm : {false, true}) check_fp8_halves(at::kCUDA, at::kBFloat16, current, qk_norm);
  }
}

TEST(Fp8LinearsGpu, WideLayersGiveTheSameBits) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const bool current : {false, true}) check_wide_layers(at::kCUDA, at::kBFloat16, current);
}

}  // namespace
}  // namespace hrm::nn
