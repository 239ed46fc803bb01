// Language models beside what the reference cases show: decoding from a cache, packed rows, recomputation, freezing,
// and which cycles are differentiated.

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <atomic>

#include "hrm/base/error.h"
#include "hrm/models/decoder_lm.h"
#include "hrm/models/hrm_lm.h"
#include "hrm/ops/attention.h"

namespace hrm::models {
namespace {

constexpr int64_t kVocabulary = 31;

DecoderOptions small_decoder() {
  return {.vocabulary = kVocabulary,
          .width = 16,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .inner = 24,
          .positions = 32,
          .qk_norm = true};
}

std::shared_ptr<LanguageModel> decoder_lm(const DecoderOptions& options, at::ScalarType dtype = at::kFloat) {
  const auto model = std::make_shared<DecoderLm>(options, at::kCPU);
  model->initialise(/*seed=*/1, dtype);
  return model;
}

ModernLmOptions small_hrm(Bridge bridge, EncoderKind encoder) {
  ModernLmOptions o;
  o.lm.core = {.width = 16, .h_len = 2, .l_len = 3, .h_cycles = 3, .l_steps = 2};
  o.lm.bridge = bridge;
  o.lm.prefix_len = 3;
  o.decoder = small_decoder();
  o.encoder = encoder;
  o.mamba2 = {.head_dim = 8, .state = 4, .groups = 2, .chunk = 4};
  o.enc_layers = o.h_layers = o.l_layers = 1;
  o.max_prompt = 16;
  return o;
}

std::shared_ptr<LanguageModel> hrm_lm(const ModernLmOptions& options, const std::vector<std::string>& freeze = {}) {
  const auto model = make_modern_lm(options, at::kCPU);
  model->initialise(/*seed=*/1, at::kFloat, freeze);
  return model;
}

at::Tensor tokens(at::IntArrayRef sizes) {
  return at::randint(0, kVocabulary, sizes, at::kInt);
}

LanguageInputs hrm_inputs(int64_t rows, int64_t length) {
  const at::Tensor mask = at::ones({rows, 5}, at::kInt);
  mask[0].narrow(0, 3, 2).zero_();
  return {.ids = tokens({rows, length}), .prompt_ids = tokens({rows, 5}), .prompt_mask = mask};
}

struct Pass {
  at::Tensor hidden, gradients;
};

Pass train_pass(LanguageModel& model, const LanguageInputs& inputs) {
  model.parameter_set().zero_grad();
  const LanguageOutput output = model.forward(inputs);
  model.logits(output.hidden).square().mean().backward();
  return {output.hidden.detach(), model.parameter_set().flat_grad().clone()};
}

// Prefill with rows of different lengths, then single steps: the values of one pass over each whole row.
void expect_decoding_is_exact(LanguageModel& model, LanguageInputs inputs, const std::string& what) {
  const at::NoGradGuard no_grad;
  const at::Tensor ids = inputs.ids, lengths = at::tensor({4, 6, 1}, at::kLong);
  const int64_t steps = 5;
  const at::Tensor whole = model.forward(inputs).hidden;
  DecodeCache cache = model.make_cache(3, ids.size(1));
  inputs.ids = ids.narrow(1, 0, 6).clone();
  inputs.ids[0].narrow(0, 4, 2).zero_();  // padding
  inputs.ids[2].narrow(0, 1, 5).zero_();
  const at::Tensor first = model.prefill(inputs, lengths, cache);
  for (int64_t b = 0; b < 3; ++b) {
    const int64_t length = lengths[b].item<int64_t>();
    EXPECT_TRUE(at::allclose(first[b].narrow(0, 0, length), whole[b].narrow(0, 0, length), 1e-5, 1e-5))
        << what << " prefill, row " << b;
  }
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<at::Tensor> next, want;
    for (int64_t b = 0; b < 3; ++b) {
      next.push_back(ids[b][lengths[b].item<int64_t>() + step]);
      want.push_back(whole[b][lengths[b].item<int64_t>() + step]);
    }
    const at::Tensor got = model.step(at::stack(next), cache);
    EXPECT_TRUE(at::allclose(got, at::stack(want), 1e-5, 1e-5)) << what << " step " << step;
    EXPECT_TRUE(at::equal(model.logits(got).argmax(-1), model.logits(at::stack(want)).argmax(-1))) << what;
  }
}

TEST(Decoding, IsOnePassOverTheRow) {
  DecoderOptions options = small_decoder();
  expect_decoding_is_exact(*decoder_lm(options), {.ids = tokens({3, 11})}, "plain");
  options.tied = false;
  for (const int64_t window : {1, 3, 5, 11, 40}) {
    options.window = window;
    const auto model = decoder_lm(options);
    expect_decoding_is_exact(*model, {.ids = tokens({3, 11})}, cat("window ", window));
    const DecodeCache cache = model->make_cache(2, 11);
    EXPECT_EQ(cache.layers.front().keys.size(2), std::min<int64_t>(window, 11)) << "no more places than it needs";
    EXPECT_EQ(cache.capacity, 11);
  }
  for (const Bridge bridge : {Bridge::prefix, Bridge::cross_attention}) {
    for (const EncoderKind encoder : {EncoderKind::transformer, EncoderKind::mamba2}) {
      expect_decoding_is_exact(*hrm_lm(small_hrm(bridge, encoder)), hrm_inputs(3, 11),
                               bridge == Bridge::prefix ? "prefix" : "cross-attention");
    }
  }
}

TEST(Decoding, NoCacheNoDecoding) {
  PrototypeOptions o;
  o.lm.core = {.width = 16, .h_len = 2, .l_len = 3, .h_cycles = 1, .l_steps = 1};
  o.vocabulary = kVocabulary;
  const auto model = make_prototype_lm(o, at::kCPU);
  model->initialise(0, at::kFloat);
  try {
    model->make_cache(1, 8);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
  }
  EXPECT_THROW(decoder_lm(small_decoder())->make_cache(1, 33), Error) << "more than the positions";
}

// A token must not see what comes later, and the answer must see the prompt.
TEST(HrmLm, WhatSeesWhat) {
  for (const Bridge bridge : {Bridge::prefix, Bridge::cross_attention}) {
    for (const EncoderKind encoder : {EncoderKind::transformer, EncoderKind::mamba2}) {
      const at::NoGradGuard no_grad;
      const auto model = hrm_lm(small_hrm(bridge, encoder));
      const LanguageInputs inputs = hrm_inputs(3, 8);
      const at::Tensor before = model->forward(inputs).hidden;
      LanguageInputs later = inputs;
      later.ids = inputs.ids.clone();
      later.ids.select(1, 6).add_(1).remainder_(kVocabulary);
      const at::Tensor after = model->forward(later).hidden;
      EXPECT_TRUE(at::equal(before.narrow(1, 0, 6), after.narrow(1, 0, 6)));
      EXPECT_FALSE(at::allclose(before.narrow(1, 6, 2), after.narrow(1, 6, 2)));
      // Row 0 of the prompt ends in two tokens of padding, whatever stands there.
      LanguageInputs other = inputs;
      other.prompt_ids = inputs.prompt_ids.clone();
      other.prompt_ids[0].narrow(0, 3, 2).add_(1).remainder_(kVocabulary);
      other.prompt_ids[1][1].add_(1).remainder_(kVocabulary);
      const at::Tensor prompted = model->forward(other).hidden;
      EXPECT_TRUE(at::allclose(prompted[0], before[0], 1e-6, 1e-6));
      EXPECT_FALSE(at::allclose(prompted[1], before[1], 1e-6, 1e-6));
    }
  }
}

// The end of a short batch: the encoder sees tokens there, because a softmax over nothing is no number on some devices;
// the mean over the prompt does not.
TEST(HrmLm, RowOfPaddingAlone) {
  for (const EncoderKind encoder : {EncoderKind::transformer, EncoderKind::mamba2}) {
    const auto model = make_modern_lm(small_hrm(Bridge::prefix, encoder), at::kCPU);
    model->initialise(/*seed=*/1, at::kFloat);
    const LanguageInputs inputs = hrm_inputs(3, 6);
    const Pass want = train_pass(*model, inputs);
    at::Tensor gate;
    const HrmLmTrace of_tokens = model->reason(inputs, gate);
    inputs.prompt_mask[2].zero_();
    const HrmLmTrace of_padding = model->reason(inputs, gate);
    EXPECT_TRUE(at::equal(of_padding.encoded[2], of_tokens.encoded[2]));
    EXPECT_EQ(of_padding.cls[2].abs().max().item<double>(), 0);
    const Pass got = train_pass(*model, inputs);
    EXPECT_TRUE(at::isfinite(got.gradients).all().item<bool>());
    EXPECT_TRUE(at::allclose(got.hidden.narrow(0, 0, 2), want.hidden.narrow(0, 0, 2), 1e-5, 1e-6));
  }
}

// Documents that share a row give what each gives alone.
TEST(DecoderLm, PackedRows) {
  const at::NoGradGuard no_grad;
  const auto model = decoder_lm(small_decoder());
  const at::Tensor ids = tokens({1, 9});
  const at::Tensor documents = at::tensor({0, 0, 0, 0, 1, 1, 1, 2, 2}, at::kInt).view({1, 9});
  const at::Tensor packed = model->forward({.ids = ids, .documents = documents}).hidden;
  int64_t first = 0;
  for (const int64_t count : {4, 3, 2}) {
    const at::Tensor alone = model->forward({.ids = ids.narrow(1, first, count)}).hidden;
    EXPECT_TRUE(at::allclose(packed.narrow(1, first, count), alone, 1e-5, 1e-5)) << first;
    first += count;
  }
}

// The kernels that skip what is hidden, and masks of all pairs.
TEST(DecoderLm, MasksByBothWays) {
  const auto compare = [](const DecoderOptions& options, const LanguageInputs& inputs, const std::string& what) {
    const auto model = decoder_lm(options);
    const Pass got = train_pass(*model, inputs);
    ops::set_attention_backend(ops::AttentionBackend::sdpa);
    const Pass want = train_pass(*model, inputs);
    ops::set_attention_backend(ops::AttentionBackend::auto_);
    EXPECT_GT(want.gradients.abs().max().item<double>(), 0);
    EXPECT_TRUE(at::allclose(got.hidden, want.hidden, 1e-5, 1e-5)) << what;
    EXPECT_TRUE(at::allclose(got.gradients, want.gradients, 1e-4, 1e-7)) << what;
  };
  const at::Tensor documents = at::tensor({0, 0, 0, 0, 1, 1, 1, 2, 2}, at::kInt).view({1, 9}).expand({2, 9});
  for (const bool recompute : {false, true}) {
    DecoderOptions options = small_decoder();
    options.recompute = recompute;
    compare(options, {.ids = tokens({2, 9}), .documents = documents, .most_documents = 3}, "documents");
    options.window = 3;
    compare(options, {.ids = tokens({2, 9})}, "window");
    compare(options, {.ids = tokens({2, 9}), .documents = documents}, "both");
  }
}

TEST(Recompute, SameValuesAndGradients) {
  const auto compare = [](LanguageModel& kept, LanguageModel& recomputed, const LanguageInputs& inputs) {
    const Pass want = train_pass(kept, inputs), got = train_pass(recomputed, inputs);
    EXPECT_TRUE(at::equal(got.hidden, want.hidden));
    EXPECT_GT(want.gradients.abs().max().item<double>(), 0);
    EXPECT_TRUE(at::allclose(got.gradients, want.gradients, 1e-5, 1e-8));
  };
  DecoderOptions options = small_decoder();
  const auto kept = decoder_lm(options);
  options.recompute = true;
  compare(*kept, *decoder_lm(options), {.ids = tokens({2, 7})});
  for (const Bridge bridge : {Bridge::prefix, Bridge::cross_attention}) {
    ModernLmOptions hrm = small_hrm(bridge, EncoderKind::transformer);
    const auto plain = hrm_lm(hrm);
    hrm.decoder.recompute = true;
    compare(*plain, *hrm_lm(hrm), hrm_inputs(3, 6));
  }
}

// In the second call nobody reads what the block returns, so its last product is left out.
TEST(Recompute, LeavesTheLastProductOut) {
  static std::atomic<int> products;
  const auto handle = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                              if (std::string(function.name()) == "hrm::linear_add") ++products;
                                              return std::unique_ptr<at::ObserverContext>();
                                            }).scopes({at::RecordScope::FUNCTION}));
  DecoderOptions options = small_decoder();
  std::vector<int> counts;
  for (const bool recompute : {false, true}) {
    options.recompute = recompute;
    const auto model = decoder_lm(options);
    products = 0;
    train_pass(*model, {.ids = tokens({2, 7})});
    counts.push_back(products);
  }
  at::removeCallback(handle);
  // Two in a block, behind attention and behind SwiGLU; of these only the first one again.
  EXPECT_GT(counts[0], 0);
  EXPECT_EQ(2 * counts[1], 3 * counts[0]);
}

