// Training beside NF4 with the step captured in a CUDA graph, and its answers with it, is training: the layers take
// turns in one workspace whose address the graphs know.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>

#include "train/small_polychromic.h"

namespace hrm {
namespace {

using testing::fresh_folder;
using testing::metrics_without_timing;
using testing::SmallPolychromic;

TEST(PolychromicNf4Gpu, GraphEqualsEagerBitForBit) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const auto dir = fresh_folder("runs");
  std::map<std::string, at::Tensor> state[2];
  for (const bool graphs : {false, true}) {
    SmallPolychromic run(
        dir / (graphs ? "graph" : "eager"),
        {"hf.quantize=nf4", "runtime.device=cuda", "runtime.deterministic=true", "train.steps=20", "chat.buckets=1",
         "lora.dropout=0.1", graphs ? "runtime.cuda_graphs=true" : "runtime.cuda_graphs=false"});
    run.trainer.start_fresh();
    ASSERT_EQ(run.trainer.run(), train::Outcome::finished);
    EXPECT_EQ(run.trainer.captured_step().replays() > 0, graphs) << run.trainer.captured_step().reason();
    state[graphs ? 1 : 0] = run.tensors();
  }
  ASSERT_EQ(state[0].size(), state[1].size());
  for (const auto& [name, tensor] : state[0]) EXPECT_TRUE(at::equal(tensor, state[1].at(name))) << name;
  EXPECT_EQ(metrics_without_timing(dir / "eager"), metrics_without_timing(dir / "graph"));
}

}  // namespace
}  // namespace hrm
