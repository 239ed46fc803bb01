// contrastive.mode=compat on a GPU: captured windows are the eager ones, also after a resume, and the CPU's.
#include <c10/cuda/CUDAFunctions.h>

#include "hrm/checkpoint/checkpoint.h"
#include "support/overrides.h"
#include "tasks/small_compat.h"

namespace hrm {
namespace {

using test::Overrides;
using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::SmallCompat;

#define HRM_NEEDS_GPU() \
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device"

Overrides compat_on_gpu(const Overrides& more, bool graphs) {
  Overrides all{"runtime.device=cuda", "runtime.deterministic=true", "train.steps=20", "train.checkpoint_every=10",
                graphs ? "runtime.cuda_graphs=true" : "runtime.cuda_graphs=false"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

struct CompatGpuVariant {
  std::string name;
  Overrides overrides;
};
class CompatTaskGpu : public ::testing::TestWithParam<CompatGpuVariant> {};

TEST_P(CompatTaskGpu, GraphEqualsEagerBitForBitAlsoAfterAResume) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  SmallCompat eager(dir / "eager", compat_on_gpu(GetParam().overrides, false));
  eager.trainer.start_fresh();
  eager.trainer.run();
  EXPECT_EQ(eager.trainer.captured_step().replays(), 0);
  const auto want = eager.tensors();
  const auto expect_same = [&](SmallCompat& run) {
    const auto got = run.tensors();
    ASSERT_EQ(want.size(), got.size());
    for (const auto& [name, tensor] : want) EXPECT_TRUE(at::equal(tensor, got.at(name))) << name;
  };
  {
    SCOPED_TRACE("graph");
    SmallCompat graph(dir / "graph", compat_on_gpu(GetParam().overrides, true));
    graph.trainer.start_fresh();
    graph.trainer.run();
    EXPECT_EQ(graph.trainer.captured_step().replays(), 17) << graph.trainer.captured_step().reason();
    expect_same(graph);
    EXPECT_EQ(metrics_without_timing(dir / "graph"), metrics_without_timing(dir / "eager"));
  }
  SCOPED_TRACE("resumed");
  std::filesystem::remove_all(checkpoint::list_checkpoints(dir / "graph" / "small").front());
  SmallCompat resumed(dir / "graph", compat_on_gpu(GetParam().overrides, true));
  const auto found = checkpoint::find_latest_valid(dir / "graph" / "small");
  ASSERT_TRUE(found);
  ASSERT_EQ(found->meta.step, 10);
  resumed.trainer.resume(found->dir, found->meta.info);
  resumed.trainer.run();
  expect_same(resumed);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, CompatTaskGpu,
    ::testing::Values(CompatGpuVariant{"main", {}}, CompatGpuVariant{"guide", {"contrastive.commit=guide"}},
                      CompatGpuVariant{"source", {"contrastive.field_dim=8"}},
                      CompatGpuVariant{"off", {"contrastive.nudge_mode=off"}},
                      CompatGpuVariant{"half", {"contrastive.bank_dtype=float16", "contrastive.state_dim=64"}},
                      CompatGpuVariant{"last_step", {"contrastive.retrieve_each_step=false"}}),
    [](const auto& info) { return info.param.name; });

TEST(CompatTaskGpu, EqualsTheCpu) {
  HRM_NEEDS_GPU();
  const auto dir = fresh_folder("runs");
  SmallCompat cpu(dir / "cpu", {"train.steps=4"}), gpu(dir / "gpu", compat_on_gpu({"train.steps=4"}, true));
  for (SmallCompat* run : {&cpu, &gpu}) {
    run->trainer.start_fresh();
    run->turn();
    run->trainer.run();
  }
  const auto want = cpu.tensors(), got = gpu.tensors();
  for (const char* name : {"g", "theta", "compat.field", "compat.bank_coord", "compat.bank_state"}) {
    const at::Tensor expected = want.at(name).to(at::kDouble);
    const double error = (got.at(name).to(at::kCPU, at::kDouble) - expected).abs().max().item<double>();
    EXPECT_LE(error, 1e-4 * std::max(1.0, expected.abs().max().item<double>())) << name;
  }
}

}  // namespace
}  // namespace hrm
