// Rows and partial sums between parts, forward and backward.
#include "hrm/parallel/tensor_across.h"

#include <ATen/ATen.h>

#include "support/ranks.h"

namespace hrm {
namespace {

at::Tensor values(at::IntArrayRef sizes, double seed) {
  return at::sin(at::arange(c10::multiply_integers(sizes), at::kFloat) * 0.7 + seed).view(sizes);
}

class TensorAcross : public testing::TestWithParam<test::Ranks> {};

constexpr int64_t kWidth = 5;

// Numbers of tokens that parts divide, and others.
TEST_P(TensorAcross, EnterGathersRowsAndAddsGradients) {
  test::on_ranks(GetParam(), [&](parallel::Comm& comm) {
    const auto across = parallel::make_tensor_across(test::borrowed(comm));
    for (const int64_t tokens : {8, 7, 1}) {
      const int64_t own = across->own_rows(tokens);
      const at::Tensor all = at::cat({values({tokens, kWidth}, 1), at::zeros({own * comm.ranks() - tokens, kWidth})});
      const at::Tensor rows = all.narrow(0, comm.rank() * own, own).clone().requires_grad_();
      const at::Tensor entered = across->enter(rows, tokens);
      ASSERT_TRUE(at::equal(entered, all.narrow(0, 0, tokens)));
      // Every part has another gradient.
      const auto gradient = [&](int part) { return values({tokens, kWidth}, 10 + part); };
      entered.backward(gradient(comm.rank()));
      at::Tensor sum = at::zeros({own * comm.ranks(), kWidth});
      for (int part = 0; part < comm.ranks(); ++part) sum.narrow(0, 0, tokens).add_(gradient(part));
      EXPECT_TRUE(at::equal(rows.grad(), sum.narrow(0, comm.rank() * own, own)));
    }
  });
}

TEST_P(TensorAcross, LeaveGivesEveryPartsSumsOfOurRows) {
  test::on_ranks(GetParam(), [&](parallel::Comm& comm) {
    const auto across = parallel::make_tensor_across(test::borrowed(comm));
    for (const int64_t tokens : {8, 7, 1}) {
      const int64_t own = across->own_rows(tokens), first = comm.rank() * own;
      const auto of_part = [&](int part) {
        return at::cat({values({tokens, kWidth}, part), at::zeros({own * comm.ranks() - tokens, kWidth})});
      };
      const at::Tensor sums = of_part(comm.rank()).narrow(0, 0, tokens).clone().requires_grad_();
      const ops::Pieces pieces = across->leave(sums);
      ASSERT_EQ(pieces.sums.sizes(), at::IntArrayRef({comm.ranks(), own, kWidth}));
      at::Tensor sum = values({own, kWidth}, 20);
      const at::Tensor residual = sum.clone().requires_grad_();
      for (int part = 0; part < comm.ranks(); ++part) {
        EXPECT_TRUE(at::equal(pieces.sums[part], of_part(part).narrow(0, first, own)));
        sum = sum + of_part(part).narrow(0, first, own);
      }
      const at::Tensor added = ops::add_pieces(residual, pieces);
      EXPECT_TRUE(at::equal(added, sum));
      const at::Tensor all = values({own * comm.ranks(), kWidth}, 30);
      added.backward(all.narrow(0, first, own));
      EXPECT_TRUE(at::equal(sums.grad(), all.narrow(0, 0, tokens)));
      EXPECT_TRUE(at::equal(residual.grad(), all.narrow(0, first, own)));
    }
  });
}

TEST_P(TensorAcross, GatherHasWhatEveryPartHas) {
  test::on_ranks(GetParam(), [&](parallel::Comm& comm) {
    const at::Tensor all = parallel::make_tensor_across(test::borrowed(comm))->gather(values({3, 2, 4}, comm.rank()));
    ASSERT_EQ(all.sizes(), at::IntArrayRef({comm.ranks(), 3, 2, 4}));
    for (int part = 0; part < comm.ranks(); ++part) EXPECT_TRUE(at::equal(all[part], values({3, 2, 4}, part)));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorAcross,
                         testing::Values(test::Ranks{test::Kind::threads, 2}, test::Ranks{test::Kind::threads, 3},
                                         test::Ranks{test::Kind::gloo, 2}));

}  // namespace
}  // namespace hrm
