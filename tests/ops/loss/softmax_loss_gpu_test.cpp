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