// What is frozen in front of a recomputed block does not keep its other weights from learning.
TEST(Recompute, BehindFrozenParts) {
  DecoderOptions options = small_decoder();
  options.recompute = true;
  options.tied = false;
  const auto model = std::make_shared<DecoderLm>(options, at::kCPU);
  model->initialise(1, at::kFloat, {"model.embed_tokens", "model.layers.0.input_layernorm"});
  train_pass(*model, {.ids = tokens({2, 7})});
  EXPECT_GT(model->named_parameters()["model.layers.0.self_attn.qkv_proj.weight"].grad().abs().max().item<double>(), 0);
}

// Each block is told of once, when all of its gradients are there: of the last block first.
TEST(LanguageModel, TellsOfCompleteGradients) {
  for (const bool recompute : {false, true}) {
    DecoderOptions options = small_decoder();
    options.recompute = recompute;
    const auto model = decoder_lm(options);
    nn::ParameterSet& set = model->parameter_set();
    nn::GradientReady& ready = *set.gradient_ready();
    ASSERT_EQ(ready.groups(), (std::vector<std::string>{"model.layers.1", "model.layers.0"}));
    std::vector<int> told;
    std::vector<at::Tensor> then;
    ready.listen([&](int group) {
      told.push_back(group);
      for (const nn::Parameter& parameter : set.all()) {
        if (parameter.group == group) then.push_back(parameter.master.grad().clone());
      }
    });
    train_pass(*model, {.ids = tokens({2, 7})});
    EXPECT_EQ(told, (std::vector<int>{0, 1})) << recompute;
    size_t next = 0;
    for (const int group : told) {
      for (const nn::Parameter& parameter : set.all()) {
        if (parameter.group != group) continue;
        EXPECT_TRUE(at::equal(parameter.master.grad(), then.at(next++))) << parameter.name << " " << recompute;
      }
    }
    ready.listen({});

    ModernLmOptions hrm = small_hrm(Bridge::cross_attention, EncoderKind::mamba2);
    hrm.decoder.recompute = recompute;
    const auto hrm_model = hrm_lm(hrm);
    nn::GradientReady& groups = *hrm_model->parameter_set().gradient_ready();
    std::vector<int> times(groups.groups().size());
    groups.listen([&](int group) { ++times[static_cast<size_t>(group)]; });
    train_pass(*hrm_model, hrm_inputs(3, 6));
    EXPECT_EQ(times, std::vector<int>(5, 1)) << recompute;
  }
}

