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
  expect_same_bits(state.offset, want.offset, "offset");
  expect_same_bits(state.o, want.o, "o");
  expect_same_bits(sums.values, want_sums.values, "values");
  expect_same_bits(sums.pulled, want_sums.pulled, "pulled");
}

// A row on a slot, and a small cost_eps: e = w R / c leaves the range of float16.
TEST(GeometricRelaxGpu, RowsOnSlots) {
  HRM_NEEDS_GPU();
  for (const double cost_eps : {1e-8, 1e-4}) {
    MemoryCase exact({40, 200, 16, 32, 20});
    exact.constants.cost_eps = cost_eps;
    exact.offset = exact.slots.keys.narrow(0, 0, 40) - exact.drive;
    const MemoryCase ours = exact.to(at::kCUDA, at::kFloat, /*half=*/true);
    GeometricState got = ours.relaxed(1, true), want = exact.relaxed(1, true);
    got.offset += ours.drive;
    want.offset += exact.drive;
    expect_close_state(got, want, 2e-3, cat("cost_eps ", cost_eps));
  }
}

TEST(GeometricRelaxGpu, AClassThatDoesNotExistGivesNaN) {
  HRM_NEEDS_GPU();
  MemoryCase memory = MemoryCase({20, 64, 16, 32, 7}).to(at::kCUDA, at::kFloat, /*half=*/true);
  memory.nudge.targets[3] = 7;
  memory.nudge.targets[5] = -1;
  const at::Tensor wrong = memory.relaxed(4, true).o.isnan().any(1).cpu();
  for (int64_t row = 0; row < 20; ++row) EXPECT_EQ(wrong[row].item<bool>(), row == 3 || row == 5) << "row " << row;
}

TEST(ContrastiveStatisticsGpu, AsGoodAsFloat64) {
  HRM_NEEDS_GPU();
  expect_good_statistics(at::kCUDA, /*half=*/true);
  expect_good_statistics(at::kCUDA, /*half=*/false);
}

}  // namespace
}  // namespace hrm::ops
