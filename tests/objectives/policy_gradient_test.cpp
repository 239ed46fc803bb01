// Log-probabilities by chunks against log_softmax, advantages, and the clipped policy loss.

#include "hrm/objectives/policy_gradient.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "hrm/data/batch.h"
#include "hrm/objectives/chunked_cross_entropy.h"
#include "hrm/objectives/token_log_probs.h"
#include "support/expect_error.h"

namespace hrm::objectives {
namespace {

constexpr int64_t kRows = 3, kPolicyTokens = 7, kPolicyWidth = 8, kPolicyVocabulary = 37;

struct PolicyInputs {
  at::Tensor weight, hidden, ids = at::randint(0, kPolicyVocabulary, {kRows, kPolicyTokens}, at::kInt);
  std::shared_ptr<nn::LmHead> head;

  explicit PolicyInputs(at::ScalarType type) {
    weight = at::randn({kPolicyVocabulary, kPolicyWidth}, type).requires_grad_();
    hidden = at::randn({kRows, kPolicyTokens, kPolicyWidth}, type).requires_grad_();
    head = std::make_shared<nn::LmHead>(weight);
    ids[0][0] = data::kIgnoreLabel;
    ids[2] = at::where(at::arange(kPolicyTokens).gt(3), data::kIgnoreLabel, ids[2]).to(at::kInt);
  }
  at::Tensor there() const { return ids.ge(0); }
};

struct Plain {
  at::Tensor log_p, entropy;
};
Plain plain_policy_loss(const at::Tensor& hidden, const at::Tensor& weight, const PolicyInputs& in,
                        double temperature) {
  const at::Tensor all = at::log_softmax(at::linear(hidden, weight) / temperature, -1);
  const at::Tensor index = in.ids.to(at::kLong).clamp_min(0).unsqueeze(-1);
  return {all.gather(-1, index).squeeze(-1) * in.there(), -(all * all.exp()).sum(-1) * in.there()};
}

// A function of log-probabilities that is not linear, as GRPO's ratio is not.
at::Tensor curved(const at::Tensor& log_p) {
  return (log_p * 0.3).exp().sum() + log_p.square().sum() * 0.01;
}

TEST(TokenLogProbs, AreThoseOfLogSoftmax) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (const double temperature : {1.0, 0.7}) {
      for (const int64_t chunk : {1, 5, 21, 100}) {
        PolicyInputs in(type);
        const double close = type == at::kDouble ? 1e-12 : 2e-5;
        const at::Tensor hidden = in.hidden.detach().clone().requires_grad_();
        const at::Tensor weight = in.weight.detach().clone().requires_grad_();
        const Plain want = plain_policy_loss(hidden, weight, in, temperature);
        curved(want.log_p).backward();

        const TokenLogProbs got = token_log_probs(in.hidden, *in.head, in.ids, temperature, chunk, true);
        EXPECT_EQ(got.log_p.scalar_type(), type);
        EXPECT_FALSE(got.entropy.requires_grad());
        EXPECT_TRUE(at::allclose(got.log_p, want.log_p, close, close));
        EXPECT_TRUE(at::allclose(got.entropy, want.entropy, close, close));
        curved(got.log_p).backward();
        EXPECT_TRUE(at::allclose(in.hidden.grad(), hidden.grad(), 10 * close, close)) << chunk << " " << temperature;
        EXPECT_TRUE(at::allclose(in.weight.grad(), weight.grad(), 10 * close, close)) << chunk << " " << temperature;
      }
    }
  }
}

