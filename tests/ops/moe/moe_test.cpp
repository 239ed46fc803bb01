#include "hrm/ops/moe.h"

#include "ops/moe/moe_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// A decoding step has fewer picks than a model has experts.
TEST(Moe, RowsOfFewPicks) {
  EXPECT_EQ(moe_rows(1, 8, 128), 8 * kMoeTile);
  EXPECT_EQ(moe_rows(1000, 2, 4), (2000 + 4 * (kMoeTile - 1)) / kMoeTile * kMoeTile);
  EXPECT_EQ(moe_rows(0, 2, 4), 0);
  const at::Tensor ids = at::tensor({127, 3, 5, 90}, at::kInt).view({2, 2});
  expect_good_plan(ids, 128);
  expect_good_moe(make_moe(2, 16, 8, 128, 2, at::kFloat, at::kCPU), "two tokens, 128 experts");
  const MoeResult nothing = run_moe(make_moe(0, 16, 8, 4, 2, at::kFloat, at::kCPU));
  EXPECT_EQ(nothing.out.sizes(), (std::vector<int64_t>{0, 16}));
  EXPECT_TRUE(nothing.grad_up.eq(0.5).all().item<bool>());
}

TEST(Moe, AsGoodAsOneExpertAfterTheOther) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const ExpertActivation activation : kActivations) {
      const std::string what = cat(dtype, " ", name_of(activation));
      const auto make = [&](int64_t tokens, int64_t dim, int64_t width, int64_t experts, int64_t top_k) {
        return make_moe(tokens, dim, width, experts, top_k, dtype, at::kCPU, activation);
      };
      expect_good_moe(make(50, 24, 40, 4, 2), what);
      expect_good_moe(make(300, 16, 8, 3, 1), what + " many tokens");
      expect_good_moe(make(7, 8, 5, 16, 8), what + " normalized", /*normalize=*/true);
      expect_good_moe(make(1, 1, 1, 1, 1), what + " one of all");
      expect_good_moe(make(33, 13, 9, 5, 5), what + " every expert");
    }
  }
}

TEST(Moe, SameWithoutGradients) {
  for (const ExpertActivation activation : kActivations) {
    expect_same_without_gradients(make_moe(37, 12, 20, 5, 2, at::kFloat, at::kCPU, activation));
  }
}

TEST(Moe, EmptyAndCrowdedExperts) {
  for (const ExpertActivation activation : kActivations) {
    MoeCase c = make_moe(40, 8, 12, 5, 2, at::kFloat, at::kCPU, activation);
    empty_expert(c, 0);
    empty_expert(c, 3);
    expect_good_moe(c, "two experts without tokens");
    c.top_k = 1;
    steer(c, 4);
    expect_good_moe(c, "all tokens to the last");
  }
}

class MoeGradients : public ::testing::TestWithParam<ExpertActivation> {};

TEST_P(MoeGradients, FiniteDifferencesInFloat64) {
  const MoeCase c = make_moe(4, 3, 2, 3, 2, at::kDouble, at::kCPU, GetParam());
  const MoeResult ours = run_moe(c, /*normalize=*/true);
  constexpr double kStep = 1e-6;
  const auto check = [&](at::Tensor MoeCase::*member, const at::Tensor& grad, double offset, const char* what) {
    for (int64_t i = 0; i < (c.*member).numel(); ++i) {
      const auto loss = [&](double move) {
        MoeCase moved = c;
        moved.*member = (c.*member).clone();
        (moved.*member).view(-1)[i] += move;
        return (run_moe(moved, /*normalize=*/true).out * c.grad_out).sum().item<double>();
      };
      EXPECT_NEAR(grad.reshape(-1)[i].item<double>() - offset, (loss(kStep) - loss(-kStep)) / (2 * kStep), 1e-7)
          << what << " " << i;
    }
  };
  check(&MoeCase::x, ours.grad_x, 0, "x");
  check(&MoeCase::logits, ours.grad_logits, 0, "logits");
  check(&MoeCase::up, ours.grad_up, 0.5, "up");
  check(&MoeCase::down, ours.grad_down, 0.5, "down");
}

