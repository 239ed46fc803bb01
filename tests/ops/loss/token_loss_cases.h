#pragma once
// Checks of the token loss that hold on every device.

#include "hrm/ops/token_loss.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct TokenCase {
  at::Tensor logits;  // (B, L, V)
  at::Tensor labels;  // (B, S) int32
  int64_t first;
  LossKind kind;
  LossPrecision precision;
};

inline std::string name_of(const TokenCase& c) {
  return cat(c.kind == LossKind::stablemax ? "stablemax " : "softmax ",
             c.precision == LossPrecision::f64 ? "f64 " : "f32 ", c.logits.scalar_type(), " logits ", c.logits.sizes(),
             " from ", c.first);
}

// Some tokens have no label; the last sample has none at all. Half the labels are what the logits say.
inline TokenCase make_tokens(int64_t samples, int64_t tokens, int64_t first, int64_t behind, int64_t vocab,
                             at::ScalarType dtype, LossKind kind, LossPrecision precision, at::Device device) {
  auto generator = at::detail::createCPUGenerator(7);
  const at::Tensor logits = 3 * normal({samples, first + tokens + behind, vocab}, 1, at::kFloat);
  const at::Tensor said = logits.to(dtype).narrow(1, first, tokens).argmax(-1);
  const at::Tensor drawn = at::randint(0, vocab, {samples, tokens}, generator, at::kLong);
  at::Tensor labels = at::where(at::rand({samples, tokens}, generator, at::kFloat).lt(0.5), said, drawn).to(at::kInt);
  labels.masked_fill_(at::rand({samples, tokens}, generator, at::kFloat).lt(0.2), kIgnoredToken);
  if (samples > 1) labels[samples - 1].fill_(kIgnoredToken);
  return {logits.to(device, dtype), labels.to(device), first, kind, precision};
}

struct TokenResult {
  TokenLoss out;
  at::Tensor grad;
};

// The formula in plain ATen operations of one type, differentiated by ATen itself.
inline at::Tensor plain_token_loss(const TokenCase& c, const at::Tensor& logits, at::ScalarType type) {
  const at::Tensor x = logits.narrow(1, c.first, c.labels.size(1)).to(type);
  // Clamped, since the branch not taken would differentiate to 0 times infinity at x = 1.
  const at::Tensor s = at::where(x.ge(0), x + 1, 1 / (1 - x.clamp_max(0) + 1e-30));
  const at::Tensor log_p =
      c.kind == LossKind::stablemax ? at::log(s / s.sum(-1, /*keepdim=*/true)) : at::log_softmax(x, -1);
  const at::Tensor ignored = c.labels.eq(kIgnoredToken);
  const at::Tensor index = c.labels.to(at::kLong).masked_fill(ignored, 0).unsqueeze(-1);
  const at::Tensor each = -log_p.gather(-1, index).squeeze(-1).masked_fill(ignored, 0);
  return each.sum(1) / ignored.logical_not().sum(1).clamp_min(1);
}

inline at::Tensor weights_for(const TokenCase& c, at::ScalarType type) {
  return normal({c.logits.size(0)}, 5, at::kFloat, c.logits.device()).to(type);
}

inline TokenResult run_tokens(const TokenCase& c, const at::Tensor& weights) {
  const at::Tensor leaf = c.logits.detach().requires_grad_();
  const TokenLoss out = token_loss(leaf, c.labels, c.first, c.kind, c.precision);
  EXPECT_FALSE(out.right.requires_grad() || out.labelled.requires_grad());
  const at::Tensor grad = torch::autograd::grad({out.loss}, {leaf}, {weights})[0];
  return {{out.loss.detach(), out.labelled, out.right}, grad};
}

inline TokenResult run_tokens(const TokenCase& c) {
  const bool wide = c.kind == LossKind::stablemax && c.precision == LossPrecision::f64;
  return run_tokens(c, weights_for(c, wide ? at::kDouble : at::kFloat));
}

