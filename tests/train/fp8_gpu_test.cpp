// One whole training step with fp8 recursions on a GPU: kernels against reference.
#include <c10/cuda/CUDAFunctions.h>

#include "hrm/ops/backend.h"
#include "train/small_run.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::SmallRun;
using Overrides = std::vector<std::string>;

std::map<std::string, at::Tensor> stepped(const std::filesystem::path& dir, const Overrides& more) {
  Overrides all = {"runtime.device=cuda",  "runtime.deterministic=true", "model.hidden_size=512", "model.num_heads=8",
                   "model.H_cycles=2",     "train.global_batch_size=16", "optim.name=adamw",      "optim.eps=1e-3",
                   "optim.puzzle_emb_lr=0"};
  all.insert(all.end(), more.begin(), more.end());
  SmallRun run(dir, all);
  run.trainer.start_fresh();
  run.trainer.run_steps(2);
  const auto tensors = run.tensors();
  ops::set_backend(ops::Backend::fused);
  return tensors;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor want = b.to(at::kCPU, at::kDouble);
  return (a.to(at::kCPU, at::kDouble) - want).norm().item<double>() / (want.norm().item<double>() + 1e-30);
}

TEST(Fp8TrainingGpu, AWholeStepAgreesWithTheReference) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto dir = fresh_folder("runs");
  const auto plain = stepped(dir / "plain", {});
  const auto fused = stepped(dir / "fused", {"precision.recursions=fp8"});
  const auto reference = stepped(dir / "reference", {"precision.recursions=fp8", "ops.backend=reference"});
  for (const char* name : {"carry.z_H", "carry.z_L"}) {
    const double cost = distance(reference.at(name), plain.at(name));
    EXPECT_GT(cost, 0.005) << name << ": these recursions are not in 8 bits";
    EXPECT_LT(distance(fused.at(name), reference.at(name)), 0.8 * cost) << name << ": 8 bits cost " << cost;
  }
  for (const auto& [name, tensor] : reference) {
    if (!name.ends_with("weight")) continue;
    // Weights of few values see all that the recursions have magnified (q_head): as much as 8 bits do to them.
    const auto apart = [&](const at::Tensor& other) {
      return (tensor - other).abs().max().item<double>() / std::max(tensor.abs().max().item<double>(), 1e-30);
    };
    EXPECT_LT(apart(fused.at(name)), std::max(0.02, 1.5 * apart(plain.at(name)))) << name;
  }
  EXPECT_TRUE(at::allclose(fused.at("fp8.history"), reference.at("fp8.history"), 0.15, 0));
}

}  // namespace
}  // namespace hrm