// A feed-forward part with a loss of its own.
struct LossyFeedForward : nn::FeedForward {
  LossyFeedForward() : inner(register_module("inner", std::make_shared<nn::SwigluFeedForward>(16, 24, at::kCPU))) {}
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor y = inner->forward(x);
    if (at::GradMode::is_enabled()) losses.push_back({"size", y.square().mean(), 0.5});
    return y;
  }
  std::vector<nn::AuxiliaryLoss> take_auxiliary_losses() override { return std::exchange(losses, {}); }

  std::shared_ptr<nn::SwigluFeedForward> inner;
  std::vector<nn::AuxiliaryLoss> losses;
};

TEST(Recompute, AuxiliaryLosses) {
  std::vector<at::Tensor> gradients;
  for (const bool recompute : {false, true}) {
    DecoderOptions options = small_decoder();
    options.recompute = recompute;
    options.feed_forward = [](int64_t layer) -> std::shared_ptr<nn::FeedForward> {
      if (layer == 1) return std::make_shared<LossyFeedForward>();
      return std::make_shared<nn::SwigluFeedForward>(16, 24, at::kCPU);
    };
    const auto model = decoder_lm(options);
    at::manual_seed(5);
    const LanguageOutput output = model->forward({.ids = tokens({2, 7})});
    ASSERT_EQ(output.auxiliary.size(), 1U) << recompute;
    EXPECT_EQ(output.auxiliary[0].weight, 0.5);
    (output.hidden.square().mean() + output.auxiliary[0].value).backward();
    gradients.push_back(model->parameter_set().flat_grad().clone());
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(model->forward({.ids = tokens({2, 7})}).auxiliary.empty());
  }
  EXPECT_TRUE(at::allclose(gradients[1], gradients[0], 1e-5, 1e-8));
}

