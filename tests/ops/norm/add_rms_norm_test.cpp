#include "hrm/ops/add_rms_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace hrm {
namespace {

at::Tensor draws(at::IntArrayRef sizes, double seed) {
  return at::sin(at::arange(c10::multiply_integers(sizes), at::kFloat) * 1.7 + seed).view(sizes);
}

TEST(AddPieces, AddsInOrderInFloatAndRoundsOnce) {
  const at::Tensor residual = draws({6, 8}, 0).to(at::kBFloat16), pieces = draws({3, 6, 8}, 1).to(at::kBFloat16);
  at::Tensor wide = residual.to(at::kFloat);
  for (int64_t part = 0; part < 3; ++part) wide = wide + pieces[part].to(at::kFloat);
  EXPECT_TRUE(at::equal(ops::add_pieces(residual, {pieces}), wide.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(ops::add_pieces({}, {pieces.narrow(0, 0, 1)}), pieces[0]));
  EXPECT_THROW(ops::add_pieces(residual, {pieces[0]}), c10::Error);
  EXPECT_THROW(ops::add_pieces(residual.narrow(0, 0, 5), {pieces}), c10::Error);
}

// No kernel of the CPU prepares a norm; the sums are the same.
TEST(AddPieces, OfADecodingStep) {
  const at::Tensor residual = draws({6, 64}, 0).to(at::kBFloat16), pieces = draws({2, 6, 64}, 1).to(at::kBFloat16);
  const at::Tensor norm = draws({64}, 2);
  for (const at::Tensor& next : {norm, at::Tensor()}) {
    const ops::DecodedAhead made = ops::add_pieces_ahead(residual, {pieces}, next);
    EXPECT_TRUE(at::equal(made.y, ops::add_pieces(residual, {pieces})));
    EXPECT_FALSE(made.ahead.scaled.defined());
  }
  EXPECT_THROW(ops::add_pieces_ahead(residual, {pieces}, norm.narrow(0, 0, 63)), c10::Error);
  EXPECT_THROW(ops::add_pieces_ahead(residual, {pieces}, norm.to(at::kDouble)), c10::Error);
}

TEST(AddPieces, EveryPieceGetsTheGradient) {
  const at::Tensor residual = draws({6, 8}, 0).requires_grad_(), pieces = draws({3, 6, 8}, 1).requires_grad_();
  const at::Tensor gradient = draws({6, 8}, 2);
  ops::add_pieces(residual, {pieces}).backward(gradient);
  EXPECT_TRUE(at::equal(residual.grad(), gradient));
  EXPECT_TRUE(at::equal(pieces.grad(), gradient.expand({3, 6, 8})));
}

TEST(AddRmsNorm, IsTheNormOfTheSum) {
  const at::Tensor residual = draws({6, 8}, 0), pieces = draws({2, 6, 8}, 1), weight = draws({8}, 3);
  const ops::NormedStream out = ops::add_rms_norm(residual, {pieces}, weight, 1e-6);
  const at::Tensor sum = residual + pieces[0] + pieces[1];
  EXPECT_TRUE(at::equal(out.x, sum));
  EXPECT_TRUE(at::equal(out.y, ops::weighted_rms_norm(sum, weight, 1e-6)));
}

}  // namespace
}  // namespace hrm