// In bfloat16 the error is at most twice that of plain ATen in that type, value and gradient.
TEST(TokenLogProbs, InBfloat16) {
  PolicyInputs in(at::kFloat);
  const at::Tensor hidden = in.hidden.detach().to(at::kBFloat16), weight = in.weight.detach().to(at::kBFloat16);
  in.head->set_compute_weight(weight);
  const auto run = [&](at::ScalarType type) {
    const at::Tensor h = hidden.to(type).detach().requires_grad_();
    const at::Tensor logits = (at::linear(h, weight.to(type)) / 0.7).to(type == at::kDouble ? type : at::kFloat);
    const at::Tensor index = in.ids.to(at::kLong).clamp_min(0).unsqueeze(-1);
    const at::Tensor log_p = at::log_softmax(logits, -1).gather(-1, index).squeeze(-1) * in.there();
    curved(log_p).backward();
    return std::pair(log_p.detach().to(at::kDouble), h.grad().to(at::kDouble));
  };
  const auto [want, want_grad] = run(at::kDouble);
  const auto [rounded, rounded_grad] = run(at::kBFloat16);
  const at::Tensor h = hidden.detach().requires_grad_();
  const at::Tensor got = token_log_probs(h, *in.head, in.ids, 0.7, 5).log_p;
  curved(got).backward();
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_EQ(in.weight.grad().scalar_type(), at::kFloat);
  const auto error = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.to(at::kDouble) - b).abs().max().item<double>();
  };
  EXPECT_LE(error(got.detach(), want), 2 * error(rounded, want));
  EXPECT_LE(error(h.grad(), want_grad), 2 * error(rounded_grad, want_grad));
}

