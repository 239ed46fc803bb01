#include "ops/contrastive/memory_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(GeometricRelax, AsGoodAsFloat64) {
  expect_good_relaxation(at::kCPU, /*half=*/false);
  expect_good_relaxation(at::kCPU, /*half=*/true);
}

TEST(GeometricRelax, EmptySlotsAreNotRead) {
  expect_empty_slots_unread(at::kCPU, /*half=*/false);
}

TEST(GeometricRelax, EveryBatchSize) {
  expect_every_batch_size(at::kCPU, /*half=*/false);
}

// Steps in two calls are steps in one, without momentum.
TEST(GeometricRelax, StepsAddUp) {
  MemoryCase memory({9, 40, 6, 8, 4});
  const GeometricState whole = memory.relaxed(10, true);
  const GeometricState half = memory.relaxed(4, true);
  memory.offset = half.offset;
  memory.o = half.o;
  const GeometricState rest = memory.relaxed(6, true);
  expect_same_bits(rest.offset, whole.offset);
  expect_same_bits(rest.o, whole.o);
  EXPECT_LT(largest_difference(half.speed + rest.speed, whole.speed), 1e-12);
}

// A free equilibrium is a fixed point, and momentum reaches the same one.
TEST(GeometricRelax, SettlesAtOneEquilibrium) {
  MemoryCase memory({9, 40, 6, 8, 4});
  const GeometricState plain = memory.relaxed(400, false), damped = memory.relaxed(400, false, 0.6);
  EXPECT_LT(plain.residual.max().item<double>(), 1e-12);
  EXPECT_LT(largest_difference(plain.offset, damped.offset), 1e-9);
  EXPECT_LT(largest_difference(plain.o, damped.o), 1e-9);
}

TEST(GeometricRelax, BadInputIsNamed) {
  MemoryCase memory({4, 8, 3, 5, 2});
  MemoryCase wrong = memory;
  wrong.slots.keys = at::zeros({8, 4}, at::kDouble);
  expect_message(error_of([&] { wrong.relaxed(1, false); }), {"hrm::geometric_relax", "keys", "[8, 4]"});
  wrong = memory;
  wrong.nudge.targets = at::zeros({4}, at::kInt);
  expect_message(error_of([&] { wrong.relaxed(1, true); }), {"hrm::geometric_relax", "targets", "Int"});
  expect_message(error_of([&] { memory.relaxed(-1, true); }), {"hrm::geometric_relax", "steps"});
  wrong = memory;
  wrong.scales = at::zeros({3}, at::kDouble);
  expect_message(error_of([&] { wrong.statistics(memory.relaxed(1, false)); }), {"hrm::contrastive_statistics", "[3]"});
}

TEST(ContrastiveStatistics, AsGoodAsFloat64) {
  expect_good_statistics(at::kCPU, /*half=*/false);
}

}  // namespace
}  // namespace hrm::ops
