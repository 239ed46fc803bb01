#pragma once
// Experts and routers of a model whose blocks train in fp8: their gradients are those of the same model in bf16.

#include <set>

#include "hrm/base/text.h"
#include "support/overrides.h"
#include "train/small_language.h"

namespace hrm::testing {

// The gradients of the last of six steps that change nothing, by the parameters' names. graphs: captured steps.
inline std::map<std::string, at::Tensor> gradients_with_experts(const std::filesystem::path& dir,
                                                                const test::Overrides& more, bool graphs) {
  // A step of this size is lost in the rounding of float32.
  SmallLanguage run(
      dir, test::with({"lm.arch=decoder", "data.encoder_len=26", "lm.hidden_size=64", "moe.experts=8", "moe.inner=64",
                       "moe.every=2", "moe.activation=swiglu", "optim.lr=1e-30", "optim.weight_decay=0",
                       "optim.schedule=constant", "optim.grad_clip=0", "precision.compute=bf16", "train.log_every=1"},
                      more));
  run.trainer.start_fresh();
  run.trainer.run_steps(6);
  EXPECT_EQ(run.trainer.captured_step().replays() > 0, graphs) << run.trainer.captured_step().reason();
  std::map<std::string, at::Tensor> gradients;
  for (const nn::Parameter& p : run.task.parameters().all()) {
    gradients[p.name] = p.master.grad().to(at::kCPU, at::kDouble);
  }
  return gradients;
}

// The last step of the fp8 run is in 8 bits with delayed scales, captured on a GPU; that in bf16 is eager.
inline void check_gradients_of_experts(const test::Overrides& more) {
  const bool gpu = more[0] == "runtime.device=cuda";
  const auto dir = fresh_folder("runs");
  const auto want = gradients_with_experts(dir / "bf16", test::with(more, {"runtime.cuda_graphs=false"}), false);
  const auto got = gradients_with_experts(
      dir / "fp8", test::with(more, {"precision.blocks=fp8", "precision.fp8_gradients=e4m3"}), gpu);
  ASSERT_EQ(want.size(), got.size());
  std::set<std::string> kinds;
  for (const auto& [name, gradient] : want) {
    // Of nn::Moe; dense layers are gate_up_proj and down_proj.
    const bool expert = name.ends_with(".gate_up.weight") || name.ends_with(".down.weight");
    const bool router = name.ends_with(".router.weight");
    if (!expert && !router) continue;
    kinds.insert(expert ? "experts" : "router");
    const double size = gradient.norm().item<double>(), error = (got.at(name) - gradient).norm().item<double>() / size;
    EXPECT_GT(size, 0) << name;
    // Blocks in 8 bits pass on inputs and gradients with errors of some percent, and a few tokens pick other experts. A
    // router's gradient is a difference of what experts would give.
    EXPECT_LT(error, router ? 0.35 : 0.2) << name;
    EXPECT_GT(error, 1e-4) << name << ": nothing was in 8 bits";
    EXPECT_NEAR(got.at(name).norm().item<double>() / size, 1, 0.1) << name;
  }
  EXPECT_EQ(kinds.size(), 2u) << "the model has no experts or no router";
}

}  // namespace hrm::testing
