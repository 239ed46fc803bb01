#include "hrm/ops/act_update.h"

#include "ops/act/act_update_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

TEST(ActUpdate, BeginSlotBySlot) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    expect_good_begin(dtype, 16, at::kCPU);
  }
}

TEST(ActUpdate, Views) {
  expect_views(at::kCPU);
}

TEST(ActUpdate, EmptyState) {
  const ActCase c = make_act(0, 5, 3, 8, 4, at::kFloat, at::kCPU);
  act_begin_(c.slots, c.H_init, c.L_init, c.rows, c.cursor);
  EXPECT_EQ(c.cursor.item<int64_t>(), 1);
}

TEST(ActUpdate, BumpsVersions) {
  const ActCase c = make_act(3, 5, 3, 8, 4, at::kFloat, at::kCPU);
  const auto before = c.slots.z_H._version();
  act_begin_(c.slots, c.H_init, c.L_init, c.rows, c.cursor);
  EXPECT_GT(c.slots.z_H._version(), before);
  const auto between = c.slots.z_L._version();
  const ActInputs in = make_inputs(c, 1);
  act_end_(c.slots, in.z_H, in.z_L, in.q, in.uniform, in.min_steps, {4, 0, true, false});
  EXPECT_GT(c.slots.z_L._version(), between);
}

TEST(ActUpdate, BadInputIsNamed) {
  const ActCase c = make_act(4, 5, 3, 8, 4, at::kFloat, at::kCPU);
  const ActInputs in = make_inputs(c, 1);
  const ActRows few{c.rows.inputs.narrow(0, 0, 3), c.rows.labels.narrow(0, 0, 3),
                    c.rows.puzzle_identifiers.narrow(0, 0, 3)};
  expect_message(error_of([&] { act_begin_(c.slots, c.H_init, c.L_init, few, c.cursor); }),
                 {"hrm::act_begin_", "[3, 5]", "[4, 5]"});
  expect_message(error_of([&] { act_begin_(c.slots, at::zeros({9}), c.L_init, c.rows, c.cursor); }),
                 {"hrm::act_begin_", "H_init", "[8]", "[9]"});
  ActSlots strided = c.slots;
  strided.z_L = at::zeros({4, 8, 3}).transpose(1, 2);
  expect_message(error_of([&] { act_begin_(strided, c.H_init, c.L_init, c.rows, {}); }),
                 {"hrm::act_begin_", "z_L", "contiguous"});
  expect_message(error_of([&] {
                   act_end_(c.slots, in.z_H, in.z_L, at::zeros({4}), in.uniform, in.min_steps, {4, 0, true, false});
                 }),
                 {"hrm::act_end_", "q", "[4, 2]", "[4]"});
  expect_message(error_of([&] { act_end_(c.slots, in.z_H.to(at::kHalf), in.z_L, in.q, in.uniform, in.min_steps, {}); }),
                 {"hrm::act_end_", "new_z_H", "Half"});
}

}  // namespace
}  // namespace hrm::ops
