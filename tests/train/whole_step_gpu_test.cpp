// Whole training steps on a GPU: kernels against reference.
#include <c10/cuda/CUDAFunctions.h>

#include "hrm/base/error.h"
#include "hrm/ops/backend.h"
#include "support/overrides.h"
#include "train/whole_step_cases.h"

namespace hrm {
namespace {

using test::Overrides;
using testing::after_two_steps;
using testing::relative_distance;

class WholeStepGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  void TearDown() override { ops::set_backend(ops::Backend::fused); }

  static std::map<std::string, at::Tensor> stepped(Overrides overrides, const Overrides& more, uint64_t seed = 0) {
    overrides.insert(overrides.end(), more.begin(), more.end());
    return after_two_steps("cuda", overrides, seed);
  }
};

// In bfloat16, both against float32: the kernels make at most twice the error of plain ATen.
TEST_F(WholeStepGpu, IsAsGoodAsTheReference) {
  const std::map<std::string, Overrides> models = {
      {"hrm", {}},
      {"trm attention",
       {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true", "model.puzzle_emb_len=16"}},
      {"trm mlp",
       {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true", "model.mlp_t=true",
        "model.pos_encodings=none", "model.puzzle_emb_len=16"}},
      {"urm", {"model.arch=urm", "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true"}}};
  for (const auto& [name, model] : models) {
    const auto exact = stepped(model, {"ops.backend=reference", "precision.compute=fp32"});
    const auto reference = stepped(model, {"ops.backend=reference"});
    const auto fused = stepped(model, {});
    ASSERT_EQ(fused.size(), exact.size()) << name;
    int64_t compared = 0;
    for (const auto& [entry, want] : exact) {
      if (!testing::tells_of_the_step(entry)) continue;
      ++compared;
      const double error = relative_distance(reference.at(entry), want);
      EXPECT_LT(relative_distance(fused.at(entry), want), 2 * error + 1e-3)
          << name << ", " << entry << ": the reference's error is " << error;
    }
    EXPECT_GT(compared, 8) << name;
  }
}

// Kernels and reference round the same values, but sum in another order, which may move a value by a step of e4m3; the
// next products magnify that. The yardstick is how far the reference itself moves when its weights are rounded
// otherwise.
TEST_F(WholeStepGpu, InFp8AgreesWithTheReference) {
  const Overrides fp8 = {"precision.recursions=fp8"};
  const auto plain = stepped({}, {"ops.backend=reference"});
  const auto reference = stepped(fp8, {"ops.backend=reference"});
  const auto one = stepped(fp8, {"ops.backend=reference"}, 3), two = stepped(fp8, {"ops.backend=reference"}, 4);
  const auto fused = stepped(fp8, {});
  for (const auto& [entry, want] : reference) {
    if (!testing::tells_of_the_step(entry)) continue;
    const double noise = std::max(relative_distance(one.at(entry), want), relative_distance(two.at(entry), want));
    EXPECT_LT(relative_distance(fused.at(entry), want), 2 * noise + 1e-3) << entry << ": noise " << noise;
    if (!entry.starts_with("carry.")) continue;
    const double cost = relative_distance(plain.at(entry), want);
    EXPECT_GT(cost, 0.01) << entry << ": these recursions are not in 8 bits";
    EXPECT_LT(noise, cost) << entry << ": noise as large as what 8 bits cost hides all";
  }
  const auto apart = [&](const std::map<std::string, at::Tensor>& other) {
    const at::Tensor want = reference.at("fp8.history");
    return (other.at("fp8.history") - want).abs().div(want.abs() + 1e-6).max().item<double>();
  };
  EXPECT_LT(apart(fused), 0.15 + 2 * std::max(apart(one), apart(two)))
      << "maxima, fused and reference\n"
      << at::stack({fused.at("fp8.history").select(1, 0), reference.at("fp8.history").select(1, 0)}, 1).to(at::kCPU);
}

}  // namespace
}  // namespace hrm
