#include "ops/gpu_testing.h"
#include "ops/memory/cuda/memory_blocks.h"
#include "ops/memory/memory_blocks_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// That the kernel takes: whole memories of 64, several of them in a cluster's rows, clusters that are not full, both
// widths, up to four blocks.
std::vector<MemoryBlocksCase> kernel_cases() {
  return {{8, 64, 512, 1536, 8, 2, 3}, {9, 8, 512, 1536, 8, 2, 1},       {3, 20, 512, 1536, 8, 1, 2, true},
          {1, 1, 512, 1536, 8, 1, 1},  {5, 33, 256, 768, 4, 3, 2, true}, {20, 64, 256, 768, 4, 4, 1}};
}

TEST(MemoryBlocksGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const MemoryBlocksCase& c : kernel_cases())
      expect_good_memory_blocks(c, dtype, at::kCUDA, /*one_kernel=*/true);
  }
}

// Lengths, widths and types that no kernel takes.
TEST(MemoryBlocksGpu, OtherSizesAsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  const WithoutTf32 without_tf32;
  for (const MemoryBlocksCase& c :
       {MemoryBlocksCase{2, 65, 512, 1536, 8, 1, 2}, MemoryBlocksCase{3, 16, 128, 512, 4, 2, 2, true},
        MemoryBlocksCase{2, 9, 96, 40, 3, 1, 2}}) {
    expect_good_memory_blocks(c, at::kBFloat16, at::kCUDA);
    expect_good_memory_blocks(c, at::kFloat, at::kCUDA);
  }
}

// What is saved for the backward pass is what was computed.
TEST(MemoryBlocksGpu, SavesWhatTheOracleSaves) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const MemoryBlocksCase& c : kernel_cases()) {
    const MemoryInput input = memory_input(c, at::kBFloat16, at::kCUDA), wide = input.to(at::kDouble);
    const auto [out, saved] =
        memory_blocks_forward(input.state, input.extra, input.pos, input.blocks, input.norm, input.options);
    const auto run = [](const MemoryInput& in) {
      return reference::memory_blocks(in.state, in.extra, in.pos, in.blocks, in.norm, in.options, true);
    };
    const std::vector<at::Tensor> plain = run(input), exact = run(wide);
    std::vector<at::Tensor> found{out, saved.last};
    for (const MemoryBlockSaved& s : saved.blocks) {
      found.insert(found.end(), {s.x, s.qkv, s.mixed, s.lse, s.h, s.gate_up});
    }
    ASSERT_EQ(found.size(), plain.size());
    for (size_t i = 0; i < found.size(); ++i) {
      expect_as_good(found[i], plain[i].to(found[i].scalar_type()), exact[i], cat(name_of(at::kBFloat16, c), ", ", i));
    }
  }
}

TEST(MemoryBlocksGpu, SameBitsEachTime) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  for (const MemoryBlocksCase& c : kernel_cases()) {
    const MemoryInput input = memory_input(c, at::kBFloat16, at::kCUDA);
    expect_same_each_time(
        [&] {
          return std::vector<at::Tensor>{
              memory_blocks(input.state, input.extra, input.pos, input.blocks, input.norm, input.options)};
        },
        20, name_of(at::kBFloat16, c));
  }
}

TEST(MemoryBlocksGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const MemoryInput input = memory_input(kernel_cases()[0], at::kBFloat16, at::kCUDA);
  std::vector<at::Tensor> results;
  const auto work = [&] {
    MemoryResult result = ours(input);
    results = std::move(result.grads);
    results.push_back(result.out);
  };
  work();
  std::vector<at::Tensor> eager;
  for (const at::Tensor& t : results) eager.push_back(t.clone());
  Captured captured(work);
  captured.replay();
  at::cuda::device_synchronize();
  for (size_t i = 0; i < eager.size(); ++i) expect_same_bits(results[i], eager[i], cat("result ", i));
}

// No number of one memory reaches another of the same cluster.
TEST(MemoryBlocksGpu, NothingLeaksBetweenMemories) {
  HRM_NEEDS_GPU();
  const at::NoGradGuard no_grad;
  const MemoryInput input = memory_input({9, 8, 512, 1536, 8, 2, 2}, at::kBFloat16, at::kCUDA);
  const auto run = [&](const at::Tensor& state) {
    return memory_blocks(state, input.extra, input.pos, input.blocks, input.norm, input.options);
  };
  at::Tensor other = input.state.clone();
  other[4].fill_(100);
  const at::Tensor a = run(input.state), b = run(other);
  EXPECT_GT(largest_difference(a[4], b[4]), 0.1);
  for (const int64_t memory : {0, 3, 5, 7, 8}) expect_same_bits(b[memory], a[memory], cat("memory ", memory));
}

}  // namespace
}  // namespace hrm::ops