// Gradients of one millionth: float16 could not hold those of the logits without their common factor.
TEST(TokenLogProbs, SmallGradientsInFloat16) {
  PolicyInputs in(at::kFloat);
  in.head->set_compute_weight(in.weight.detach().to(at::kHalf));
  const at::Tensor hidden = in.hidden.detach().to(at::kHalf).requires_grad_();
  const auto gradient = [&](double factor) {
    in.weight.mutable_grad() = at::Tensor();
    (token_log_probs(hidden, *in.head, in.ids).log_p.sum() * factor).backward();
    return in.weight.grad() / factor;
  };
  EXPECT_TRUE(at::allclose(gradient(1e-6), gradient(1), 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(gradient(-1e-6), gradient(1), 1e-4, 1e-5));
}

// A frozen head gets no gradient, and nothing is written to a buffer that it has; hidden states get theirs.
TEST(TokenLogProbs, FrozenHead) {
  PolicyInputs in(at::kDouble);
  curved(token_log_probs(in.hidden, *in.head, in.ids).log_p).backward();
  const at::Tensor trained = in.hidden.grad().clone(), once = in.weight.grad().clone();
  in.hidden.mutable_grad() = at::Tensor();
  in.weight.requires_grad_(false);
  curved(token_log_probs(in.hidden, *in.head, in.ids).log_p).backward();
  EXPECT_TRUE(at::equal(in.weight.grad(), once));
  EXPECT_TRUE(at::equal(in.hidden.grad(), trained));
  in.weight.requires_grad_();
  curved(token_log_probs(in.hidden.detach(), *in.head, in.ids).log_p).backward();
  EXPECT_TRUE(at::allclose(in.weight.grad(), 2 * once));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(token_log_probs(in.hidden, *in.head, in.ids).log_p.requires_grad());
}

TEST(TokenLogProbs, NothingToDoAndBadInput) {
  PolicyInputs in(at::kFloat);
  const at::Tensor none = at::full_like(in.ids, data::kIgnoreLabel);
  token_log_probs(in.hidden, *in.head, none).log_p.sum().backward();
  EXPECT_EQ(in.hidden.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(token_log_probs(in.hidden.narrow(0, 0, 0), *in.head, in.ids.narrow(0, 0, 0)).log_p.size(0), 0);
  EXPECT_FALSE(token_log_probs(in.hidden, *in.head, in.ids).entropy.defined());
  EXPECT_THROW(token_log_probs(in.hidden, *in.head, in.ids.narrow(1, 0, 3)), c10::Error);
  EXPECT_THROW(token_log_probs(in.hidden.to(at::kDouble), *in.head, in.ids), c10::Error);
  EXPECT_THROW(token_log_probs(in.hidden, *in.head, in.ids, /*temperature=*/0), c10::Error);
  EXPECT_THROW(token_log_probs(in.hidden, *in.head, in.ids, 1, /*chunk=*/0), c10::Error);
}

// Weights of both signs and a temperature: sum of weights * -log p, as the score function needs it.
TEST(ChunkedCrossEntropy, SignedWeightsAndTemperature) {
  PolicyInputs in(at::kDouble);
  const at::Tensor weights = at::randn({kRows, kPolicyTokens}, at::kDouble);
  const at::Tensor hidden = in.hidden.detach().clone().requires_grad_();
  const at::Tensor weight = in.weight.detach().clone().requires_grad_();
  const at::Tensor want = -(plain_policy_loss(hidden, weight, in, 0.7).log_p * weights).sum();
  want.backward();
  const ChunkedCrossEntropy got = chunked_cross_entropy(in.hidden.view({-1, kPolicyWidth}), *in.head, in.ids.view({-1}),
                                                        weights.view({-1}), 5, /*temperature=*/0.7);
  got.loss.backward();
  EXPECT_NEAR(got.loss.item<double>(), want.item<double>(), 1e-10);
  EXPECT_TRUE(at::allclose(in.hidden.grad(), hidden.grad(), 1e-10, 1e-12));
  EXPECT_TRUE(at::allclose(in.weight.grad(), weight.grad(), 1e-10, 1e-12));
}

TEST(GroupAdvantages, ByHand) {
  const at::Tensor rewards = at::tensor({1.0, 3.0, 0.0, 0.0, 2.0, 4.0}, at::kDouble).view({3, 2});
  const auto values = [&](AdvantageScale scale) { return group_advantages(rewards, {}, scale, /*eps=*/0).values; };
  const double root = std::sqrt(0.5);  // 1 / the standard deviation of two numbers that are 2 apart
  const at::Tensor signs = at::tensor({-1.0, 1.0, 0.0, 0.0, -1.0, 1.0}, at::kDouble).view({3, 2});
  EXPECT_TRUE(at::allclose(values(AdvantageScale::group), signs * root));
  EXPECT_TRUE(at::allclose(values(AdvantageScale::none), signs));
  EXPECT_TRUE(at::allclose(values(AdvantageScale::batch), signs / rewards.std()));
  EXPECT_TRUE(at::allclose(values(AdvantageScale::compat), signs * root));
}

// Equal rewards teach nothing, whatever their mean is rounded to; also where only one answer is there.
TEST(GroupAdvantages, NoVariance) {
  at::Tensor rewards = at::full({4, 3}, 0.1);
  rewards[1][2] = 0.4;
  rewards[3][1] = 7;  // beyond its count
  const at::Tensor counts = at::tensor({3, 3, 0, 1}, at::kInt);
  for (const auto scale :
       {AdvantageScale::group, AdvantageScale::batch, AdvantageScale::none, AdvantageScale::compat}) {
    const GroupAdvantages got = group_advantages(rewards, counts, scale);
    EXPECT_TRUE(at::equal(got.values.ne(0).any(1), at::tensor({0, 1, 0, 0}).to(at::kBool)));
    EXPECT_TRUE(at::equal(got.zero_variance, at::tensor({1, 0, 0, 1}).to(at::kBool)));
    EXPECT_NEAR(got.frac_zero_std.item<double>(), 2.0 / 3, 1e-6);  // of the three groups with answers
    EXPECT_EQ(got.values.scalar_type(), at::kFloat);
  }
}

TEST(GroupAdvantages, CountsLeaveTheRestOut) {
  const at::Tensor rewards = at::randn({3, 5}, at::kDouble), counts = at::tensor({5, 3, 2}, at::kLong);
  const at::Tensor got = group_advantages(rewards, counts, AdvantageScale::group).values;
  for (int64_t g = 0; g < 3; ++g) {
    const int64_t n = counts[g].item<int64_t>();
    const at::Tensor alone = rewards[g].narrow(0, 0, n).unsqueeze(0);
    EXPECT_TRUE(at::allclose(got[g].narrow(0, 0, n), group_advantages(alone, {}, AdvantageScale::group).values[0]));
    EXPECT_EQ(got[g].narrow(0, n, 5 - n).abs().sum().item<double>(), 0);
  }
}

TEST(GroupAdvantages, CompatIsBounded) {
  at::Tensor rewards = at::zeros({1, 400}, at::kDouble);
  rewards[0][0] = 1;  // 20 standard deviations from the mean
  EXPECT_EQ(group_advantages(rewards, {}, AdvantageScale::compat).values.max().item<double>(), 10);
  EXPECT_GT(group_advantages(rewards, {}, AdvantageScale::group).values.max().item<double>(), 19);
  EXPECT_EQ(group_advantages(rewards * 1e-9, {}, AdvantageScale::compat).values.abs().max().item<double>(), 0);
}

struct Batch {
  at::Tensor logp = at::randn({6, 5}, at::kDouble) * 0.3 - 2, old = logp + at::randn({6, 5}, at::kDouble) * 0.3,
             ref = logp + at::randn({6, 5}, at::kDouble) * 0.3, advantages = at::randn({6}, at::kDouble),
             entropy = at::rand({6, 5}, at::kDouble), mask;

  Batch() {
    mask = at::arange(5).unsqueeze(0).lt(at::tensor({5, 3, 1, 4, 2, 5}).unsqueeze(1));
    logp.requires_grad_();
  }
  at::Tensor gradient(const PolicyLoss& loss) {
    logp.mutable_grad() = at::Tensor();
    loss.loss.backward();
    return logp.grad().clone();
  }
};

// Straight after sampling the ratios are 1: the loss is minus the mean advantage, its gradient that of REINFORCE.
TEST(PolicyLoss, FirstUpdate) {
  Batch in;
  const PolicyLoss got = policy_loss(in.logp, {}, {}, in.mask, in.advantages, {});
  const at::Tensor m = in.mask.to(at::kDouble), A = in.advantages.unsqueeze(1);
  EXPECT_NEAR(got.loss.item<double>(), -(A * m).sum().item<double>() / 20, 1e-12);
  EXPECT_TRUE(at::allclose(in.gradient(got), -A * m / 20));
  EXPECT_NEAR(got.ratio_mean.item<double>(), 1, 1e-12);
  EXPECT_EQ(got.ratio_max.item<double>(), 1);
  EXPECT_EQ(got.clip_low.item<double>() + got.clip_high.item<double>() + got.kl.item<double>(), 0);
  EXPECT_FALSE(got.entropy.defined());
}

// One token, the ratio moved by hand: which side is clipped, by which bound, and what delta caps.
TEST(PolicyLoss, Clipping) {
  const auto run = [](double ratio, double advantage, const PolicyOptions& options) {
    const at::Tensor logp = at::full({1, 1}, std::log(ratio), at::kDouble).requires_grad_();
    const PolicyLoss got = policy_loss(logp, at::zeros({1, 1}, at::kDouble), {}, at::ones({1, 1}),
                                       at::full({1}, advantage, at::kDouble), options);
    got.loss.backward();
    return std::tuple(got.loss.item<double>(), logp.grad().item<double>(), got.clip_low.item<double>(),
                      got.clip_high.item<double>());
  };
  const auto expect = [&](double ratio, double advantage, const PolicyOptions& options, double loss, double gradient,
                          double low, double high) {
    const auto [l, g, cl, ch] = run(ratio, advantage, options);
    EXPECT_NEAR(l, loss, 1e-12) << ratio << " " << advantage;
    EXPECT_NEAR(g, gradient, 1e-12) << ratio << " " << advantage;
    EXPECT_EQ(cl, low) << ratio << " " << advantage;
    EXPECT_EQ(ch, high) << ratio << " " << advantage;
  };
  const PolicyOptions plain_policy_loss{.epsilon_low = 0.2, .epsilon_high = 0.28};
  expect(1.25, 2, plain_policy_loss, -2.5, -2.5, 0, 0);  // beyond epsilon_low's number, inside epsilon_high
  expect(1.50, 2, plain_policy_loss, -2.56, 0, 0, 1);    // gained enough
  expect(0.50, -2, plain_policy_loss, 1.6, 0, 1, 0);     // lost enough
  expect(0.50, 2, plain_policy_loss, -1.0, -1.0, 0, 0);  // the pessimistic side stays
  expect(5.00, -2, plain_policy_loss, 10, 10, 0, 0);     // grows without bound ...
  expect(5.00, -2, {.epsilon_low = 0.2, .epsilon_high = 0.28, .delta = 3}, 6, 0, 0, 0);  // ... unless delta caps it
}

TEST(PolicyLoss, SequenceRatio) {
  Batch in;
  const PolicyOptions options{.ratio = RatioLevel::sequence, .epsilon_low = 0.9, .epsilon_high = 10};
  const PolicyLoss got = policy_loss(in.logp, in.old, {}, in.mask, in.advantages, options);
  double want = 0, largest = 0;
  for (int64_t b = 0; b < 6; ++b) {
    const int64_t n = in.mask[b].sum().item<int64_t>();
    const double mean = (in.logp[b] - in.old[b]).narrow(0, 0, n).mean().item<double>();
    want -= std::exp(mean) * in.advantages[b].item<double>() * static_cast<double>(n) / 20;
    largest = std::max(largest, std::exp(mean));
  }
  EXPECT_NEAR(got.loss.item<double>(), want, 1e-12);
  EXPECT_NEAR(got.ratio_max.item<double>(), largest, 1e-12);
}

// k3 is never negative, and its gradient at the reference is 0.
TEST(PolicyLoss, Divergence) {
  Batch in;
  const at::Tensor zero = at::zeros({6}, at::kDouble);
  const PolicyLoss got = policy_loss(in.logp, {}, in.ref, in.mask, zero, {.beta = 0.5});
  const at::Tensor d = in.ref - in.logp.detach();
  const at::Tensor k3 = (d.exp() - d - 1) * in.mask;
  EXPECT_GT(k3.min().item<double>(), -1e-15);
  EXPECT_NEAR(got.kl.item<double>(), k3.sum().item<double>() / 20, 1e-12);
  EXPECT_NEAR(got.loss.item<double>(), 0.5 * got.kl.item<double>(), 1e-12);
  EXPECT_TRUE(at::allclose(in.gradient(got), 0.5 * (1 - d.exp()) * in.mask / 20));
  const PolicyLoss same = policy_loss(in.logp, {}, in.logp.detach(), in.mask, zero, {.beta = 0.5});
  EXPECT_EQ(in.gradient(same).abs().max().item<double>(), 0);
}

// What stands behind an answer's end changes nothing, were it no number.
TEST(PolicyLoss, MaskedTokensDoNotCount) {
  for (const RatioLevel level : {RatioLevel::token, RatioLevel::sequence}) {
    Batch in, other;
    const PolicyOptions options{.ratio = level, .beta = 0.1};
    const PolicyLoss want = policy_loss(in.logp, in.old, in.ref, in.mask, in.advantages, options, {}, in.entropy);
    const auto spoilt = [&](const at::Tensor& t, double by) {
      return t.detach().masked_fill(in.mask.logical_not(), by);
    };
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    other.logp = spoilt(in.logp, 800).requires_grad_();
    const PolicyLoss got = policy_loss(other.logp, spoilt(in.old, -kInfinity), spoilt(in.ref, NAN), in.mask,
                                       in.advantages, options, {}, spoilt(in.entropy, NAN));
    EXPECT_EQ(got.loss.item<double>(), want.loss.item<double>());
    EXPECT_EQ(got.entropy.item<double>(), want.entropy.item<double>());
    EXPECT_EQ(got.ratio_max.item<double>(), want.ratio_max.item<double>());
    EXPECT_TRUE(at::equal(other.gradient(got), in.gradient(want)));
  }
}

// Two micro-batches of unequal size sum to one batch: losses, gradients and metrics.
TEST(PolicyLoss, MicroBatches) {
  for (const auto aggregation : {PolicyAggregation::dapo, PolicyAggregation::grpo, PolicyAggregation::dr_grpo}) {
    Batch in;
    const PolicyOptions options{.aggregation = aggregation, .beta = 0.1, .max_tokens = 9};
    const PolicyWindow window{.tokens = in.mask.sum().to(at::kFloat), .rows = at::full({}, 6.0)};
    const auto run = [&](int64_t first, int64_t rows, const PolicyWindow& of) {
      const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, rows); };
      return policy_loss(part(in.logp), part(in.old), part(in.ref), part(in.mask), part(in.advantages), options, of,
                         part(in.entropy));
    };
    const PolicyLoss whole = run(0, 6, {});
    const at::Tensor want = in.gradient(whole);
    const PolicyLoss a = run(0, 4, window), b = run(4, 2, window);
    in.logp.mutable_grad() = at::Tensor();
    a.loss.backward();
    b.loss.backward();
    EXPECT_TRUE(at::allclose(in.logp.grad(), want, 1e-12, 1e-14));
    const auto sums = [&](at::Tensor PolicyLoss::*member) {
      EXPECT_NEAR((a.*member).item<double>() + (b.*member).item<double>(), (whole.*member).item<double>(), 1e-12);
    };
    sums(&PolicyLoss::loss);
    sums(&PolicyLoss::clip_low);
    sums(&PolicyLoss::clip_high);
    sums(&PolicyLoss::kl);
    sums(&PolicyLoss::ratio_mean);
    sums(&PolicyLoss::entropy);
    EXPECT_GT(whole.clip_low.item<double>() + whole.clip_high.item<double>(), 0);
  }
}

