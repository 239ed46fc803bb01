// A run that stops and goes on gives bit for bit what an uninterrupted one gives.

#include "hrm/base/error.h"
#include "hrm/checkpoint/checkpoint.h"
#include "train/small_run.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::SmallRun;

struct ResumeVariant {
  std::string name;
  std::vector<std::string> overrides;
};

class Resume : public ::testing::TestWithParam<ResumeVariant> {};

TEST_P(Resume, IsBitIdentical) {
  const auto dir = fresh_folder("runs");
  const auto& more = GetParam().overrides;

  SmallRun straight(dir / "straight", more);
  straight.trainer.start_fresh();
  ASSERT_EQ(straight.trainer.run(), train::Outcome::finished);

  auto first_half = more;
  first_half.push_back("train.checkpoint_every=5");
  {
    SmallRun first(dir / "resumed", first_half);
    first.trainer.start_fresh();
    first.trainer.run();
  }
  // As if the process had died after step 5: what it saved later is gone, what it logged later is still there.
  std::filesystem::remove_all(checkpoint::list_checkpoints(dir / "resumed" / "small").front());
  SmallRun second(dir / "resumed", first_half);
  const auto found = checkpoint::find_latest_valid(dir / "resumed" / "small");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->meta.step, 5);
  second.trainer.resume(found->dir);
  ASSERT_EQ(second.trainer.run(), train::Outcome::finished);

  const auto expected = straight.tensors();
  const auto got = second.tensors();
  ASSERT_EQ(expected.size(), got.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  EXPECT_EQ(metrics_without_timing(dir / "straight"), metrics_without_timing(dir / "resumed"));
}

INSTANTIATE_TEST_SUITE_P(
    Variants, Resume,
    ::testing::Values(
        ResumeVariant{"hrm", {}}, ResumeVariant{"accumulation", {"train.micro_batch_size=2"}},
        ResumeVariant{"adamw_ema_clip", {"optim.name=adamw", "optim.ema=0.9", "optim.grad_clip=0.5"}},
        ResumeVariant{"lion_groups",
                      {"optim.name=lion", "optim.lr=1e-4", "optim.beta2=0.99", "optim.grad_clip=0.5",
                       "optim.groups=*embed*=0,*_head*=0.2:0.5", "precision.compute=bf16"}},
        ResumeVariant{"sgd", {"optim.name=sgd", "optim.lr=1e-2", "optim.momentum=0.9", "optim.ema=0.9"}},
        ResumeVariant{"muon", {"optim.name=muon", "optim.lr=0.02", "optim.ema=0.9", "optim.groups=*q_head*=0:2"}},
        ResumeVariant{
            "muon_fp32_wsd",
            {"optim.name=muon", "optim.muon_precision=fp32", "optim.muon_scale=match_rms_adamw", "optim.adamw_lr=1e-3",
             "optim.schedule=wsd", "optim.wsd_decay_steps=3", "optim.wsd_shape=linear"}},
        ResumeVariant{"fp16_scaled", {"precision.compute=fp16", "precision.loss_scale=1048576"}},
        ResumeVariant{"rows_not_lost", {"data.reference_semantics=false"}},
        ResumeVariant{"rows_not_lost_accumulation", {"data.reference_semantics=false", "train.micro_batch_size=4"}},
        ResumeVariant{"device_augmentation", {"data.augmentation_device=device"}},
        ResumeVariant{
            "device_augmentation_rows_not_lost",
            {"data.augmentation_device=device", "data.reference_semantics=false", "train.micro_batch_size=4"}},
        ResumeVariant{"trm_attention",
                      {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true", "model.puzzle_emb_len=4",
                       "optim.ema=0.99"}},
        ResumeVariant{"trm_mlp",
                      {"model.arch=trm", "model.H_layers=0", "model.no_ACT_continue=true", "model.mlp_t=true",
                       "model.pos_encodings=none"}},
        ResumeVariant{"settling",
                      {"model.arch=trm", "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true",
                       "model.start_std=1", "model.damping=0.05", "model.path_noise=0.1", "optim.ema=0.9"}},
        ResumeVariant{"settling_hrm", {"model.H_cycles=2", "model.start_std=1", "model.path_noise=0.1"}},
        ResumeVariant{"depth_curriculum", {"model.H_cycles=3", "model.L_cycles=4", "model.depth_curriculum=true"}},
        ResumeVariant{"all_cycles_with_losses",
                      {"model.arch=trm", "model.H_layers=0", "model.H_cycles=3", "model.gradient_cycles=3",
                       "model.loss_every_cycle=true", "model.no_ACT_continue=true", "train.micro_batch_size=4"}},
        ResumeVariant{"all_cycles_settling_recompute",
                      {"model.arch=trm", "model.H_layers=0", "model.H_cycles=2", "model.gradient_cycles=2",
                       "model.recompute=true", "model.start_std=1", "model.damping=0.05", "model.path_noise=0.1",
                       "model.depth_curriculum=true", "optim.ema=0.9"}},
        ResumeVariant{"urm_cycles",
                      {"model.arch=urm", "model.H_layers=0", "model.H_cycles=3", "model.gradient_cycles=2",
                       "model.loss_every_cycle=true", "model.recompute=true"}},
        ResumeVariant{"fp8",
                      {"precision.recursions=fp8", "ops.backend=reference", "model.H_cycles=2", "optim.ema=0.9"}},
        ResumeVariant{"fp8_from_the_step_after_the_resume",
                      {"precision.recursions=fp8", "ops.backend=reference", "precision.fp8_warmup_steps=5",
                       "train.micro_batch_size=4", "train.eval_every=5"}},
        ResumeVariant{"fp8_from_the_second_step_after_the_resume",
                      {"precision.recursions=fp8", "ops.backend=reference", "precision.fp8_warmup_steps=6",
                       "optim.ema=0.9", "eval.weights=both", "train.eval_every=5"}},
        ResumeVariant{"fp8_trm_mlp",
                      {"precision.recursions=fp8", "ops.backend=reference", "model.arch=trm", "model.H_layers=0",
                       "model.H_cycles=2", "model.no_ACT_continue=true", "model.mlp_t=true", "model.pos_encodings=none",
                       "precision.fp8_amax_history=3"}},
        ResumeVariant{
            "urm",
            {"model.arch=urm", "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true", "optim.ema=0.9"}},
        ResumeVariant{"urm_settling_muon",
                      {"model.arch=urm", "model.H_layers=0", "model.H_cycles=2", "model.no_ACT_continue=true",
                       "model.start_std=1", "model.damping=0.05", "model.path_noise=0.1", "optim.name=muon",
                       "optim.lr=0.02", "model.depth_curriculum=true"}},
        ResumeVariant{"transformer",
                      {"model.arch=transformer", "model.H_layers=0", "model.H_cycles=1", "model.L_cycles=1"}}),
    [](const auto& info) { return info.param.name; });

TEST(ResumeRefuses, AnotherArchitecture) {
  const auto dir = fresh_folder("runs");
  {
    SmallRun run(dir, {"train.steps=2"});
    run.trainer.start_fresh();
    run.trainer.run();
  }
  SmallRun wider(dir, {"model.hidden_size=64"});
  try {
    wider.trainer.resume(checkpoint::list_checkpoints(dir / "small").front());
    FAIL() << "a checkpoint of another width was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::checkpoint) << e.what();
  }
}

}  // namespace
}  // namespace hrm
