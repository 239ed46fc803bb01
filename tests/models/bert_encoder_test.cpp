#include "hrm/models/bert_encoder.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/expect_error.h"

namespace hrm::models {
namespace {

using test::expect_error;

// Weights far from their start, so that attention, norms and biases all matter.
BertOptions small_bert() {
  return {.vocabulary = 50, .width = 16, .layers = 2, .heads = 2, .inner = 24, .positions = 40, .token_types = 2};
}

BertWeights strong_weights(const BertOptions& options = small_bert()) {
  BertWeights weights = random_bert_weights(options, /*seed=*/3);
  auto generator = at::detail::createCPUGenerator(7);
  for (auto& [name, tensor] : weights) tensor += at::randn(tensor.sizes(), generator, at::kFloat) * 0.2;
  return weights;
}

BertEncoder encoder_of(const BertWeights& weights, at::ScalarType dtype = at::kFloat) {
  return {small_bert(), weights, at::kCPU, dtype};
}

std::vector<int32_t> sentence_of(int64_t length, int32_t seed) {
  std::vector<int32_t> ids;
  for (int32_t t = 0; t < length; ++t) ids.push_back((seed * 17 + t * 7 + t * t) % 50);
  return ids;
}

at::Tensor row_of(const std::vector<int32_t>& ids) {
  return at::tensor(ids, at::kInt).unsqueeze(0);
}

// The paper's equations one token at a time, in float64.
at::Tensor reference_hidden(const BertOptions& o, const BertWeights& weights, const std::vector<int32_t>& ids) {
  const auto w = [&](const std::string& name) { return weights.at(name).to(at::kDouble); };
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return at::matmul(x, w(name + ".weight").t()) + w(name + ".bias");
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor centred = x - x.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + o.eps).sqrt() * w(name + ".weight") + w(name + ".bias");
  };
  std::vector<at::Tensor> tokens;
  for (size_t t = 0; t < ids.size(); ++t) {
    tokens.push_back(w("embeddings.word_embeddings.weight")[ids[t]] +
                     w("embeddings.position_embeddings.weight")[static_cast<int64_t>(t)] +
                     w("embeddings.token_type_embeddings.weight")[0]);
  }
  at::Tensor x = norm(at::stack(tokens), "embeddings.LayerNorm");
  const int64_t head_dim = o.width / o.heads;
  for (int64_t i = 0; i < o.layers; ++i) {
    const std::string layer = cat("encoder.layer.", i, ".");
    const at::Tensor q = linear(x, layer + "attention.self.query"), k = linear(x, layer + "attention.self.key"),
                     v = linear(x, layer + "attention.self.value");
    std::vector<at::Tensor> mixed;
    for (int64_t h = 0; h < o.heads; ++h) {
      const auto part = [&](const at::Tensor& y) { return y.narrow(1, h * head_dim, head_dim); };
      const at::Tensor scores = at::matmul(part(q), part(k).t()) / std::sqrt(static_cast<double>(head_dim));
      mixed.push_back(at::matmul(at::softmax(scores, -1), part(v)));
    }
    x = norm(linear(at::cat(mixed, 1), layer + "attention.output.dense") + x, layer + "attention.output.LayerNorm");
    const at::Tensor up = linear(x, layer + "intermediate.dense");
    const at::Tensor gelu = up * 0.5 * (1 + at::erf(up / std::sqrt(2.0)));
    x = norm(linear(gelu, layer + "output.dense") + x, layer + "output.LayerNorm");
  }
  return x;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(BertEncoder, FollowsTheEquations) {
  const BertWeights weights = strong_weights();
  const BertEncoder encoder = encoder_of(weights);
  for (const int64_t length : {1, 2, 7, 40}) {
    const std::vector<int32_t> ids = sentence_of(length, 1);
    const at::Tensor row = row_of(ids);
    const at::Tensor want = reference_hidden(small_bert(), weights, ids);
    EXPECT_LT(difference(encoder.forward(row, at::ones_like(row))[0], want), 1e-5) << length;
    const at::Tensor mean = want.mean(0);
    EXPECT_LT(difference(encoder.embed(row, at::ones_like(row))[0], mean / mean.norm()), 1e-6) << length;
  }
}

TEST(BertEncoder, PaddingChangesNothing) {
  const BertEncoder encoder = encoder_of(strong_weights());
  const at::Tensor row = row_of(sentence_of(9, 2));
  const at::Tensor want_hidden = encoder.forward(row, at::ones_like(row)),
                   want = encoder.embed(row, at::ones_like(row));
  for (const int64_t padding : {1, 7, 31}) {
    for (const int64_t token : {0, 49}) {
      const at::Tensor padded = at::cat({row, at::full({1, padding}, token, at::kInt)}, 1);
      const at::Tensor mask = at::cat({at::ones_like(row), at::zeros({1, padding}, at::kInt)}, 1);
      EXPECT_LT(difference(encoder.forward(padded, mask).narrow(1, 0, 9), want_hidden), 1e-5) << padding;
      EXPECT_LT(difference(encoder.embed(padded, mask), want), 1e-6) << padding;
      EXPECT_TRUE(at::equal(encoder.embed(padded, mask), encoder.embed(padded.to(at::kLong), mask.to(at::kBool))));
    }
  }
}

TEST(BertEncoder, ARowOfPaddingAloneGivesZeros) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const BertEncoder encoder = encoder_of(strong_weights(), dtype);
    const at::Tensor ids = at::cat({row_of(sentence_of(16, 1)), row_of(sentence_of(16, 2))});
    const at::Tensor mask = at::ones_like(ids);
    mask[0].zero_();
    const at::Tensor embedding = encoder.embed(ids, mask);
    EXPECT_TRUE(at::equal(embedding[0], at::zeros({16})));
    EXPECT_NEAR(embedding[1].norm().item<double>(), 1, 1e-6);
  }
}

