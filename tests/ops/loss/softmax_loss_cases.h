#pragma once
// Checks of the large vocabulary's cross-entropy that hold on every device.

#include "hrm/ops/softmax_loss.h"
#include "hrm/ops/token_loss.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct SoftmaxLossResult {
  at::Tensor loss, grad;
};

// Plain ATen, differentiated by ATen itself, in the type of logits or float32.
inline SoftmaxLossResult plain_softmax_loss(const at::Tensor& logits, const at::Tensor& labels,
                                            const at::Tensor& weights) {
  const at::Tensor leaf = logits.detach().requires_grad_();
  const at::ScalarType type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor log_p = at::log_softmax(leaf, -1, type), known = labels.ne(kIgnoredToken);
  const at::Tensor index = labels.to(at::kLong).clamp_min(0).unsqueeze(-1);
  const at::Tensor loss = at::where(known, -log_p.gather(-1, index).squeeze(-1), at::zeros({}, log_p.options()));
  return {loss.detach(), torch::autograd::grad({(loss * weights).sum()}, {leaf})[0]};
}

inline void expect_good_softmax_loss(at::ScalarType dtype, int64_t vocab, int64_t pitch, at::ScalarType label_type,
                                     at::Device device, const std::string& what) {
  constexpr int64_t kRows = 9;
  const at::Tensor buffer = at::full({kRows, pitch}, 77, at::device(device).dtype(dtype));
  const at::Tensor logits = buffer.narrow(1, 0, vocab);
  logits.copy_(4 * normal({kRows, vocab}, 1, at::kFloat));
  at::Tensor labels = at::arange(kRows, at::kLong).mul(vocab / 4 + 1).remainder(vocab).to(device, label_type);
  labels[2] = vocab - 1;
  labels[3] = kIgnoredToken;
  labels[8] = kIgnoredToken;
  const at::Tensor weights = normal({kRows}, 2, at::kFloat, device).abs(), before = logits.clone();
  weights[5] = 0;
  const SoftmaxLossResult plain = plain_softmax_loss(before, labels, weights),
                          exact = plain_softmax_loss(before.to(at::kDouble), labels, weights.to(at::kDouble));
  const at::Tensor alone = softmax_loss_(logits, labels, {});
  expect_same_bits(logits, before, what + ", without weights");
  const at::Tensor loss = softmax_loss_(logits, labels, weights);
  expect_same_bits(alone, loss, what + ", with and without weights");
  const double size = before.abs().max().item<double>() * 2;
  expect_as_good(loss, plain.loss, exact.loss, what + ", loss", size);
  expect_as_good(logits.contiguous(), plain.grad, exact.grad, what + ", gradient", size * weights.max().item<double>());
  EXPECT_EQ(logits[3].abs().max().item<double>(), 0) << what;
  if (pitch > vocab) {
    EXPECT_TRUE(buffer.narrow(1, vocab, pitch - vocab).eq(77).all().item<bool>())
        << what << ": written beside the rows";
  }
}

// A vocabulary in parts, the last of which is shorter, gives the loss, the gradient and the entropy of the whole.
inline void expect_good_softmax_loss_of_parts(at::ScalarType dtype, int64_t vocab, int64_t parts, int64_t gap,
                                              at::ScalarType label_type, at::Device device, const std::string& what) {
  constexpr int64_t kRows = 9;
  const int64_t width = (vocab + parts - 1) / parts;
  const at::Tensor whole = (4 * normal({kRows, vocab}, 1, at::kFloat, device)).to(dtype);
  at::Tensor labels = at::arange(kRows, at::kLong).mul(vocab / 4 + 1).remainder(vocab).to(device, label_type);
  labels[2] = vocab - 1;
  labels[3] = kIgnoredToken;
  labels[4] = width - 1;
  labels[5] = std::min(width, vocab - 1);
  const at::Tensor weights = normal({kRows}, 2, at::kFloat, device).abs();
  const SoftmaxLossResult plain = plain_softmax_loss(whole, labels, weights),
                          exact = plain_softmax_loss(whole.to(at::kDouble), labels, weights.to(at::kDouble));
  struct Part {
    int64_t first;
    at::Tensor buffer, logits;
  };
  std::vector<Part> cut;
  std::vector<at::Tensor> facts, facts_with_mean;
  for (int64_t first = 0; first < vocab; first += width) {
    const int64_t count = std::min(width, vocab - first);
    const at::Tensor buffer = at::full({kRows, count + gap}, 77, whole.options()), logits = buffer.narrow(1, 0, count);
    logits.copy_(whole.narrow(1, first, count));
    cut.push_back({first, buffer, logits});
    facts.push_back(softmax_loss_facts(logits, labels, first));
    facts_with_mean.push_back(softmax_loss_facts(logits, labels, first, /*with_mean=*/true));
    expect_same_bits(facts_with_mean.back().narrow(1, 0, 3), facts.back(), what + ", facts with the mean");
  }
  const at::Tensor all = at::stack(facts);
  std::vector<at::Tensor> gradients;
  at::Tensor loss;
  for (const Part& part : cut) {
    const at::Tensor before = part.logits.clone();
    const at::Tensor alone = softmax_loss_part_(part.logits, labels, part.first, all, {});
    expect_same_bits(part.logits, before, what + ", without weights");
    const at::Tensor own = softmax_loss_part_(part.logits, labels, part.first, all, weights);
    expect_same_bits(alone, own, what + ", with and without weights");
    if (loss.defined()) expect_same_bits(own, loss, what + ", loss of two parts");
    loss = own;
    gradients.push_back(part.logits);
    if (gap > 0) {
      EXPECT_TRUE(part.buffer.narrow(1, part.logits.size(1), gap).eq(77).all().item<bool>())
          << what << ": written beside the rows";
    }
  }
  const double size = whole.abs().max().item<double>() * 2;
  expect_as_good(loss, plain.loss, exact.loss, what + ", loss", size);
  const at::Tensor gradient = at::cat(gradients, 1);
  expect_as_good(gradient, plain.grad, exact.grad, what + ", gradient", size * weights.max().item<double>());
  EXPECT_EQ(gradient[3].abs().max().item<double>(), 0) << what;
  const at::Tensor log_p = at::log_softmax(whole.to(at::kDouble), -1), entropy = log_p.exp().mul(log_p).sum(-1).neg();
  const at::Tensor got = softmax_entropy(at::stack(facts_with_mean));
  EXPECT_LT((got - entropy).abs().max().item<double>(), 1e-4) << what << ", entropy";
}

}  // namespace hrm::ops::testing
