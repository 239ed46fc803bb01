// Options that must not change the result of a training.
#include "train/small_run.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::SmallRun;

std::map<std::string, at::Tensor> train_equal(const std::filesystem::path& dir, const std::vector<std::string>& more) {
  SmallRun run(dir, more);
  run.trainer.start_fresh();
  run.trainer.run();
  return run.tensors();
}

// Largest difference of all weights relative to the largest weight of the tensor.
double relative_difference(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  double worst = 0;
  for (const auto& [name, tensor] : a) {
    if (!tensor.is_floating_point() || name.rfind("loop.", 0) == 0) continue;
    const double scale = std::max(tensor.abs().max().item<double>(), 1e-30);
    worst = std::max(worst, (tensor - b.at(name)).abs().max().item<double>() / scale);
  }
  return worst;
}

void expect_identical(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

TEST(Equality, TwoRunsOfOneSplitAreIdentical) {
  const auto dir = fresh_folder("runs");
  for (const std::string micro : {"0", "2"}) {
    const std::vector<std::string> more = {"train.micro_batch_size=" + micro, "runtime.threads=2"};
    expect_identical(train_equal(dir / ("a" + micro), more), train_equal(dir / ("b" + micro), more));
  }
}

// AdamW with a large epsilon: a gradient that is rounding noise must not decide the direction of an update, or the
// comparison would measure the optimizer's scale invariance and not the split. Signs have no epsilon: the puzzle
// embeddings are compared exactly, in puzzle_embedding_test.cpp.
TEST(Equality, MicroBatchesDoNotChangeTheResult) {
  const auto dir = fresh_folder("runs");
  // Random states belong to the slots.
  const std::vector<std::string> base = {"optim.name=adamw", "optim.eps=1e-3", "optim.puzzle_emb_lr=0",
                                         "model.start_std=1", "model.path_noise=0.1"};
  const auto whole = train_equal(dir / "whole", base);
  for (const std::string micro : {"4", "2", "1"}) {
    auto more = base;
    more.push_back("train.micro_batch_size=" + micro);
    const auto split = train_equal(dir / ("micro" + micro), more);
    for (const char* exact : {"carry.halted", "carry.steps", "carry.inputs", "carry.labels"}) {
      EXPECT_TRUE(at::equal(whole.at(exact), split.at(exact))) << exact << ", micro-batch " << micro;
    }
    EXPECT_LT(relative_difference(whole, split), 2e-5) << "micro-batch " << micro;
  }
}

// One step from the same weights: here the 1e-6 of single precision can be asked for.
TEST(Equality, MicroBatchesGiveTheSameGradient) {
  const auto dir = fresh_folder("runs");
  std::map<std::string, at::Tensor> reference;
  for (const std::string micro : {"8", "4", "2", "1"}) {
    SmallRun run(dir / micro, {"train.micro_batch_size=" + micro, "train.steps=1", "optim.warmup_steps=0"});
    run.trainer.start_fresh();
    run.trainer.run();
    std::map<std::string, at::Tensor> moments = run.tensors();
    if (reference.empty()) reference = moments;
    for (const auto& [name, tensor] : reference) {
      if (name.find("exp_avg") == std::string::npos || name.find("exp_avg_sq") != std::string::npos) continue;
      const double scale = std::max(tensor.abs().max().item<double>(), 1e-30);
      EXPECT_LT((tensor - moments.at(name)).abs().max().item<double>() / scale, 1e-6)
          << name << ", micro-batch " << micro;
    }
  }
}

TEST(Equality, OpBackendsAgree) {
  const auto dir = fresh_folder("runs");
  const std::vector<std::string> base = {"optim.name=adamw", "optim.eps=1e-3", "optim.puzzle_emb_lr=0"};
  auto reference = base;
  reference.push_back("ops.backend=reference");
  EXPECT_LT(relative_difference(train_equal(dir / "fused", base), train_equal(dir / "reference", reference)), 2e-5);
}

// Where samples are augmented.
TEST(Equality, AugmentationDeviceDoesNotChangeTheResult) {
  const auto dir = fresh_folder("runs");
  for (const std::string semantics : {"true", "false"}) {
    std::vector<std::string> more = {"data.reference_semantics=" + semantics, "train.micro_batch_size=4"};
    const auto on = [&](const std::string& device) {
      auto all = more;
      all.push_back("data.augmentation_device=" + device);
      return train_equal(dir / (semantics + device), all);
    };
    expect_identical(on("host"), on("device"));
  }
}

TEST(Equality, PrefetchDepthDoesNotChangeTheResult) {
  const auto dir = fresh_folder("runs");
  expect_identical(train_equal(dir / "one", {"data.prefetch_batches=1"}),
                   train_equal(dir / "eight", {"data.prefetch_batches=8"}));
}

}  // namespace
}  // namespace hrm
