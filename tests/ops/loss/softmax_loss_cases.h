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

}  // namespace hrm::ops::testing