// bnpo divides by its own tokens: micro-batches with the same number of tokens sum to one.
TEST(PolicyLoss, MicroBatchesOfBnpo) {
  Batch in;
  in.mask = at::ones({6, 5}, at::kBool);
  const PolicyOptions options{.aggregation = PolicyAggregation::bnpo};
  const PolicyWindow window{.tokens = at::full({}, 30.0), .rows = at::full({}, 6.0)};
  double sum = 0;
  for (const int64_t first : {0, 3}) {
    const auto part = [&](const at::Tensor& t) { return t.narrow(0, first, 3); };
    sum += policy_loss(part(in.logp), part(in.old), {}, part(in.mask), part(in.advantages), options, window)
               .loss.item<double>();
  }
  const double whole = policy_loss(in.logp, in.old, {}, in.mask, in.advantages, options).loss.item<double>();
  EXPECT_NEAR(sum, whole, 1e-12);
}

// An answer of no tokens (all cut off, or padding of a batch) is a number, too.
TEST(PolicyLoss, NothingToLearnFrom) {
  for (const auto aggregation :
       {PolicyAggregation::dapo, PolicyAggregation::grpo, PolicyAggregation::dr_grpo, PolicyAggregation::bnpo}) {
    Batch in;
    const PolicyOptions options{.aggregation = aggregation, .ratio = RatioLevel::sequence, .max_tokens = 5};
    const PolicyLoss got = policy_loss(in.logp, in.old, {}, at::zeros({6, 5}), in.advantages, options);
    EXPECT_EQ(got.loss.item<double>(), 0);
    EXPECT_EQ(in.gradient(got).abs().max().item<double>(), 0);
  }
}

