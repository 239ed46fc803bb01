// The cases notice a broken model: each edit here must make its case fail. The edits are made from outside, on the
// configuration, the weights or the state, so that the product code has no switches for them.

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "parity/model_case.h"
#include "support/paths.h"

namespace hrm::parity {
namespace {

Case shipped(const std::string& name) {
  return load_case(test::source_dir() + "/tests/fixtures/" + name);
}

// Failures that a check reports, which are not failures of this test.
template <class Check>
int failures_of(const Check& check) {
  testing::TestPartResultArray results;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    check();
  }
  return results.size();
}

int forward_failures(const std::string& name, const Mutation& mutation) {
  return failures_of([&] { check_forward(shipped(name), mutation); });
}

int trace_failures(const std::string& name, const Mutation& mutation) {
  return failures_of([&] { check_train_trace(shipped(name), mutation); });
}

void edit_weights(models::PuzzleModel& model, const std::string& ending,
                  const std::function<at::Tensor(const at::Tensor&)>& edit) {
  const at::NoGradGuard no_grad;
  int edited = 0;
  for (auto& item : model.named_parameters()) {
    if (!item.key().ends_with(ending)) continue;
    item.value().copy_(edit(item.value()));
    ++edited;
  }
  ASSERT_GT(edited, 0) << ending;
  model.parameter_set().refresh_compute();
}

TEST(Mutation, NoEditNoFailure) {
  EXPECT_EQ(forward_failures("hrm_forward", {}), 0);
  EXPECT_EQ(trace_failures("hrm_train_trace", {}), 0);
}

TEST(Mutation, EpsilonTenTimes) {
  EXPECT_GT(forward_failures("hrm_forward", {.config = [](auto& c) { c.rms_norm_eps *= 10; }}), 0);
}

TEST(Mutation, RotaryBase) {
  EXPECT_GT(forward_failures("hrm_forward", {.config = [](auto& c) { c.rope_theta *= 1.01; }}), 0);
}

TEST(Mutation, OneCycleLess) {
  EXPECT_GT(forward_failures("hrm_forward", {.config = [](auto& c) { c.L_cycles -= 1; }}), 0);
  EXPECT_GT(forward_failures("trm_forward_att", {.config = [](auto& c) { c.H_cycles -= 1; }}), 0);
}

TEST(Mutation, QAndKSwapped) {
  const auto swap = [](models::PuzzleModel& model) {
    edit_weights(model, "qkv_proj.weight", [](const at::Tensor& w) {
      const auto parts = w.chunk(3, 0);
      return at::cat({parts[1], parts[0], parts[2]});
    });
  };
  EXPECT_GT(forward_failures("hrm_forward", {.weights = swap}), 0);
}

TEST(Mutation, GateAndUpSwapped) {
  const auto swap = [](models::PuzzleModel& model) {
    edit_weights(model, "gate_up_proj.weight", [](const at::Tensor& w) {
      const auto parts = w.chunk(2, 0);
      return at::cat({parts[1], parts[0]});
    });
  };
  EXPECT_GT(forward_failures("trm_forward_mlp", {.weights = swap}), 0);
}

TEST(Mutation, TapsSwapped) {
  const auto failures = [](const Mutation& mutation) {
    return failures_of([&] { check_urm(shipped("urm_forward"), mutation); });
  };
  const auto swap = [](models::PuzzleModel& model) {
    edit_weights(model, "dwconv.weight", [](const at::Tensor& w) { return w.flip(2); });
  };
  EXPECT_EQ(failures({}), 0);
  EXPECT_GT(failures({.weights = swap}), 0);
}

TEST(Mutation, OneWeightOff) {
  const auto nudge = [](models::PuzzleModel& model) {
    edit_weights(model, "L_level.layers.0.mlp.down_proj.weight", [](const at::Tensor& w) {
      at::Tensor changed = w.clone();
      changed[0][0] += 0.01;
      return changed;
    });
  };
  EXPECT_GT(forward_failures("hrm_forward", {.weights = nudge}), 0);
}

// A reset to something else than H_init, one that also hits slots that go on, and a swap of the initial states.
TEST(Mutation, CarryReset) {
  const auto to_zero = [](objectives::ActState& state, const at::Tensor& halted) {
    state.carry.z_H.masked_fill_(halted.view({-1, 1, 1}), 0);
  };
  const auto reset_all = [](objectives::ActState& state, const at::Tensor& halted) {
    const int64_t fresh = halted.to(at::kLong).argmax().item<int64_t>();
    state.carry.z_L.copy_(state.carry.z_L[fresh].clone().expand_as(state.carry.z_L));
  };
  const auto swapped = [](objectives::ActState& state, const at::Tensor& halted) {
    const at::Tensor z_H = state.carry.z_H.clone(), mask = halted.view({-1, 1, 1});
    state.carry.z_H.copy_(at::where(mask, state.carry.z_L, z_H));
    state.carry.z_L.copy_(at::where(mask, z_H, state.carry.z_L));
  };
  EXPECT_GT(trace_failures("hrm_train_trace", {.after_begin = to_zero}), 0);
  EXPECT_GT(trace_failures("hrm_train_trace", {.after_begin = reset_all}), 0);
  EXPECT_GT(trace_failures("hrm_train_trace", {.after_begin = swapped}), 0);
}

TEST(Mutation, HaltingRule) {
  EXPECT_GT(trace_failures("hrm_train_trace", {.config = [](auto& c) { c.no_ACT_continue = true; }}), 0);
  EXPECT_GT(trace_failures("hrm_train_trace", {.config = [](auto& c) { c.halt_exploration_prob = 0; }}), 0);
}

TEST(Mutation, DataOfASlotThatGoesOn) {
  const auto shuffled = [](objectives::ActState& state, const at::Tensor& halted) {
    if (!halted.all().item<bool>()) state.labels.masked_fill_(halted.logical_not().unsqueeze(1), 1);
  };
  EXPECT_GT(trace_failures("trm_train_trace_att", {.after_begin = shuffled}), 0);
}

}  // namespace
}  // namespace hrm::parity