INSTANTIATE_TEST_SUITE_P(Moe, MoeGradients, ::testing::ValuesIn(kActivations),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Gates are the first half of an expert's rows, as in Hugging Face's gate_up_proj.
TEST(Moe, SwigluIsGateThenUp) {
  const MoeCase c = make_moe(6, 4, 3, 2, 2, at::kDouble, at::kCPU, ExpertActivation::swiglu);
  const MoeGate gate = moe_gate(c.logits, 2, MoeScore::softmax, false);
  at::Tensor want = at::zeros_like(c.x);
  for (int64_t pick = 0; pick < 2; ++pick) {
    for (int64_t token = 0; token < 6; ++token) {
      const auto e = gate.ids[token][pick].item<int64_t>();
      const at::Tensor g = c.up[e].narrow(0, 0, 3).mv(c.x[token]), u = c.up[e].narrow(0, 3, 3).mv(c.x[token]);
      want[token] += gate.weights[token][pick] * c.down[e].mv(g / (1 + at::exp(-g)) * u);
    }
  }
  const at::Tensor out =
      moe_experts(c.x, gate.weights, moe_plan(gate.ids, 2), c.up, c.up, c.down, c.down, c.activation);
  EXPECT_LE(largest_difference(out, want), 1e-14);
  EXPECT_LE(largest_difference(reference::moe_experts(c.x, gate.weights, gate.ids, c.up, c.down, c.activation), want),
            1e-14);
}

TEST(Moe, Plans) {
  for (const int64_t experts : {1, 3, 64}) {
    for (const int64_t tokens : {1, 100, 700}) {
      at::Generator generator = at::detail::createCPUGenerator();
      generator.set_current_seed(static_cast<uint64_t>(tokens));
      expect_good_plan(at::randint(-1, experts, {tokens, 2}, generator, at::kInt), experts);
    }
  }
  expect_good_plan(at::full({5, 2}, -1, at::kInt), 4);
}

TEST(Moe, Gates) {
  expect_good_gates(at::kCPU);
}

TEST(Moe, Jitter) {
  expect_good_jitter(at::kCPU);
}

TEST(Moe, LoadLoss) {
  expect_good_load_loss(at::kCPU);
  const at::Tensor scores = at::rand({4, 3}), kept = at::zeros({3}, at::kInt), totals = at::zeros({4}, at::kDouble);
  expect_message(error_of([&] { moe_load_loss_(scores, kept, {}, at::zeros({3}, at::kDouble)); }),
                 {"hrm::moe_load_loss_", "totals", "[3]"});
  expect_message(error_of([&] { moe_load_loss_(scores.to(at::kHalf), kept, {}, totals); }), {"scores", "Half"});
  expect_message(error_of([&] { moe_load_loss_(scores, kept.to(at::kLong), {}, totals); }), {"kept", "Long"});
}

TEST(Moe, StaleGradientsAreOverwritten) {
  for (const ExpertActivation activation : kActivations) {
    expect_stale_overwritten(at::kCPU, at::kFloat, 24, activation);
  }
}

TEST(Moe, Loads) {
  expect_good_loads(at::kCPU);
}

// Dropped: those with the smallest weights, and of equal ones the later.
TEST(Moe, Capacity) {
  const at::Tensor ids = at::tensor({0, 1, 0, 2, 0, 1, 1, 0}, at::kInt).view({4, 2});
  const at::Tensor weights = at::tensor({.1, .9, .7, .5, .7, .2, .2, .7}, at::kFloat).view({4, 2});
  EXPECT_TRUE(at::equal(moe_drop(ids, weights, 3, 2), at::tensor({-1, 1, 0, 2, 0, 1, -1, -1}, at::kInt).view({4, 2})));
  EXPECT_TRUE(at::equal(moe_drop(ids, weights, 3, 4), ids));
  EXPECT_TRUE(at::equal(moe_drop(ids, weights, 3, 0), at::full({4, 2}, -1, at::kInt)));
}

TEST(Moe, DroppedPicksAddNothing) {
  for (const ExpertActivation activation : kActivations) {
    expect_dropped_add_nothing(make_moe(20, 8, 12, 3, 2, at::kFloat, at::kCPU, activation), 5);
  }
}

TEST(Moe, Router) {
  const at::Tensor x = normal({9, 6}, 1, at::kBFloat16).requires_grad_();
  at::Tensor master = normal({4, 6}, 2, at::kFloat).requires_grad_();
  master.mutable_grad() = at::full({4, 6}, 0.5);
  const at::Tensor weight = master.detach().to(at::kBFloat16);
  const at::Tensor logits = moe_router(x, weight, master);
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_LE(largest_difference(logits, x.to(at::kDouble).mm(weight.to(at::kDouble).t())), 1e-6);
  const at::Tensor grad = normal({9, 4}, 3, at::kFloat), rounded = grad.to(at::kBFloat16).to(at::kDouble);
  const at::Tensor grad_x = torch::autograd::grad({logits}, {x}, {grad})[0];
  EXPECT_LE(largest_difference(grad_x, rounded.mm(weight.to(at::kDouble))), 0x1p-6);
  EXPECT_LE(largest_difference(master.grad(), rounded.t().mm(x.detach().to(at::kDouble)) + 0.5), 1e-5);
}

TEST(Moe, WrongInputIsNamed) {
  const MoeCase c = make_moe(4, 8, 8, 3, 2, at::kFloat, at::kCPU);
  const MoePlan plan = moe_plan(moe_gate(c.logits, 2, MoeScore::softmax, false).ids, 3);
  expect_message(error_of([&] { moe_gate(c.logits, 4, MoeScore::softmax, false); }), {"hrm::moe_gate", "top_k", "4"});
  expect_message(error_of([&] { moe_gate(c.x.to(at::kBFloat16), 1, MoeScore::softmax, false); }), {"hrm::moe_gate"});
  expect_message(error_of([&] { moe_plan(c.x, 3); }), {"hrm::moe_plan", "int32"});
  const at::Tensor loads = at::zeros({2, 3}, at::kDouble), counts = at::zeros({5}, at::kDouble);
  expect_message(error_of([&] { moe_loads_(loads, counts); }), {"hrm::moe_loads_", "(1, 3)", "[2, 3]"});
  expect_message(error_of([&] {
                   moe_loads_(loads, {counts, at::zeros({6}, at::kDouble)});
                 }),
                 {"hrm::moe_loads_", "[6]", "[5]"});
  expect_message(error_of([&] { moe_loads_(loads, {counts.to(at::kInt), counts}); }), {"hrm::moe_loads_", "Int"});
  expect_message(error_of([&] { moe_experts(c.x, c.logits, plan, c.up, c.up, c.down, c.down); }),
                 {"hrm::moe_combine", "[4, 3]"});
  const at::Tensor narrow = c.up.narrow(2, 0, 4);
  const at::Tensor weights = at::ones({4, 2});
  expect_message(error_of([&] { moe_experts(c.x, weights, plan, narrow, narrow, c.down, c.down); }),
                 {"hrm::moe_linear", "[3, 8, 4]"});
  const auto swiglu = [&](const at::Tensor& up) {
    return error_of([&] { moe_experts(c.x, weights, plan, up, up, c.down, c.down, ExpertActivation::swiglu); });
  };
  expect_message(swiglu(c.up.narrow(1, 0, 7)), {"hrm::moe_up_swiglu", "[3, 7, 8]"});
  expect_message(swiglu(c.up), {"hrm::moe_linear", "[3, 8, 8]"});
}

TEST(Moe, WayIsNamed) {
  EXPECT_EQ(moe_experts_way(at::kCPU, at::kFloat, 256, 256), "a product for each expert");
}

}  // namespace
}  // namespace hrm::ops
