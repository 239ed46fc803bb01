// On the CPU a captured step is the work itself.
#include "hrm/runtime/captured_step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace hrm {
namespace {

TEST(CapturedStep, RunsTheWorkOnTheCpu) {
  CapturedStep step({.name = "test"});
  at::Tensor sum = at::zeros({3});
  const at::Tensor input = at::ones({3});
  for (int i = 0; i < 7; ++i) step.run({3}, {input}, [&] { sum.add_(input); });
  EXPECT_EQ(sum[0].item<float>(), 7);
  EXPECT_FALSE(step.captured({3}));
  EXPECT_EQ(step.replays(), 0);
  EXPECT_EQ(step.reason(), "");
}

TEST(CapturedStep, ExceptionsOfTheWorkPass) {
  CapturedStep step({.name = "test"});
  EXPECT_THROW(step.run({}, {}, [] { throw std::runtime_error("from the work"); }), std::runtime_error);
}

}  // namespace
}  // namespace hrm