TEST(Prototype, FeedForwardPartsOfTheEncoder) {
  PrototypeOptions o;
  o.lm.core = {.width = 16, .h_len = 2, .l_len = 3, .h_cycles = 1, .l_steps = 1};
  o.vocabulary = kVocabulary;
  o.enc_layers = 3;
  o.feed_forward = [](int64_t layer) -> std::shared_ptr<nn::FeedForward> {
    if (layer > 0) return std::make_shared<LossyFeedForward>();
    return std::make_shared<nn::GeluFeedForward>(16, 32, at::kCPU);
  };
  const auto model = make_prototype_lm(o, at::kCPU);
  model->initialise(1, at::kFloat);
  EXPECT_EQ(model->forward(hrm_inputs(3, 6)).auxiliary.size(), 2U);
  EXPECT_EQ(model->forward(hrm_inputs(3, 6)).auxiliary.size(), 2U) << "losses of the pass before";
}

// Gradients of the memories' first values show how far back the cycles are differentiated.
TEST(HrmCore, DifferentiatedCycles) {
  std::vector<at::Tensor> gradients;
  for (const int64_t cycles : {1, 2, 3, 0}) {
    ModernLmOptions o = small_hrm(Bridge::prefix, EncoderKind::transformer);
    o.lm.core.gradient_cycles = cycles;
    const auto model = hrm_lm(o);
    at::manual_seed(5);
    gradients.push_back(train_pass(*model, hrm_inputs(3, 6)).gradients);
    const double of_init = model->named_parameters()["core.h_init"].grad().abs().max().item<double>();
    EXPECT_EQ(of_init > 0, cycles == 0 || cycles == 3) << cycles;
  }
  EXPECT_FALSE(at::allclose(gradients[0], gradients[1], 1e-3, 1e-9));
  EXPECT_FALSE(at::allclose(gradients[1], gradients[2], 1e-3, 1e-9));
  EXPECT_TRUE(at::equal(gradients[2], gradients[3]));
  ModernLmOptions o = small_hrm(Bridge::prefix, EncoderKind::transformer);
  o.lm.core.gradient_cycles = 4;
  EXPECT_THROW(make_modern_lm(o, at::kCPU), Error);
}

