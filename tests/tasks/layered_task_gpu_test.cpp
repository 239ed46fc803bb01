// Training a layered network on a GPU: captured steps are the eager ones.
#include <c10/cuda/CUDAFunctions.h>

#include "hrm/checkpoint/checkpoint.h"
#include "hrm/runtime/captured_step.h"
#include "hrm/tasks/layered_task.h"
#include "support/overrides.h"
#include "train/small_run.h"

namespace hrm {
namespace {

using test::Overrides;
using testing::fresh_folder;

using LayeredOnGpu = testing::SmallTraining<tasks::LayeredTask>;

config::LoadedConfig layered_gpu_config(const std::filesystem::path& dir, bool graphs, const Overrides& more) {
  const std::string data = test::source_dir() + "/data/digits";
  config::LoadedConfig loaded = config::load_config(
      {}, test::with({"task=contrastive", "contrastive.network=layered", "run.dir=" + dir.string(), "run.name=small",
                      "data.train=" + data, "data.test=" + data, "contrastive.layer_width=64", "train.steps=20",
                      "train.global_batch_size=32", "train.log_every=4", "train.eval_every=8",
                      "train.checkpoint_every=8", "optim.lr=1e-2", "runtime.device=cuda", "runtime.deterministic=true",
                      graphs ? "runtime.cuda_graphs=true" : "runtime.cuda_graphs=false"},
                     more));
  config::validate(loaded);
  return loaded;
}

struct LayeredGpuVariant {
  std::string name;
  Overrides overrides;
};
class LayeredTaskGpu : public ::testing::TestWithParam<LayeredGpuVariant> {};

TEST_P(LayeredTaskGpu, GraphEqualsEagerBitForBitAlsoAfterAResume) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto dir = fresh_folder("runs");
  const auto start = [&](const char* name, bool graphs) {
    return std::make_unique<LayeredOnGpu>(layered_gpu_config(dir / name, graphs, GetParam().overrides), dir / name,
                                          nullptr);
  };
  const auto eager = start("eager", false);
  eager->trainer.start_fresh();
  eager->trainer.run();
  EXPECT_EQ(eager->trainer.captured_step().replays(), 0);
  const auto want = eager->tensors();
  const auto expect_same = [&](LayeredOnGpu& run) {
    const auto got = run.tensors();
    ASSERT_EQ(want.size(), got.size());
    for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  };
  {
    SCOPED_TRACE("graph");
    const auto graph = start("graph", true);
    graph->trainer.start_fresh();
    graph->trainer.run();
    EXPECT_EQ(graph->trainer.captured_step().replays(), 17) << graph->trainer.captured_step().reason();
    expect_same(*graph);
    EXPECT_EQ(testing::metrics_without_timing(dir / "graph"), testing::metrics_without_timing(dir / "eager"));
    EXPECT_EQ(graph_pool_bytes_in_use(), 0) << "the graph keeps results among its temporaries";
  }
  SCOPED_TRACE("resumed");
  std::filesystem::remove_all(checkpoint::list_checkpoints(dir / "graph" / "small").front());
  const auto resumed = start("graph", true);
  const auto found = checkpoint::find_latest_valid(dir / "graph" / "small");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->meta.step, 16);
  resumed->trainer.resume(found->dir, found->meta.info);
  resumed->trainer.run();
  expect_same(*resumed);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, LayeredTaskGpu,
    ::testing::Values(LayeredGpuVariant{"one_layer", {}},
                      LayeredGpuVariant{"two_layers", {"contrastive.layer_count=2", "train.micro_batch_size=16"}},
                      LayeredGpuVariant{"cosine", {"contrastive.layer_count=2", "contrastive.cosine_every=5"}},
                      LayeredGpuVariant{"one_sided", {"contrastive.layer_count=2", "contrastive.rule=one_sided"}},
                      LayeredGpuVariant{"readout", {"contrastive.layer_count=2", "contrastive.rule=readout"}},
                      LayeredGpuVariant{"spsa", {"contrastive.rule=spsa", "contrastive.spsa_directions=2"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hrm
