// The fused block in bfloat16 on a GPU: at most twice the error of the plain block in bfloat16, both against float32 on
// the CPU with the same weights.
#include "hrm/nn/sub_blocks.h"

#include "hrm/base/error.h"
#include "nn/sub_blocks_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::nn {
namespace {

using testing::BlockResult;
using testing::distance;
using testing::run_block;

TEST(SubBlocksGpu, AreAsGoodAsThePlainBlock) {
  HRM_NEEDS_GPU();
  struct Case {
    int64_t batch, positions, width, heads;
    bool mlp_t, convolution = false;
  };
  for (const Case& c : {Case{5, 82, 512, 8, false}, Case{132, 82, 512, 8, false}, Case{3, 97, 512, 8, true},
                        Case{2, 201, 256, 4, false}, Case{1, 16, 128, 2, false}, Case{5, 82, 512, 8, false, true},
                        Case{2, 201, 256, 4, false, true}}) {
    const BlockSizes sizes{
        .width = c.width, .positions = c.positions, .heads = c.heads, .mlp_t = c.mlp_t, .convolution = c.convolution};
    auto generator = at::detail::createCPUGenerator(3);
    const auto random = [&] {
      return at::randn({c.batch, c.positions, c.width}, generator, at::kFloat).to(at::kBFloat16).to(at::kFloat);
    };
    const at::Tensor x = random(), grad = random();
    const BlockResult exact = run_block(ops::Backend::reference, sizes, at::kCPU, at::kFloat, x, grad);
    const BlockResult plain = run_block(ops::Backend::reference, sizes, at::kCUDA, at::kBFloat16, x, grad);
    const BlockResult fused = run_block(ops::Backend::fused, sizes, at::kCUDA, at::kBFloat16, x, grad);
    const auto what = [&](const std::string& value) {
      return cat(value, ", batch ", c.batch, ", positions ", c.positions, ", width ", c.width, ", mlp_t ", c.mlp_t,
                 ", convolution ", c.convolution);
    };
    EXPECT_LT(distance(fused.y, exact.y), 2 * distance(plain.y, exact.y)) << what("y");
    EXPECT_LT(distance(fused.first, exact.y.select(1, 0)), 2 * distance(plain.first, exact.y.select(1, 0)))
        << what("first position");
    ASSERT_EQ(fused.grads.size(), exact.grads.size());
    for (size_t i = 0; i < exact.grads.size(); ++i) {
      EXPECT_LT(distance(fused.grads[i], exact.grads[i]), 2 * distance(plain.grads[i], exact.grads[i]))
          << what(cat("gradient ", i, i == 0 ? " (of the input) " : " (of a weight) ", exact.grads[i].sizes()));
    }
  }
}

}  // namespace
}  // namespace hrm::nn
