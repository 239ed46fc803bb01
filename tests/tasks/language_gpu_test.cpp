// Training language models on a GPU: captured steps are the eager ones, and the GPU computes what the CPU does.
#include <c10/cuda/CUDAFunctions.h>

#include "hrm/checkpoint/checkpoint.h"
#include "support/overrides.h"
#include "train/fp8_experts_cases.h"
#include "train/small_language.h"

namespace hrm {
namespace {

using test::Overrides;
using test::with;
using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::SmallLanguage;

#define HRM_NEEDS_GPU() \
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device"

Overrides on_gpu(const Overrides& more, bool graphs) {
  return with({"runtime.device=cuda", "runtime.deterministic=true", "train.steps=24", "train.log_every=4",
               "train.eval_every=8", "train.checkpoint_every=8", "lm.hidden_size=256", "lm.num_heads=4",
               graphs ? "runtime.cuda_graphs=true" : "runtime.cuda_graphs=false"},
              more);
}

struct LanguageGpuVariant {
  std::string name;
  Overrides overrides;
  int64_t replays = 21;  // all steps but three eager ones of each form
};
class LanguageGpu : public ::testing::TestWithParam<LanguageGpuVariant> {};

TEST_P(LanguageGpu, GraphEqualsEagerBitForBitAlsoAfterAResume) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  SmallLanguage eager(dir / "eager", on_gpu(GetParam().overrides, false));
  eager.trainer.start_fresh();
  eager.trainer.run();
  EXPECT_EQ(eager.trainer.captured_step().replays(), 0);
  const auto want = eager.tensors();
  const auto expect_same = [&](SmallLanguage& run) {
    const auto got = run.tensors();
    ASSERT_EQ(want.size(), got.size());
    for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  };
  {
    SCOPED_TRACE("graph");
    SmallLanguage graph(dir / "graph", on_gpu(GetParam().overrides, true));
    graph.trainer.start_fresh();
    graph.trainer.run();
    EXPECT_EQ(graph.trainer.captured_step().replays(), GetParam().replays) << graph.trainer.captured_step().reason();
    expect_same(graph);
    EXPECT_EQ(metrics_without_timing(dir / "graph"), metrics_without_timing(dir / "eager"));
  }
  SCOPED_TRACE("resumed");
  std::filesystem::remove_all(checkpoint::list_checkpoints(dir / "graph" / "small").front());
  SmallLanguage resumed(dir / "graph", on_gpu(GetParam().overrides, true));
  const auto found = checkpoint::find_latest_valid(dir / "graph" / "small");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->meta.step, 16);
  resumed.trainer.resume(found->dir, found->meta.info);
  resumed.trainer.run();
  expect_same(resumed);
}

TEST(Fp8OnAGpu, TheStartSaysThatSmallLayersGainNothing) {
  HRM_NEEDS_GPU();
  SmallLanguage run(fresh_folder("runs"), on_gpu({"data.encoder_len=32", "precision.blocks=fp8"}, true));
  EXPECT_NE(run.task.describe().find("gain nothing here"), std::string::npos) << run.task.describe();
}

// A captured step in fp8 beside an eager one in bf16.
TEST(Fp8OnAGpu, ExpertsAndRoutersHaveTheGradientsOfBf16) {
  HRM_NEEDS_GPU();
  testing::check_gradients_of_experts({"runtime.device=cuda", "train.global_batch_size=64"});
}

