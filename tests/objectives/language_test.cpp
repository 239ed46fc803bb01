// Chunked cross-entropy against the plain one, and the terms of the language loss.

#include "hrm/objectives/language.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "hrm/data/batch.h"
#include "hrm/models/decoder_lm.h"
#include "hrm/objectives/chunked_cross_entropy.h"
#include "hrm/runtime/work_counts.h"

namespace hrm::objectives {
namespace {

constexpr int64_t kTokens = 23, kWidth = 8, kVocabulary = 37;

struct LanguageInputs {
  std::shared_ptr<nn::LmHead> head = std::make_shared<nn::LmHead>(kWidth, kVocabulary, at::kCPU);
  at::Tensor hidden = at::randn({kTokens, kWidth}).requires_grad_();
  at::Tensor labels = at::randint(0, kVocabulary, {kTokens}, at::kInt);
  at::Tensor weights = at::rand({kTokens});

  LanguageInputs() {
    const at::NoGradGuard no_grad;
    head->weight().copy_(at::randn({kVocabulary, kWidth}));
    for (const int64_t ignored : {0, 7, 8, 22}) labels[ignored] = data::kIgnoreLabel;
    weights[3] = 0;
  }
};

at::Tensor plain_losses(const at::Tensor& hidden, const at::Tensor& weight, const LanguageInputs& in) {
  const at::Tensor log_p = at::log_softmax(at::linear(hidden, weight), -1);
  const at::Tensor index = in.labels.to(at::kLong).clamp_min(0).unsqueeze(-1);
  return -log_p.gather(-1, index).squeeze(-1) * in.labels.ge(0);
}

TEST(ChunkedCrossEntropy, IsThePlainOne) {
  for (const int64_t chunk : {1, 5, 23, 100}) {
    LanguageInputs in;
    const at::Tensor hidden = in.hidden.detach().to(at::kDouble).requires_grad_();
    const at::Tensor weight = in.head->weight().detach().to(at::kDouble).requires_grad_();
    const at::Tensor each = plain_losses(hidden, weight, in), want = (each * in.weights).sum();
    (want * 3).backward();

    const ChunkedCrossEntropy got = chunked_cross_entropy(in.hidden, *in.head, in.labels, in.weights, chunk);
    EXPECT_FALSE(got.per_token.requires_grad());
    EXPECT_TRUE(at::allclose(got.per_token.to(at::kDouble), each, 1e-5, 1e-6)) << chunk;
    EXPECT_NEAR(got.loss.item<double>(), want.item<double>(), 1e-4) << chunk;
    (got.loss * 3).backward();
    EXPECT_TRUE(at::allclose(in.hidden.grad().to(at::kDouble), hidden.grad(), 1e-4, 1e-6)) << chunk;
    EXPECT_TRUE(at::allclose(in.head->weight().grad().to(at::kDouble), weight.grad(), 1e-4, 1e-6)) << chunk;
  }
}

// A second use adds to the gradient of the head; what is frozen gets none.
TEST(ChunkedCrossEntropy, GradientsGoWhereTheyAreNeeded) {
  LanguageInputs in;
  const auto run = [&](const at::Tensor& hidden) {
    chunked_cross_entropy(hidden, *in.head, in.labels, in.weights, 4).loss.backward();
  };
  run(in.hidden.detach());
  const at::Tensor once = in.head->weight().grad().clone();
  EXPECT_GT(once.abs().max().item<double>(), 0);
  run(in.hidden.detach());
  EXPECT_TRUE(at::allclose(in.head->weight().grad(), 2 * once));
  in.head->weight().requires_grad_(false);
  run(in.hidden);
  EXPECT_TRUE(at::allclose(in.head->weight().grad(), 2 * once));
  EXPECT_GT(in.hidden.grad().abs().max().item<double>(), 0);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(chunked_cross_entropy(in.hidden, *in.head, in.labels, in.weights).loss.requires_grad());
}

// The gradient of the head, as large as its weight, is gone when the backward pass goes on to the blocks.
TEST(ChunkedCrossEntropy, KeepsNothingBehindItsBackwardPass) {
  const auto head = std::make_shared<nn::LmHead>(/*width=*/64, /*vocabulary=*/4096, at::kCPU);
  head->weight().data().zero_();
  head->weight().mutable_grad() = at::zeros_like(head->weight());
  const at::Tensor hidden = at::randn({8, 64}).requires_grad_(), labels = at::zeros({8}, at::kInt);
  const WorkCounter counter(at::kCPU);
  const ChunkedCrossEntropy got = chunked_cross_entropy(hidden, *head, labels, at::ones({8}), 4);
  got.loss.backward({}, /*retain_graph=*/true);
  const at::Tensor next = at::zeros_like(head->weight());
  EXPECT_LT(counter.counts().peak_bytes, static_cast<int64_t>(1.5 * static_cast<double>(next.nbytes())));
  EXPECT_THROW(got.loss.backward(), c10::Error) << "what it needs is gone";
}

// Weights of one millionth: float16 could not hold the gradients of the logits without their common factor.
TEST(ChunkedCrossEntropy, SmallWeightsInFloat16) {
  LanguageInputs in;
  in.head->set_compute_weight(in.head->weight().detach().to(at::kHalf));
  const at::Tensor hidden = in.hidden.detach().to(at::kHalf).requires_grad_();
  chunked_cross_entropy(hidden, *in.head, in.labels, in.weights * 1e-6, 5).loss.backward();
  const at::Tensor got = in.head->weight().grad().clone() * 1e6;
  in.head->weight().grad().zero_();
  chunked_cross_entropy(hidden, *in.head, in.labels, in.weights, 5).loss.backward();
  EXPECT_TRUE(at::allclose(got, in.head->weight().grad(), 1e-4, 1e-5));
}

TEST(ChunkedCrossEntropy, NothingLabelled) {
  LanguageInputs in;
  in.labels.fill_(data::kIgnoreLabel);
  const ChunkedCrossEntropy got = chunked_cross_entropy(in.hidden, *in.head, in.labels, at::zeros({kTokens}));
  got.loss.backward();
  EXPECT_EQ(got.loss.item<double>(), 0);
  EXPECT_EQ(in.hidden.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(in.head->weight().grad().abs().max().item<double>(), 0);
}

TEST(ChunkedCrossEntropy, BadInputIsNamed) {
  LanguageInputs in;
  EXPECT_THROW(chunked_cross_entropy(in.hidden, *in.head, in.labels, in.weights, 0), c10::Error);
  EXPECT_THROW(chunked_cross_entropy(in.hidden.to(at::kDouble), *in.head, in.labels, in.weights), c10::Error);
  EXPECT_THROW(chunked_cross_entropy(in.hidden, *in.head, in.labels.narrow(0, 0, 5), in.weights), c10::Error);
}

std::shared_ptr<models::DecoderLm> small_decoder() {
  const auto model = std::make_shared<models::DecoderLm>(
      models::DecoderOptions{.vocabulary = 19, .width = 8, .layers = 1, .heads = 2, .inner = 16, .positions = 16},
      at::kCPU);
  model->initialise(/*seed=*/1, at::kFloat);
  return model;
}

// The loss of a batch is the sum over its halves, when both divide by the tokens of all.
TEST(LanguageLoss, MicroBatches) {
  const auto model = small_decoder();
  const at::Tensor ids = at::randint(0, 19, {4, 6}, at::kInt);
  at::Tensor labels = at::randint(0, 19, {4, 6}, at::kInt);
  labels[0].fill_(data::kIgnoreLabel);
  const auto output = [&](int64_t first, int64_t rows) {
    models::LanguageOutput out = model->forward({.ids = ids.narrow(0, first, rows)});
    out.gate = at::full({rows, 1}, 0.5);
    out.halt = at::full({2, rows}, 0.75);
    out.auxiliary = {{"balance", at::full({}, 2.0), 0.1}};
    return out;
  };
  const LanguageLossOptions options{.halting = 0.3, .halting_target = 1};
  const LanguageLoss whole = language_loss(*model, output(0, 4), labels, options);
  EXPECT_EQ(whole.labelled.item<double>(), 18);
  EXPECT_NEAR(whole.halting.item<double>(), 0.5 * 0.25, 1e-6);
  EXPECT_NEAR(whole.auxiliary.item<double>(), 0.2, 1e-6);
  EXPECT_NEAR(whole.loss.item<double>(), whole.cross_entropy.item<double>() + 0.3 * 0.125 + 0.2, 1e-5);
  double sum = 0;
  for (const int64_t first : {0, 2}) {
    sum += language_loss(*model, output(first, 2), labels.narrow(0, first, 2), options, whole.labelled, 0.5)
               .loss.item<double>();
  }
  EXPECT_NEAR(sum, whole.loss.item<double>(), 1e-5);
}

}  // namespace
}  // namespace hrm::objectives
