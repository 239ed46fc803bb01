// Which writers overwrite a stale gradient, and which find it cleared.

#include "hrm/ops/stale_gradient.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "hrm/ops/linear.h"
#include "hrm/ops/linear_add.h"

namespace hrm::ops {
namespace {

struct Weight {
  Weight() {
    leaf = at::ones({3, 4}).set_requires_grad(true);
    leaf.mutable_grad() = at::zeros({3, 4});
    allow_stale(leaf.grad());
  }
  // NaN in it shows what is read.
  void discard() {
    leaf.grad().fill_(std::numeric_limits<float>::quiet_NaN());
    discard_gradient_(leaf.grad());
  }
  at::Tensor leaf;
};

TEST(StaleGradient, TheFirstProductOverwritesTheSecondAdds) {
  Weight weight;
  const at::Tensor x = at::arange(8, at::kFloat).view({2, 4});
  for (int step = 0; step < 2; ++step) {
    weight.discard();
    EXPECT_TRUE(at::isnan(weight.leaf.grad()).all().item<bool>()) << "nothing is cleared";
    linear(x, weight.leaf.detach(), weight.leaf).sum().backward();
    const at::Tensor once = at::ones({3, 2}).mm(x);
    EXPECT_TRUE(at::equal(weight.leaf.grad(), once));
    linear_add(x, weight.leaf.detach(), weight.leaf, at::zeros({2, 3})).sum().backward();
    EXPECT_TRUE(at::equal(weight.leaf.grad(), 2 * once));
  }
}

TEST(StaleGradient, WhoAddsFindsItCleared) {
  Weight weight;
  weight.discard();
  EXPECT_EQ(stale_gradient_buffer(weight.leaf).sum().isnan().item<bool>(), true);
  EXPECT_EQ(gradient_buffer(weight.leaf).abs().sum().item<float>(), 0);
  EXPECT_FALSE(take_stale(weight.leaf.grad()));
  // That pass may write it later, so that its memory must be cleared even if others had it meanwhile.
  weight.discard();
  EXPECT_EQ(weight.leaf.grad().abs().sum().item<float>(), 0);
  forget_passes(weight.leaf.grad());
  weight.discard();
  EXPECT_TRUE(take_stale(weight.leaf.grad()));
}

TEST(StaleGradient, SettlesWhatNobodyWrote) {
  Weight weight;
  weight.discard();
  settle_gradient_(weight.leaf.grad());
  EXPECT_EQ(weight.leaf.grad().abs().sum().item<float>(), 0);
  weight.leaf.grad().fill_(2);
  settle_gradient_(weight.leaf.grad());
  EXPECT_EQ(weight.leaf.grad().sum().item<float>(), 24) << "it is no longer stale";
}

TEST(StaleGradient, OtherTensorsAreCleared) {
  const at::Tensor plain = at::ones({3}), view = Weight().leaf.grad().view({-1});
  discard_gradient_(plain);
  EXPECT_EQ(plain.sum().item<float>(), 0);
  EXPECT_FALSE(take_stale(plain));
  view.fill_(1);
  discard_gradient_(view);
  EXPECT_EQ(view.sum().item<float>(), 0) << "the mark is that of the tensor, not of its memory";
  settle_gradient_({});
  EXPECT_FALSE(take_stale({}));
}

}  // namespace
}  // namespace hrm::ops
