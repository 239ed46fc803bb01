// The sentence encoder on a GPU against the CPU, and captured in a graph.

#include "hrm/models/bert_encoder.h"

#include <gtest/gtest.h>

#include "hrm/runtime/captured_step.h"
#include "ops/gpu_testing.h"

namespace hrm::models {
namespace {

const at::Device kGpu(at::kCUDA, 0);

// MiniLM's layers, fewer of them.
BertOptions sizes() {
  return {.vocabulary = 1000, .layers = 2, .positions = 128};
}

// Weights far from their start, so that attention, norms and biases all matter.
BertWeights gpu_weights() {
  BertWeights weights = random_bert_weights(sizes(), /*seed=*/3);
  auto generator = at::detail::createCPUGenerator(7);
  for (auto& [name, tensor] : weights) tensor += at::randn(tensor.sizes(), generator, at::kFloat) * 0.05;
  return weights;
}

struct Rows {
  at::Tensor ids, mask;  // (B, T)
};

Rows rows_of(int64_t B, int64_t T, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const at::Tensor lengths = at::randint(1, T + 1, {B, 1}, generator, at::kInt);
  lengths[0].fill_(T);
  return {at::randint(0, 1000, {B, T}, generator, at::kInt), at::arange(T).lt(lengths).to(at::kInt)};
}

double gpu_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kCPU, at::kDouble) - b.to(at::kCPU, at::kDouble)).abs().max().item<double>();
}

TEST(BertEncoderGpu, MatchesTheCpu) {
  HRM_NEEDS_GPU();
  const ops::testing::WithoutTf32 full;
  const BertWeights weights = gpu_weights();
  const BertEncoder cpu(sizes(), weights, at::kCPU, at::kFloat), gpu(sizes(), weights, kGpu, at::kFloat);
  const BertEncoder cpu_low(sizes(), weights, at::kCPU, at::kBFloat16), gpu_low(sizes(), weights, kGpu, at::kBFloat16);
  // 7, 15 and 100 are no multiples of what attention kernels are aligned to.
  for (const int64_t T : {1, 7, 15, 16, 64, 100, 128}) {
    const Rows rows = rows_of(/*B=*/9, T, /*seed=*/static_cast<uint64_t>(T));
    const at::Tensor ids = rows.ids.to(kGpu), mask = rows.mask.to(kGpu), token = rows.mask.unsqueeze(-1);
    EXPECT_LT(gpu_difference(gpu.forward(ids, mask).cpu() * token, cpu.forward(rows.ids, rows.mask) * token), 1e-4)
        << T;
    const at::Tensor want = cpu.embed(rows.ids, rows.mask);
    EXPECT_LT(gpu_difference(gpu.embed(ids, mask), want), 1e-5) << T;
    EXPECT_LE(gpu_difference(gpu_low.embed(ids, mask), want),
              2 * gpu_difference(cpu_low.embed(rows.ids, rows.mask), want))
        << T;
  }
}

TEST(BertEncoderGpu, ARowOfPaddingAloneGivesZeros) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const BertEncoder encoder(sizes(), gpu_weights(), kGpu, dtype);
    Rows rows = rows_of(/*B=*/4, /*T=*/32, /*seed=*/1);
    rows.mask[2].zero_();
    const at::Tensor embedding = encoder.embed(rows.ids.to(kGpu), rows.mask.to(kGpu)).cpu();
    EXPECT_TRUE(at::equal(embedding[2], at::zeros({384})));
    EXPECT_NEAR(embedding[3].norm().item<double>(), 1, 1e-5);
  }
}

TEST(BertEncoderGpu, ReplaysGiveWhatEagerRunsGive) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const BertEncoder encoder(sizes(), gpu_weights(), kGpu, dtype);
    const at::Tensor ids = at::zeros({8, 48}, at::device(kGpu).dtype(at::kInt)), mask = at::ones_like(ids);
    const at::Tensor result = at::zeros({8, 384}, at::device(kGpu));
    CapturedStep step({.name = "encoder", .device = kGpu});
    for (uint64_t i = 0; i < 8; ++i) {
      const Rows rows = rows_of(8, 48, i);
      ids.copy_(rows.ids);
      mask.copy_(rows.mask);
      step.run({8, 48}, {ids, mask}, [&] { result.copy_(encoder.embed(ids, mask)); });
      EXPECT_TRUE(at::equal(result, encoder.embed(ids, mask))) << "run " << i;
    }
    EXPECT_EQ(step.reason(), "");
    EXPECT_EQ(step.replays(), 5);
  }
}

TEST(BertEncoderGpu, EmbedAllMatchesTheCpu) {
  HRM_NEEDS_GPU();
  const ops::testing::WithoutTf32 full;
  const BertWeights weights = gpu_weights();
  const BertEncoder cpu(sizes(), weights, at::kCPU, at::kFloat), gpu(sizes(), weights, kGpu, at::kFloat);
  std::vector<std::vector<int32_t>> sentences;
  for (int32_t i = 0; i < 60; ++i) {
    sentences.emplace_back();
    for (int32_t t = 0; t < i * i % 129; ++t) sentences.back().push_back((i * 31 + t * t) % 1000);
  }
  const at::Tensor want = embed_all(cpu, sentences);
  // Several batches, so that the memory of one's upload is used again while the device still works.
  for (const int64_t max_tokens : {256, 32768}) {
    const at::Tensor vectors = embed_all(gpu, sentences, max_tokens);
    EXPECT_TRUE(vectors.is_cuda());
    EXPECT_LT(gpu_difference(vectors, want), 1e-5) << max_tokens;
  }
}

}  // namespace
}  // namespace hrm::models