TEST(LanguageModel, Freeze) {
  const ModernLmOptions o = small_hrm(Bridge::prefix, EncoderKind::mamba2);
  const auto model = hrm_lm(o, {"enc", "core.h_mod.layers.0.mlp"});
  train_pass(*model, hrm_inputs(3, 6));
  int frozen = 0;
  for (const auto& item : model->named_parameters()) {
    const bool here = item.key().starts_with("enc.") || item.key().starts_with("core.h_mod.layers.0.mlp.");
    EXPECT_EQ(item.value().requires_grad(), !here) << item.key();
    if (!here) continue;
    ++frozen;
    EXPECT_FALSE(item.value().grad().defined()) << item.key();
  }
  EXPECT_GT(frozen, 3);
  for (const nn::Parameter& parameter : model->parameter_set().all()) {
    EXPECT_FALSE(parameter.name.starts_with("enc.")) << parameter.name;
  }
  EXPECT_THROW(hrm_lm(o, {"en"}), Error) << "no whole name";
}

TEST(LanguageModel, TiedHeadSharesOneGradient) {
  const auto model = decoder_lm(small_decoder(), at::kBFloat16);
  const at::Tensor weight = model->named_parameters()["model.embed_tokens.weight"];
  EXPECT_TRUE(model->head().weight().is_same(weight));
  EXPECT_EQ(model->head().compute_weight().scalar_type(), at::kBFloat16);
  EXPECT_EQ(model->named_parameters().find("model.lm_head.weight"), nullptr);
  const at::Tensor ids = at::full({1, 4}, 3, at::kInt);
  model->logits(model->forward({.ids = ids}).hidden).square().mean().backward();
  EXPECT_GT(weight.grad()[7].abs().max().item<double>(), 0) << "by the head";
  const at::Tensor with_head = weight.grad()[3].clone();
  model->parameter_set().zero_grad();
  model->forward({.ids = ids}).hidden.square().mean().backward();
  EXPECT_EQ(weight.grad()[7].abs().max().item<double>(), 0);
  EXPECT_GT(weight.grad()[3].abs().max().item<double>(), 0) << "by the embedding";
  EXPECT_FALSE(at::equal(weight.grad()[3], with_head));
}