TEST(BertEncoder, LowPrecisionIsNear) {
  const BertWeights weights = strong_weights();
  const BertEncoder encoder = encoder_of(weights), low = encoder_of(weights, at::kBFloat16);
  const at::Tensor row = row_of(sentence_of(23, 3)), mask = at::ones_like(row);
  EXPECT_EQ(low.forward(row, mask).scalar_type(), at::kBFloat16);
  EXPECT_EQ(low.embed(row, mask).scalar_type(), at::kFloat);
  EXPECT_NEAR(low.embed(row, mask).norm().item<double>(), 1, 1e-6);
  EXPECT_LT(difference(low.embed(row, mask), encoder.embed(row, mask)), 0.02);
}

TEST(BertEncoder, IsFrozen) {
  BertWeights weights = strong_weights();
  const BertEncoder encoder = encoder_of(weights);
  const at::Tensor row = row_of(sentence_of(5, 4)), before = encoder.embed(row, at::ones_like(row));
  for (auto& [name, tensor] : weights) tensor.zero_();
  EXPECT_TRUE(at::equal(encoder.embed(row, at::ones_like(row)), before)) << "the weights are not a copy";
  for (auto& [name, tensor] : weights) tensor.requires_grad_();
  EXPECT_FALSE(encoder_of(weights).embed(row, at::ones_like(row)).requires_grad());
}

TEST(BertEncoder, EmbedAllIsOneByOne) {
  const BertEncoder encoder = encoder_of(strong_weights());
  std::vector<std::vector<int32_t>> sentences;
  for (const int64_t length : {3, 40, 1, 17, 0, 16, 33, 3, 15, 32}) {
    sentences.push_back(sentence_of(length, static_cast<int32_t>(sentences.size())));
  }
  for (const int64_t max_tokens : {1, 33, 100, 32768}) {
    const at::Tensor all = embed_all(encoder, sentences, max_tokens);
    ASSERT_EQ(all.sizes(), at::IntArrayRef({10, 16}));
    for (size_t i = 0; i < sentences.size(); ++i) {
      const at::Tensor row = row_of(sentences[i]);
      const at::Tensor one = sentences[i].empty() ? at::zeros({16}) : encoder.embed(row, at::ones_like(row)).squeeze(0);
      EXPECT_LT(difference(all[static_cast<int64_t>(i)], one), 1e-6) << "sentence " << i << ", " << max_tokens;
    }
  }
  EXPECT_EQ(embed_all(encoder, {}).sizes(), at::IntArrayRef({0, 16}));
}