TEST(PolicyLoss, BadInputIsNamed) {
  using test::expect_error;
  Batch in;
  const auto run = [&](const PolicyOptions& options) {
    return [&in, options] { policy_loss(in.logp, in.old, {}, in.mask, in.advantages, options); };
  };
  expect_error(ExitCode::usage, {"beta is 0.1", "reference policy"}, run({.beta = 0.1}));
  expect_error(ExitCode::usage, {"dr_grpo", "max_tokens"}, run({.aggregation = PolicyAggregation::dr_grpo}));
  expect_error(ExitCode::usage, {"delta", "1.2", "not 1.1"}, run({.delta = 1.1}));
  expect_error(ExitCode::usage, {"epsilon_low", "-1"}, run({.epsilon_low = -1}));
  EXPECT_THROW(policy_loss(in.logp, in.old, {}, in.mask.narrow(1, 0, 2), in.advantages, {}), c10::Error);
  EXPECT_THROW(policy_loss(in.logp, in.old, {}, in.mask, in.advantages.unsqueeze(1), {}), c10::Error);
  EXPECT_THROW(group_advantages(in.advantages, {}, AdvantageScale::none), c10::Error);
  EXPECT_THROW(group_advantages(in.logp, at::ones({2}), AdvantageScale::none), c10::Error);
}

}  // namespace
}  // namespace hrm::objectives