INSTANTIATE_TEST_SUITE_P(
    Variants, LanguageGpu,
    ::testing::Values(LanguageGpuVariant{"hrm", {"train.micro_batch_size=4", "objective.deep_supervision=0.5"}},
                      LanguageGpuVariant{"decoder", {"lm.arch=decoder", "lm.recompute=true"}},
                      LanguageGpuVariant{"packed",
                                         {"lm.arch=decoder", "data.train={text}", "data.encoder_len=0",
                                          "data.decoder_len=128", "data.document_masks=true"}},
                      LanguageGpuVariant{"window", {"lm.arch=decoder", "lm.window=20", "lm.kv_heads=2"}},
                      LanguageGpuVariant{"packed_window",
                                         {"lm.arch=decoder", "data.train={text}", "data.encoder_len=0",
                                          "data.decoder_len=128", "data.document_masks=true", "lm.window=40",
                                          "lm.kv_heads=1", "train.micro_batch_size=4", "lm.recompute=true"}},
                      LanguageGpuVariant{"experts",
                                         {"moe.experts=8", "moe.inner=256", "moe.bias_rate=0.001", "moe.z_weight=0.001",
                                          "moe.jitter=0.01", "moe.shared_experts=1"}},
                      LanguageGpuVariant{"swiglu_experts",
                                         {"moe.experts=8", "moe.inner=256", "moe.activation=swiglu",
                                          "moe.normalize=true", "moe.shared_experts=1"}},
                      LanguageGpuVariant{"odd_swiglu_experts",
                                         {"lm.arch=decoder", "moe.experts=6", "moe.inner=72", "moe.activation=swiglu"}},
                      LanguageGpuVariant{"dropped", {"moe.experts=4", "moe.inner=256", "moe.capacity_factor=1"}},
                      LanguageGpuVariant{"mamba2", {"lm.encoder=mamba2", "lm.enc_layers=2"}},
                      LanguageGpuVariant{"cross_attention", {"lm.bridge=cross_attention", "lm.gate_warmup_steps=5"}},
                      LanguageGpuVariant{"prototype",
                                         {"lm.style=prototype", "objective.halting=0.1", "optim.name=lion"}},
                      // One step with current scales, then the form with delayed ones.
                      LanguageGpuVariant{"fp8",
                                         {"lm.arch=decoder", "lm.recompute=true", "data.encoder_len=26",
                                          "train.micro_batch_size=4", "precision.blocks=fp8"},
                                         20},
                      LanguageGpuVariant{"fp8_warm_up",
                                         {"data.encoder_len=32", "precision.blocks=fp8", "precision.fp8_warmup_steps=8",
                                          "moe.experts=8", "moe.inner=256", "moe.every=2", "moe.place=decoder"},
                                         18},
                      LanguageGpuVariant{"fp8_current",
                                         {"lm.arch=decoder", "data.encoder_len=26", "precision.blocks=fp8",
                                          "precision.fp8_scaling=current", "precision.fp8_gradients=e4m3"}},
                      LanguageGpuVariant{"fp8_rows",
                                         {"lm.arch=decoder", "data.encoder_len=26", "precision.blocks=fp8",
                                          "precision.fp8_scaling=rows"}},
                      LanguageGpuVariant{"fake_int8", {"lm.arch=decoder", "precision.fake_quantize=int8"}},
                      LanguageGpuVariant{"fake_fp8_fp32", {"precision.compute=fp32", "precision.fake_quantize=fp8"}},
                      LanguageGpuVariant{"fp32_muon", {"precision.compute=fp32", "optim.name=muon", "optim.lr=0.02"}}),
    [](const auto& info) { return info.param.name; });

// The first steps in float32: what differs is the order of sums.
TEST(LanguageGpu, LosesWhatTheCpuLoses) {
  HRM_NEEDS_GPU();
  for (const Overrides& kind :
       {Overrides{}, Overrides{"lm.arch=decoder"}, Overrides{"lm.arch=decoder", "lm.window=20"},
        Overrides{"lm.encoder=mamba2"}, Overrides{"moe.experts=4", "moe.inner=256", "moe.jitter=0.1"},
        Overrides{"moe.experts=4", "moe.inner=72", "moe.activation=swiglu"}}) {
    const auto loss = [&](const char* device) {
      const auto dir = fresh_folder(device);
      SmallLanguage run(dir, with(on_gpu(kind, true), {"runtime.device=" + std::string(device), "train.steps=4",
                                                       "precision.compute=fp32", "train.eval_every=0"}));
      run.trainer.start_fresh();
      run.trainer.run();
      std::ifstream in(dir / "small" / "metrics.jsonl");
      std::string line;
      std::getline(in, line);
      const size_t at = line.find("\"train/cross_entropy\":");
      return std::stod(line.substr(at + std::string("\"train/cross_entropy\":").size()));
    };
    const double cpu = loss("cpu"), gpu = loss("cuda");
    EXPECT_NEAR(cpu, gpu, 2e-4 * cpu) << (kind.empty() ? "hrm" : kind[0]);
  }
}

}  // namespace
}  // namespace hrm
