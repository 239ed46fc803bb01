#include "ops/contrastive/memory_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(GeometricRelaxGpu, AsGoodAsFloat64) {
  HRM_NEEDS_GPU();
  expect_good_relaxation(at::kCUDA, /*half=*/true);
  expect_good_relaxation(at::kCUDA, /*half=*/false);
}

// Many rows and slots: clusters, several warps for each tile.
TEST(GeometricRelaxGpu, LargeAsGoodAsFloat64) {
  HRM_NEEDS_GPU();
  for (const MemorySize& size : {MemorySize{1024, 2048, 16, 64, 259}, MemorySize{2048, 512, 16, 64, 40}}) {
    const MemoryCase exact(size);
    const MemoryCase ours = exact.to(at::kCUDA, at::kFloat, /*half=*/true);
    expect_close_state(ours.relaxed(8, true), exact.relaxed(8, true), 2e-5, cat(size.rows, " rows"));
  }
}

TEST(GeometricRelaxGpu, EmptySlotsAreNotRead) {
  HRM_NEEDS_GPU();
  expect_empty_slots_unread(at::kCUDA, /*half=*/true);
}

TEST(GeometricRelaxGpu, EveryBatchSize) {
  HRM_NEEDS_GPU();
  expect_every_batch_size(at::kCUDA, /*half=*/true);
}

TEST(GeometricRelaxGpu, SameBitsInAGraph) {
  HRM_NEEDS_GPU();
  MemoryCase memory = MemoryCase({100, 700, 16, 32, 50}).to(at::kCUDA, at::kFloat, /*half=*/true);
  memory.slots.filled = at::full({}, 650, at::device(at::kCUDA).dtype(at::kLong));
  GeometricState state;
  ContrastiveStatistics sums;
  Captured captured([&] {
    state = memory.relaxed(12, true);
    sums = memory.statistics(state);
  });
  memory.drive.copy_(memory.drive * 0.5);
  memory.slots.filled.fill_(333);
  captured.replay();
  const GeometricState want = memory.relaxed(12, true);
  const ContrastiveStatistics want_sums = memory.statistics(want);
  expect_same_bits(state.x, want.x, "x");
  expect_same_bits(state.o, want.o, "o");
  expect_same_bits(sums.values, want_sums.values, "values");
  expect_same_bits(sums.pulled, want_sums.pulled, "pulled");
}

TEST(ContrastiveStatisticsGpu, AsGoodAsFloat64) {
  HRM_NEEDS_GPU();
  expect_good_statistics(at::kCUDA, /*half=*/true);
  expect_good_statistics(at::kCUDA, /*half=*/false);
}

}  // namespace
}  // namespace hrm::ops
