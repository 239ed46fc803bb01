#pragma once
// Checks of the per-slot losses that hold on every device.

#include "hrm/ops/act_loss.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct ActLossCase {
  TokenLoss tokens;
  at::Tensor q;
  std::optional<at::Tensor> target;
  at::Tensor steps, halted;

  ActLossSums run() const { return act_loss(tokens, q, target, steps, halted); }
};

// Slots with no labels, with all tokens right, with some.
inline ActLossCase make_act_loss(int64_t slots, at::ScalarType type, bool with_target, at::Device device) {
  auto generator = at::detail::createCPUGenerator(3);
  const at::Tensor labelled = at::randint(0, 5, {slots}, generator, at::kInt);
  const at::Tensor missed = at::randint(0, 3, {slots}, generator, at::kInt);
  ActLossCase c;
  c.tokens = {normal({slots}, 1, at::kFloat).abs().to(device, type), labelled.to(device),
              (labelled - missed).clamp_min(0).to(device)};
  c.q = (4 * normal({slots, 2}, 2, at::kFloat)).to(device);
  if (with_target) c.target = at::rand({slots}, generator, at::kFloat).to(device);
  c.steps = at::randint(1, 17, {slots}, generator, at::kInt).to(device);
  c.halted = at::rand({slots}, generator, at::kFloat).lt(0.5).to(device);
  return c;
}

// softplus(x) - t x in float64, and the sums slot by slot.
inline std::vector<double> exact_metrics(const ActLossCase& c) {
  const auto list = [](const at::Tensor& t) {
    const at::Tensor wide = t.to(at::kCPU, at::kDouble).contiguous();
    return std::vector<double>(wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel());
  };
  const auto bce = [](double x, double t) { return std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0) - t * x; };
  const auto loss = list(c.tokens.loss), labelled = list(c.tokens.labelled), right = list(c.tokens.right);
  const auto q = list(c.q), steps = list(c.steps), halted = list(c.halted.to(at::kInt));
  const auto target = c.target ? list(*c.target) : std::vector<double>();
  std::vector<double> sums(kActMetrics);
  for (size_t i = 0; i < loss.size(); ++i) {
    const bool all_right = right[i] == labelled[i];
    if (halted[i] != 0 && labelled[i] > 0) {
      sums[0] += 1;
      sums[1] += right[i] / labelled[i];
      sums[2] += all_right ? 1 : 0;
      sums[3] += (q[2 * i] >= 0) == all_right ? 1 : 0;
      sums[4] += steps[i];
    }
    sums[5] += loss[i];
    sums[6] += bce(q[2 * i], all_right ? 1 : 0);
    if (c.target) sums[7] += bce(q[2 * i + 1], target[i]);
  }
  return sums;
}

inline void expect_good_act_loss(const ActLossCase& given, const std::string& what) {
  ActLossCase c = given;
  c.tokens.loss = given.tokens.loss.detach().requires_grad_();
  c.q = given.q.detach().requires_grad_();
  const ActLossSums got = c.run();
  const std::vector<double> want = exact_metrics(given);
  EXPECT_EQ(got.loss.scalar_type(), given.tokens.loss.scalar_type()) << what;
  EXPECT_FALSE(got.metrics.requires_grad());
  for (int64_t i = 0; i < kActMetrics; ++i) {
    // Counts are exact; losses are sums of float32 terms.
    const double tolerance = i < 5 ? 1e-12 : 1e-6;
    const double expected = want[static_cast<size_t>(i)];
    EXPECT_NEAR(got.metrics[i].item<double>(), expected, tolerance * std::max(1.0, expected)) << what << " " << i;
  }
  EXPECT_NEAR(got.loss.item<double>(), want[5] + 0.5 * (want[6] + want[7]), 1e-6 * (1 + want[5] + want[6] + want[7]))
      << what;

  const at::Tensor scale = at::full({}, 0.37, got.loss.options().requires_grad(false));
  const auto grads = torch::autograd::grad({got.loss}, {c.tokens.loss, c.q}, {scale});
  expect_same_bits(grads[0], at::full_like(given.tokens.loss, 0.37), what + ", gradient of the token losses");
  const at::Tensor wide = given.q.to(at::kDouble);
  at::Tensor wanted =
      at::stack({given.tokens.right.eq(given.tokens.labelled).to(at::kDouble), at::zeros_like(wide.select(1, 1))}, 1);
  if (given.target) wanted.select(1, 1).copy_(*given.target);
  at::Tensor exact = (at::sigmoid(wide) - wanted) * (0.5 * 0.37);
  if (!given.target) exact.select(1, 1).zero_();
  EXPECT_LE(largest_difference(grads[1], exact), 1e-7) << what;
}

inline void expect_good_act_losses(at::Device device) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (const bool with_target : {true, false}) {
      for (const int64_t slots : {1, 5, 384, 2000}) {
        expect_good_act_loss(make_act_loss(slots, type, with_target, device),
                             cat(type, " ", slots, " slots", with_target ? ", with a target" : ""));
      }
      // q as two columns of something wider, and far from 0.
      ActLossCase c = make_act_loss(33, type, with_target, device);
      at::Tensor wide = at::zeros({33, 5}, c.q.options());
      wide.narrow(1, 2, 2).copy_(30 * c.q);
      c.q = wide.narrow(1, 2, 2);
      expect_good_act_loss(c, cat(type, " strided, large"));
    }
  }
}

inline void expect_good_q_target(at::Device device) {
  const at::Tensor q = (3 * normal({40, 2}, 1, at::kFloat)).to(device);
  const at::Tensor steps = at::arange(40, at::kInt).remainder(6).to(device);
  const at::Tensor target = act_q_target(q, steps, 4);
  const at::Tensor host = q.cpu();
  for (int64_t i = 0; i < 40; ++i) {
    const double halt = host[i][0].item<double>(), go_on = host[i][1].item<double>();
    const double value = i % 6 >= 4 ? halt : std::max(halt, go_on);
    EXPECT_NEAR(target[i].item<double>(), 1 / (1 + std::exp(-value)), 2e-7) << i;
  }
  expect_same_bits(act_q_target(q.t().contiguous().t(), steps, 4), target);
}

}  // namespace hrm::ops::testing