// All models run in bfloat16, near their float32 selves.
TEST(LanguageModel, BFloat16) {
  const auto compare = [](LanguageModel& exact, LanguageModel& low, const LanguageInputs& inputs) {
    const Pass want = train_pass(exact, inputs), got = train_pass(low, inputs);
    EXPECT_EQ(got.hidden.scalar_type(), at::kBFloat16);
    EXPECT_LT((got.hidden.to(at::kFloat) - want.hidden).norm().item<double>(),
              0.05 * want.hidden.norm().item<double>());
    EXPECT_LT((got.gradients - want.gradients).norm().item<double>(), 0.1 * want.gradients.norm().item<double>());
  };
  compare(*decoder_lm(small_decoder()), *decoder_lm(small_decoder(), at::kBFloat16), {.ids = tokens({2, 7})});
  for (const EncoderKind encoder : {EncoderKind::transformer, EncoderKind::mamba2}) {
    const ModernLmOptions o = small_hrm(Bridge::cross_attention, encoder);
    const auto low = make_modern_lm(o, at::kCPU);
    low->initialise(/*seed=*/1, at::kBFloat16);
    compare(*hrm_lm(o), *low, hrm_inputs(3, 6));
  }
}

TEST(LanguageModel, RefusesWrongSizes) {
  const auto refused = [](const std::function<void(DecoderOptions&)>& spoil) {
    DecoderOptions o = small_decoder();
    spoil(o);
    EXPECT_THROW(resolve(o), Error);
  };
  refused([](DecoderOptions& o) { o.kv_heads = 3; });
  refused([](DecoderOptions& o) { o.heads = 3; });
  refused([](DecoderOptions& o) { o.vocabulary = 0; });
  EXPECT_THROW(decoder_lm(small_decoder())->forward({.ids = tokens({1, 33})}), Error);
  ModernLmOptions o = small_hrm(Bridge::prefix, EncoderKind::transformer);
  o.lm.core.width = 8;
  EXPECT_THROW(make_modern_lm(o, at::kCPU), Error);
}

}  // namespace
}  // namespace hrm::models
