#include "hrm/ops/fp8.h"
#include "hrm/state/registry.h"
#include "nn/fp8_cases.h"

namespace hrm::nn {
namespace {

using namespace testing;  // NOLINT

BlockSizes small(bool mlp_t = false) {
  return {.width = 64, .positions = 13, .heads = 4, .expansion = 4, .rms_norm_eps = 1e-5, .mlp_t = mlp_t};
}

TEST(Fp8Recursions, DifferLittleFromTheComputeDtype) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const bool mlp_t : {false, true}) check_fp8_level(3, small(mlp_t), at::kCPU, compute);
  }
}

// All blocks but the last in 8 bits; of the last one the first position alone.
TEST(Fp8Recursions, FirstPosition) {
  for (const bool mlp_t : {false, true}) {
    Fp8Model model(small(mlp_t), at::kCPU, at::kFloat);
    const ReasoningModule& level = *model.levels[0];
    const at::NoGradGuard no_grad;
    const at::Tensor x = fp8_input(2, small(mlp_t), at::kCPU, at::kFloat), y = x.flip({0});
    const at::Tensor plain = level.forward_first(x, y);
    Fp8Recursions fp8(model, 4, 0);
    EXPECT_TRUE(at::equal(level.recur_first(x, y), plain)) << "not yet active";
    fp8.calibrate_weights();
    fp8.set_active(true);
    fp8.quantize_weights();
    const at::Tensor first = level.recur_first(x, y), all = level.recur(x, y).select(1, 0);
    EXPECT_EQ(first.sizes(), plain.sizes());
    const double distance = relative_distance(first, plain);
    EXPECT_GT(distance, 0.001) << "this is not in 8 bits";
    EXPECT_LT(distance, relative_distance(all, plain)) << "the last block is in 8 bits, too";
  }
}

TEST(Fp8Recursions, ScalesComeFromTheValues) {
  Fp8Model model(small(), at::kCPU, at::kFloat);
  Fp8Recursions fp8(model, 4, /*margin=*/1);
  fp8.calibrate_weights();
  const at::Tensor weight = model.levels[0]->layers()[0]->attention()->qkv_proj().compute_weight();
  EXPECT_FLOAT_EQ(fp8.slots()[0][0].item<float>(), 224 / weight.abs().max().item<float>());
  // Those of the activations wait for their first maximum.
  EXPECT_TRUE((fp8.slots().narrow(0, 16, 16).select(1, 0) == 1).all().item<bool>());
}

TEST(Fp8Recursions, AnEvaluationLeavesNoTrace) {
  Fp8Model model(small(), at::kCPU, at::kFloat);
  const at::Tensor x = fp8_input(2, small(), at::kCPU, at::kFloat);
  Fp8Recursions fp8(model, 4, 0);
  fp8.calibrate_weights();
  fp8.set_active(true);
  fp8.quantize_weights();
  recurse(model, x);
  const at::Tensor before = fp8.slots().clone();
  const at::NoGradGuard no_grad;
  at::Tensor master = model.named_parameters()["H_level.layers.0.mlp.down_proj.weight"];
  const at::Tensor plain = recurse(model, x), kept = master.clone();
  {
    const Fp8Evaluation evaluation(&fp8);
    EXPECT_TRUE(at::equal(recurse(model, x), plain));
  }
  // Weights that were exchanged meanwhile (averages) are those that are evaluated.
  master.mul_(-1.5);
  {
    const Fp8Evaluation evaluation(&fp8);
    EXPECT_GT(relative_distance(recurse(model, x), plain), 0.05);
    EXPECT_FALSE(at::equal(fp8.slots(), before));
  }
  EXPECT_TRUE(at::equal(fp8.slots(), before));
  master.copy_(kept);
  const Fp8Evaluation none(nullptr);
}

TEST(Fp8Recursions, StateIsRegistered) {
  Fp8Model model(small(), at::kCPU, at::kFloat);
  Fp8Recursions fp8(model, 4, 0);
  fp8.count_step();
  const StateListing listing = list_state(fp8);
  ASSERT_EQ(listing.tensors.size(), 2u);
  EXPECT_EQ(listing.tensors[0].name, "fp8.slots");
  EXPECT_EQ(listing.tensors[1].name, "fp8.history");
  EXPECT_EQ(listing.tensors[1].tensor.sizes(), (std::vector<int64_t>{32, 4}));
  ASSERT_EQ(listing.integers.size(), 1u);
  EXPECT_EQ(listing.integers[0], (std::pair<std::string, int64_t>("fp8.steps", 1)));
}

}  // namespace
}  // namespace hrm::nn
