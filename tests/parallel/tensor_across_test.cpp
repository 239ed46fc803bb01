// Rows and partial sums between parts, forward and backward.
#include "hrm/parallel/tensor_across.h"

#include <ATen/ATen.h>

#include "hrm/nn/across_linear.h"
#include "hrm/ops/swiglu.h"
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

at::Tensor weight_of(nn::Linear& linear, double seed) {
  const at::NoGradGuard no_grad;
  linear.weight().copy_(values(linear.weight().sizes(), seed));
  return linear.weight();
}

void expect_equal_but_order(const at::Tensor& got, const at::Tensor& wanted, const char* what, int64_t tokens) {
  EXPECT_TRUE(at::allclose(got, wanted, 1e-6, 1e-6))
      << what << " of " << tokens << " tokens differs by " << (got - wanted).abs().max().item<float>();
}

// Products beside the exchange are those before or behind it.
TEST_P(TensorAcross, LayersBesideTheExchange) {
  test::on_ranks(GetParam(), [&](parallel::Comm& comm) {
    const auto across = parallel::make_tensor_across(test::borrowed(comm));
    constexpr int64_t kInner = 6;
    nn::Linear gate_up(kWidth, 2 * kInner, at::kCPU), down(kInner, kWidth, at::kCPU);
    const at::Tensor gates = weight_of(gate_up, comm.rank()), out = weight_of(down, 10 + comm.rank());
    for (const int64_t tokens : {8, 7, 1}) {
      const int64_t own = across->own_rows(tokens);
      const auto rows = [&](double seed) {
        const at::Tensor all =
            at::cat({values({tokens, kWidth}, seed), at::zeros({own * comm.ranks() - tokens, kWidth})});
        return all.narrow(0, comm.rank() * own, own).clone();
      };
      // The result and the gradients of what goes in and of the weights.
      const auto run = [&](const at::Tensor& input, const auto& work) {
        const at::Tensor x = input.clone().requires_grad_();
        for (const at::Tensor& weight : {gates, out}) weight.mutable_grad() = at::zeros_like(weight);
        const at::Tensor y = work(x);
        y.backward(values(y.sizes(), 3));
        return std::vector<at::Tensor>{y.detach(), x.grad(), gates.grad().clone(), out.grad().clone()};
      };
      const auto compare = [&](const char* what, const at::Tensor& input, const auto& work, const auto& plain) {
        const std::vector<at::Tensor> got = run(input, work), wanted = run(input, plain);
        for (size_t i = 0; i < got.size(); ++i) expect_equal_but_order(got[i], wanted[i], what, tokens);
      };
      compare(
          "enter_linear", rows(1), [&](const at::Tensor& x) { return nn::enter_linear(*across, x, tokens, gate_up); },
          [&](const at::Tensor& x) { return gate_up.forward(across->enter(x, tokens)); });
      compare(
          "linear_leave", values({tokens, kInner}, 2),
          [&](const at::Tensor& x) { return ops::add_pieces({}, nn::linear_leave(*across, x, down)); },
          [&](const at::Tensor& x) { return ops::add_pieces({}, across->leave(down.forward(x))); });
      compare(
          "swiglu_across", rows(4),
          [&](const at::Tensor& x) {
            return ops::add_pieces({}, nn::swiglu_across(*across, x, tokens, gate_up, down));
          },
          [&](const at::Tensor& x) {
            const at::Tensor act = ops::swiglu(gate_up.forward(across->enter(x, tokens)));
            return ops::add_pieces({}, across->leave(down.forward(act)));
          });
      // Rows without a gradient, as of a frozen embedding: those of the weights are the same.
      const auto weights_alone = [&](const at::Tensor& y) {
        for (const at::Tensor& weight : {gates, out}) weight.mutable_grad() = at::zeros_like(weight);
        y.backward(values(y.sizes(), 3));
        return std::vector<at::Tensor>{gates.grad().clone(), out.grad().clone()};
      };
      const auto got = weights_alone(ops::add_pieces({}, nn::swiglu_across(*across, rows(4), tokens, gate_up, down)));
      const auto wanted = weights_alone(ops::add_pieces(
          {}, across->leave(down.forward(ops::swiglu(gate_up.forward(across->enter(rows(4), tokens)))))));
      for (size_t i = 0; i < got.size(); ++i) expect_equal_but_order(got[i], wanted[i], "frozen rows", tokens);
      const at::NoGradGuard no_grad;
      const at::Tensor act = ops::swiglu(gate_up.forward(across->enter(rows(4), tokens)));
      expect_equal_but_order(ops::add_pieces({}, nn::swiglu_across(*across, rows(4), tokens, gate_up, down)),
                             ops::add_pieces({}, across->leave(down.forward(act))), "swiglu_across without gradient",
                             tokens);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, TensorAcross,
                         testing::Values(test::Ranks{test::Kind::threads, 2}, test::Ranks{test::Kind::threads, 3},
                                         test::Ranks{test::Kind::gloo, 2}));

}  // namespace
}  // namespace hrm
