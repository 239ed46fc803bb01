#include "nn/fp8_cases.h"
#include "ops/fp8_impl.h"
#include "ops/gpu_testing.h"

namespace hrm::nn {
namespace {

using namespace testing;  // NOLINT

std::vector<BlockSizes> sizes_of_recipes() {
  return {{.width = 512, .positions = 82, .heads = 8},
          {.width = 512, .positions = 97, .heads = 8, .mlp_t = true},
          {.width = 256, .positions = 201, .heads = 4},
          {.width = 64, .positions = 13, .heads = 4}};
}

TEST(Fp8RecursionsGpu, DifferLittleFromTheComputeDtype) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType compute : {at::kBFloat16, at::kHalf}) {
    for (const BlockSizes& sizes : sizes_of_recipes()) check_fp8_level(5, sizes, at::kCUDA, compute);
  }
}

struct Pass {
  at::Tensor z, slots;
};

// Two passes with the scales of the first one's maxima.
Pass run_fp8(const BlockSizes& sizes, const at::Tensor& x, at::ScalarType compute) {
  Fp8Model model(sizes, at::kCUDA, compute);
  Fp8Recursions fp8(model, 4, 0);
  fp8.calibrate_weights();
  fp8.set_active(true);
  fp8.quantize_weights();
  recurse(model, x);
  fp8.update_scales();
  fp8.quantize_weights();
  const at::Tensor z = recurse(model, x);
  return {z, fp8.slots().clone()};
}

// Our kernels and the library's product round the same values as the reference does: what differs is the last bits of
// sums, which is little beside what 8 bits cost.
TEST(Fp8RecursionsGpu, KernelsAgreeWithTheReference) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType compute : {at::kBFloat16, at::kHalf}) {
    for (const BlockSizes& sizes : sizes_of_recipes()) {
      const at::Tensor x = fp8_input(6, sizes, at::kCUDA, compute);
      ops::set_backend(ops::Backend::reference);
      const Pass want = run_fp8(sizes, x, compute);
      const at::Tensor plain = recurse(Fp8Model(sizes, at::kCUDA, compute), x);
      ops::set_backend(ops::Backend::fused);
      const double cost = relative_distance(want.z, plain);
      for (const bool portable : {false, true}) {
        ops::set_portable_fp8(portable);
        const Pass got = run_fp8(sizes, x, compute);
        ops::set_portable_fp8(false);
        const std::string what = cat(compute, " width ", sizes.width, " positions ", sizes.positions,
                                     portable ? ", by the library" : ", by our kernels");
        const double distance = relative_distance(got.z, want.z);
        EXPECT_LT(distance, 0.5 * cost) << what << ": 8 bits cost " << cost;
        EXPECT_LT(relative_distance(got.slots.select(1, 2), want.slots.select(1, 2)), 0.1) << what;
        EXPECT_TRUE(at::allclose(got.slots.select(1, 0), want.slots.select(1, 0), 0.15, 0))
            << what << "\n"
            << at::stack({got.slots.select(1, 0), want.slots.select(1, 0)}, 1);
      }
    }
  }
}

}  // namespace
}  // namespace hrm::nn
