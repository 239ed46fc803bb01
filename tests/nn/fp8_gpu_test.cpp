#include "nn/fp8_cases.h"
#include "ops/gpu_testing.h"
#include "ops/quantized/fp8_impl.h"

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

// Changed by one unit in bfloat16's last place in every other element: what rounding does, wherever it happens.
at::Tensor nudged(const at::Tensor& x) {
  const int64_t step = x.scalar_type() == at::kHalf ? 8 : 1;
  const at::Tensor other = (x.view(at::kShort) + step).view(x.scalar_type());
  return at::where(at::arange(x.numel(), x.options().dtype(at::kInt)).view(x.sizes()) % 2 == 0, x, other);
}

// Our kernels and the library's product round the same values as the reference does: what differs is the last bits of
// sums. Each may move a value by a step of e4m3, and random weights magnify that from product to product. The yardstick
// is therefore how far the reference itself moves when its input is rounded otherwise, over one pass of a level.
TEST(Fp8RecursionsGpu, KernelsAgreeWithTheReference) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const at::ScalarType compute : {at::kBFloat16, at::kHalf}) {
    for (const BlockSizes& sizes : sizes_of_recipes()) {
      const at::Tensor x = fp8_input(6, sizes, at::kCUDA, compute);
      Fp8Model model(sizes, at::kCUDA, compute);
      Fp8Recursions fp8(model, 4, 0);
      fp8.calibrate_weights();
      fp8.set_active(true);
      fp8.quantize_weights();
      recurse(model, x);
      fp8.update_scales();
      fp8.quantize_weights();
      const at::Tensor slots = fp8.slots().clone();
      // The result, and the maxima that were seen.
      const auto pass = [&](const at::Tensor& h) {
        at::Tensor table = fp8.slots();
        table.copy_(slots);
        const at::Tensor y = model.levels[0]->recur(h, h);
        return std::pair{y, table.select(1, 2).clone()};
      };
      ops::set_backend(ops::Backend::reference);
      const auto [want, want_amax] = pass(x);
      const auto [other, other_amax] = pass(nudged(x));
      ops::set_backend(ops::Backend::fused);
      const double noise = relative_distance(other, want);
      EXPECT_LT(noise, 0.15);
      const auto apart = [&, &want_amax = want_amax](const at::Tensor& amax) {
        return (amax - want_amax).abs().div(want_amax + 1e-6).max().item<double>();
      };
      const double amax_noise = apart(other_amax);
      for (const bool portable : {false, true}) {
        ops::set_portable_fp8(portable);
        const auto [got, amax] = pass(x);
        ops::set_portable_fp8(false);
        const std::string what = cat(compute, " width ", sizes.width, " positions ", sizes.positions, " mlp_t ",
                                     sizes.mlp_t, portable ? ", by the library" : ", by our kernels");
        EXPECT_LT(relative_distance(got, want), 2 * noise) << what << ": noise " << noise;
        EXPECT_LT(apart(amax), 0.15 + 2 * amax_noise) << what << ": noise " << amax_noise << "\n"
                                                      << at::stack({amax, want_amax}, 1).to(at::kCPU);
      }
    }
  }
}

}  // namespace
}  // namespace hrm::nn