TEST(BertEncoder, BatchesByLength) {
  const auto text = [](const std::vector<LengthBatch>& batches) {
    std::string text;
    for (const LengthBatch& batch : batches) {
      text += cat(text.empty() ? "" : " ", batch.width, ":");
      for (const int64_t row : batch.rows) text += cat(" ", row);
    }
    return text;
  };
  EXPECT_EQ(text(batches_by_length({}, 512, 100)), "");
  EXPECT_EQ(text(batches_by_length({0}, 512, 100)), "16: 0");
  // Rounded up to 16, not beyond the positions.
  EXPECT_EQ(text(batches_by_length({16}, 512, 100)), "16: 0");
  EXPECT_EQ(text(batches_by_length({17}, 512, 100)), "32: 0");
  EXPECT_EQ(text(batches_by_length({17}, 20, 100)), "20: 0");
  // The longest first, equal ones in their order; one half of the width still joins, less does not.
  EXPECT_EQ(text(batches_by_length({33, 64, 17, 16, 64, 15}, 512, 1000)), "64: 1 4 0 2 16: 3 5");
  EXPECT_EQ(text(batches_by_length({64, 16}, 512, 1000)), "64: 0 16: 1");
  // Three rows of 32 are 96 tokens.
  EXPECT_EQ(text(batches_by_length({20, 20, 20, 20}, 512, 96)), "32: 0 1 2 32: 3");
  EXPECT_EQ(text(batches_by_length({20, 20, 20, 20}, 512, 95)), "32: 0 1 32: 2 3");
  // A row that is longer than a batch may be goes alone.
  EXPECT_EQ(text(batches_by_length({20, 20}, 512, 1)), "32: 0 32: 1");
}

TEST(BertEncoder, RandomWeightsAreThoseOfBert) {
  const BertOptions options{.vocabulary = 3000, .width = 64, .layers = 1, .heads = 4, .inner = 128};
  const BertWeights weights = random_bert_weights(options, 1);
  EXPECT_EQ(weights.size(), 5u + 16u);
  const at::Tensor& words = weights.at("embeddings.word_embeddings.weight");
  EXPECT_NEAR(words.std().item<double>(), 0.02, 2e-4);
  EXPECT_NEAR(words.mean().item<double>(), 0, 2e-4);
  EXPECT_TRUE(at::equal(weights.at("encoder.layer.0.output.LayerNorm.weight"), at::ones({64})));
  EXPECT_TRUE(at::equal(weights.at("encoder.layer.0.output.dense.bias"), at::zeros({64})));
  EXPECT_FALSE(at::equal(weights.at("encoder.layer.0.attention.self.query.weight"),
                         weights.at("encoder.layer.0.attention.self.key.weight")));
  EXPECT_TRUE(at::equal(random_bert_weights(options, 1).at("embeddings.word_embeddings.weight"), words));
  EXPECT_FALSE(at::equal(random_bert_weights(options, 2).at("embeddings.word_embeddings.weight"), words));
  // Of another size, but the same name: the draws go on.
  BertOptions larger = options;
  larger.vocabulary = 3001;
  EXPECT_TRUE(
      at::equal(random_bert_weights(larger, 1).at("embeddings.word_embeddings.weight").narrow(0, 0, 3000), words));
}

