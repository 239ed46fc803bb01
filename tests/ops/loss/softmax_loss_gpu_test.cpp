#include "ops/gpu_testing.h"
#include "ops/loss/softmax_loss_cases.h"

namespace hrm::ops {
namespace {

using namespace testing;  // NOLINT

// Vocabularies on both sides of every choice that the kernel makes.
TEST(SoftmaxLossGpu, AsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t vocab :
         {1, 7, 1000, 4096, 5000, 9000, 20000, 32000, 40000, 50257, 70000, 80016, 151936, 262144, 480008}) {
      for (const int64_t pitch : {vocab, (vocab + 63) / 64 * 64}) {
        expect_good_softmax_loss(dtype, vocab, pitch, vocab % 3 == 0 ? at::kInt : at::kLong, at::kCUDA,
                                 cat(dtype, " vocabulary ", vocab, " pitch ", pitch));
      }
    }
  }
}

TEST(SoftmaxLossGpu, PartsAsGoodAsPlainAten) {
  HRM_NEEDS_GPU();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t parts : {1, 2, 3, 8}) {
      for (const int64_t vocab : {8, 1000, 4096, 32000, 50257}) {
        for (const int64_t gap : {0, 24, 5}) {
          expect_good_softmax_loss_of_parts(dtype, vocab, parts, gap, parts % 2 == 0 ? at::kInt : at::kLong, at::kCUDA,
                                            cat(dtype, " vocabulary ", vocab, " in ", parts, " parts, gap ", gap));
        }
      }
    }
  }
  const at::Tensor logits = normal({5, 64}, 1, at::kBFloat16, at::kCUDA), weights = at::ones({5}, at::kCUDA),
                   labels = at::arange(5, at::device(at::kCUDA).dtype(at::kInt));
  const at::Tensor facts = at::stack({softmax_loss_facts(logits, labels, 0), softmax_loss_facts(logits, labels, 64)});
  const at::Tensor a = logits.clone(), b = logits.clone();
  const at::Tensor loss = softmax_loss_part_(a, labels, 0, facts, weights);
  const WithReference with_reference;
  expect_near(loss, softmax_loss_part_(b, labels, 0, facts, weights), "by plain ATen");
  expect_near(a, b, "gradient by plain ATen");
}

TEST(SoftmaxLossGpu, PartsInsideACapturedGraph) {
  HRM_NEEDS_GPU();
  const at::Tensor from = normal({6, 1000}, 1, at::kBFloat16, at::kCUDA), logits = at::empty_like(from),
                   labels = at::arange(6, at::device(at::kCUDA).dtype(at::kInt)), weights = at::rand({6}, at::kCUDA);
  at::Tensor loss;
  const auto run = [&](const at::Tensor& of) {
    return softmax_loss_part_(of, labels, 3, softmax_loss_facts(of, labels, 3).unsqueeze(0), weights);
  };
  Captured captured([&] {
    logits.copy_(from);
    loss = run(logits);
  });
  for (uint64_t round = 0; round < 3; ++round) {
    from.copy_(normal({6, 1000}, 10 + round, at::kBFloat16));
    captured.replay();
    const at::Tensor again = from.clone();
    expect_same_bits(loss, run(again), "loss");
    expect_same_bits(logits, again, "gradient");
  }
}

TEST(SoftmaxLossGpu, InsideACapturedGraph) {
  HRM_NEEDS_GPU();
  for (const int64_t vocab : {1000, 1001, 70000, 151936, 480008}) {
    const at::Tensor from = normal({6, vocab}, 1, at::kBFloat16, at::kCUDA), logits = at::empty_like(from),
                     labels = at::arange(6, at::device(at::kCUDA).dtype(at::kInt)), weights = at::rand({6}, at::kCUDA);
    at::Tensor loss;
    Captured captured([&] {
      logits.copy_(from);
      loss = softmax_loss_(logits, labels, weights);
    });
    for (uint64_t round = 0; round < 3; ++round) {
      from.copy_(normal({6, vocab}, 10 + round, at::kBFloat16));
      captured.replay();
      const at::Tensor again = from.clone();
      expect_same_bits(loss, softmax_loss_(again, labels, weights), cat("vocabulary ", vocab));
      expect_same_bits(logits, again, cat("vocabulary ", vocab, ", gradient"));
    }
  }
}

}  // namespace
}  // namespace hrm::ops
