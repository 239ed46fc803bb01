#include "hrm/ops/act_update.h"

#include "ops/act/act_update_cases.h"
#include "ops/gpu_testing.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(ActUpdateGpu, BeginSlotBySlot) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t width : {3, 16, 512}) expect_good_begin(dtype, width, at::kCUDA);
  }
}

TEST(ActUpdateGpu, SequencesEqualTheReference) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_good_sequence(make_act(7, 5, 3, 16, 7, dtype, at::kCUDA), cat(dtype, " small"));
    expect_good_sequence(make_act(5, 4, 3, 7, 5, dtype, at::kCUDA), cat(dtype, " odd"));
  }
  expect_good_sequence(make_act(2500, 9, 2, 8, 2500, at::kBFloat16, at::kCUDA), "more slots than a block has threads");
}

TEST(ActUpdateGpu, SequencesEqualTheReferenceLarge) {
  HRM_NEEDS_GPU();
  expect_good_sequence(make_act(384, 81, 82, 512, 384, at::kBFloat16, at::kCUDA), "HRM's size");
}

TEST(ActUpdateGpu, Views) {
  HRM_NEEDS_GPU();
  expect_views(at::kCUDA);
}

TEST(ActUpdateGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const ActCase start = make_act(6, 5, 3, 16, 9, at::kBFloat16, at::kCUDA);
  const ActHalting halting{4, 0.3, true, false};
  ActCase eager = start.clone(), captured = start.clone();
  ActInputs in = make_inputs(start, 0);
  const auto run = [&](ActCase& c) {
    act_begin_(c.slots, c.H_init, c.L_init, c.rows, c.cursor);
    act_end_(c.slots, in.z_H, in.z_L, in.q, in.uniform, in.min_steps, halting);
  };
  for (int i = 0; i < 3; ++i) run(eager);
  Captured graph([&] { run(captured); });  // runs three steps
  for (uint64_t round = 0; round < 5; ++round) {
    const ActInputs fresh = make_inputs(start, 1000 * (round + 1));
    in.z_H.copy_(fresh.z_H);
    in.z_L.copy_(fresh.z_L);
    in.q.copy_(fresh.q);
    in.uniform.copy_(fresh.uniform);
    in.min_steps.copy_(fresh.min_steps);
    graph.replay();
    run(eager);
    expect_same_state(captured, eager, cat("round ", round));
  }
}

}  // namespace
}  // namespace hrm::ops