TEST(BertEncoder, TakesTheNamesThatFilesHave) {
  const BertWeights weights = strong_weights();
  const at::Tensor row = row_of(sentence_of(11, 5)), mask = at::ones_like(row);
  const at::Tensor want = encoder_of(weights).embed(row, mask);
  BertWeights plain = weights, prefixed, old;
  for (const auto& [name, tensor] : weights) {
    prefixed.emplace("bert." + name, tensor);
    std::string before = name;
    if (name.ends_with("LayerNorm.weight")) before.replace(name.rfind('.'), std::string::npos, ".gamma");
    if (name.ends_with("LayerNorm.bias")) before.replace(name.rfind('.'), std::string::npos, ".beta");
    old.emplace("bert." + before, tensor);
  }
  plain.emplace("pooler.dense.weight", at::ones({3, 3}));
  plain.emplace("embeddings.position_ids", at::arange(40).unsqueeze(0));
  prefixed.emplace("bert.pooler.dense.bias", at::ones({3}));
  prefixed.emplace("cls.predictions.bias", at::ones({50}));
  for (const BertWeights& same : {plain, prefixed, old}) {
    EXPECT_TRUE(at::equal(encoder_of(same).embed(row, mask), want));
  }
}

TEST(BertEncoder, RefusesWeightsThatDoNotFit) {
  const auto refused = [](const BertWeights& weights, const std::vector<std::string>& parts) {
    expect_error(ExitCode::checkpoint, parts,
                 [&] { BertEncoder(small_bert(), weights, at::kCPU, at::kFloat, "there.safetensors"); });
  };
  BertWeights weights = strong_weights();
  weights.erase("encoder.layer.1.attention.self.key.bias");
  weights["embeddings.position_embeddings.weight"] = at::zeros({64, 16});
  weights["encoder.layer.2.output.dense.bias"] = at::zeros({16});
  weights["encoder.layer.0.output.dense.bias"] = at::zeros({16}, at::kLong);
  weights["encoder.layer.0.output.LayerNorm.gamma"] = at::zeros({16});
  refused(weights,
          {"there.safetensors does not fit a BERT of 50 tokens, width 16, 2 layers, inner width 24, 40 positions and 2 "
           "token types: ",
           "'encoder.layer.1.attention.self.key.bias' is missing",
           "'embeddings.position_embeddings.weight' has the shape [64, 16], not [40, 16]",
           "'encoder.layer.2.output.dense.bias' is not a weight of BERT",
           "'encoder.layer.0.output.dense.bias' holds Long values",
           "'encoder.layer.0.output.LayerNorm.weight' occurs twice"});
  refused({}, {"'embeddings.LayerNorm.bias' is missing", "and 13 more"});
}

TEST(BertEncoder, RefusesWhatItCannotDo) {
  const BertEncoder encoder = encoder_of(strong_weights());
  const at::Tensor ids = at::zeros({1, 41}, at::kInt);
  expect_error(ExitCode::usage, {"a row of 41 tokens", "the 40 positions"}, [&] { encoder.embed(ids, ids); });
  expect_error(ExitCode::unexpected, {"[1, 41]", "[1, 40]"}, [&] { encoder.forward(ids, ids.narrow(1, 0, 40)); });
  expect_error(ExitCode::usage, {"sentence 1 has 41 tokens", "the 40 positions"}, [&] {
    embed_all(encoder, {sentence_of(3, 1), sentence_of(41, 1)});
  });
  expect_error(ExitCode::usage, {"token 2 of sentence 1 is 50", "vocabulary is 0 to 49"}, [&] {
    embed_all(encoder, {{1}, {1, 2, 50}});
  });
  expect_error(ExitCode::usage, {"token 0 of sentence 0 is -1"}, [&] { embed_all(encoder, {{-1}}); });
  expect_error(ExitCode::usage, {"at least 1 token, not 0"}, [&] { embed_all(encoder, {{1}}, 0); });
  expect_error(ExitCode::usage, {"float32 or bfloat16, not in Half"}, [&] { encoder_of(strong_weights(), at::kHalf); });
  BertOptions options = small_bert();
  options.heads = 3;
  expect_error(ExitCode::usage, {"3 attention heads do not divide BERT's width 16"},
               [&] { BertEncoder(options, {}, at::kCPU, at::kFloat); });
  options.heads = 0;
  expect_error(ExitCode::usage, {"at least 1, not 50, 16, 2, 0, 24, 40 and 2"},
               [&] { BertEncoder(options, {}, at::kCPU, at::kFloat); });
}

}  // namespace
}  // namespace hrm::models