inline void expect_good_tokens(const TokenCase& c) {
  const std::string what = name_of(c);
  const bool wide = c.kind == LossKind::stablemax && c.precision == LossPrecision::f64;
  const at::ScalarType type = wide ? at::kDouble : at::kFloat;
  const TokenResult ours = run_tokens(c);
  const auto plain = [&](at::ScalarType dtype, at::ScalarType arithmetic) {
    const at::Tensor leaf = c.logits.to(dtype).detach().clone().requires_grad_();
    const at::Tensor loss = plain_token_loss(c, leaf, arithmetic);
    return std::pair(loss.detach(), torch::autograd::grad({loss}, {leaf}, {weights_for(c, arithmetic)})[0]);
  };
  const auto [exact_loss, exact_grad] = plain(at::kDouble, at::kDouble);
  const auto [plain_loss, plain_grad] = plain(c.logits.scalar_type(), type);
  ASSERT_EQ(ours.out.loss.scalar_type(), type) << what;
  if (wide) {
    EXPECT_TRUE(at::allclose(ours.out.loss, exact_loss, /*rtol=*/1e-13, /*atol=*/0)) << what;
  } else {
    expect_as_good(ours.out.loss, plain_loss, exact_loss, what + ", loss", exact_loss.max().item<double>());
  }
  expect_as_good(ours.grad, plain_grad, exact_grad, what + ", gradient", exact_grad.abs().max().item<double>());
  EXPECT_EQ(ours.grad.sizes(), c.logits.sizes()) << what;
  EXPECT_EQ(ours.grad.narrow(1, 0, c.first).abs().sum().item<double>(), 0) << what << ", positions before the tokens";

  const at::Tensor labelled = c.labels.ne(kIgnoredToken);
  const at::Tensor right =
      c.logits.narrow(1, c.first, c.labels.size(1)).argmax(-1).eq(c.labels).logical_and(labelled).sum(1);
  expect_same_bits(ours.out.labelled, labelled.sum(1).to(at::kInt), what + ", labelled");
  expect_same_bits(ours.out.right, right.to(at::kInt), what + ", right");

  const at::NoGradGuard no_grad;
  expect_same_bits(token_loss(c.logits, c.labels, c.first, c.kind, c.precision).loss, ours.out.loss,
                   what + ", without gradient");
}

struct LossMode {
  LossKind kind;
  LossPrecision precision;
};
inline std::vector<LossMode> loss_modes() {
  return {{LossKind::stablemax, LossPrecision::f64},
          {LossKind::stablemax, LossPrecision::f32},
          {LossKind::softmax, LossPrecision::f32}};
}

// Numbers of tokens and logits on both sides of every choice that the kernel makes.
inline void expect_good_sizes(at::ScalarType dtype, at::Device device) {
  for (const auto& [kind, precision] : loss_modes()) {
    for (const int64_t vocab : {2, 11, 64, 65, 300}) {
      expect_good_tokens(make_tokens(4, 81, 1, 0, vocab, dtype, kind, precision, device));
    }
    expect_good_tokens(make_tokens(3, 1, 0, 0, 11, dtype, kind, precision, device));
    expect_good_tokens(make_tokens(3, 300, 16, 2, 11, dtype, kind, precision, device));
  }
}

// Equal largest logits: the first counts, as for at::argmax; NaN is larger than all numbers.
inline void expect_first_of_equals(at::Device device) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t vocab : {4, 70}) {  // both kernels
    at::Tensor logits = at::full({6, 1, vocab}, -1.0F);
    logits[0][0][1] = logits[0][0][3] = 2;
    logits[1][0][0] = logits[1][0][2] = 2;
    logits[2].fill_(0);
    logits[3][0][1] = kNan;
    logits[4][0][1] = logits[4][0][2] = kNan;
    logits[5].fill_(-std::numeric_limits<float>::infinity());
    logits = logits.to(device, at::kBFloat16);
    const at::Tensor want = logits.argmax(-1).to(at::kInt);
    for (int64_t label = 0; label < 4; ++label) {
      const at::Tensor labels = at::full({6, 1}, label, want.options());
      const TokenLoss out = token_loss(logits, labels, 0, LossKind::stablemax, LossPrecision::f64);
      expect_same_bits(out.right, want.eq(labels).squeeze(1).to(at::kInt), cat("label ", label, " of ", vocab));
    }
  }
}

// Logits in rows of 16, of which 11 count; tokens side by side; and an expanded gradient of the loss.
inline void expect_good_strides(at::Device device) {
  for (const auto& [kind, precision] : loss_modes()) {
    TokenCase c = make_tokens(4, 9, 1, 0, 11, at::kBFloat16, kind, precision, device);
    const TokenResult want = run_tokens(c);
    at::Tensor padded = at::full({4, 10, 16}, 9.0, c.logits.options());
    padded.narrow(2, 0, 11).copy_(c.logits);
    TokenCase strided = c;
    strided.logits = padded.narrow(2, 0, 11);
    strided.labels = c.labels.t().contiguous().t();
    ASSERT_FALSE(strided.logits.is_contiguous() || strided.labels.is_contiguous());
    const TokenResult got = run_tokens(strided);
    expect_same_bits(got.out.loss, want.out.loss, name_of(c));
    expect_same_bits(got.grad, want.grad, name_of(c));
    strided.logits = c.logits.transpose(1, 2).contiguous().transpose(1, 2);
    expect_same_bits(run_tokens(strided).grad, want.grad, name_of(c) + ", transposed");

    const at::Tensor leaf = c.logits.detach().requires_grad_();
    const at::Tensor loss = token_loss(leaf, c.labels, c.first, kind, precision).loss;
    const at::Tensor by_sum = torch::autograd::grad({loss.sum()}, {leaf}, {}, /*retain_graph=*/true)[0];
    const at::Tensor by_ones = torch::autograd::grad({loss}, {leaf}, {at::ones_like(loss)})[0];
    expect_same_bits(by_sum, by_ones);
  }
}

}  // namespace hrm::ops::testing
