#include "hrm/optim/ema.h"

#include "optim/ema_cases.h"

namespace hrm::optim {
namespace {

using namespace testing;  // NOLINT

TEST(Ema, AveragesAndSwaps) {
  expect_average(at::kCPU);
}

TEST(Ema, SwapIsUndoneByAnException) {
  TinyLayer layer(at::kCPU);
  nn::ParameterSet parameters;
  parameters.build(layer, at::kFloat);
  Ema ema(parameters, 0.5);
  {
    const at::NoGradGuard no_grad;
    layer.weight.add_(1);
  }
  const at::Tensor raw = layer.weight.detach().clone();
  EXPECT_THROW(
      {
        const EmaSwap swap(ema, parameters);
        EXPECT_FALSE(at::equal(layer.weight.detach(), raw));
        fail(ExitCode::data, "while evaluating");
      },
      Error);
  EXPECT_TRUE(at::equal(layer.weight.detach(), raw));
}

TEST(Ema, StateIsListed) {
  TinyLayer layer(at::kCPU);
  nn::ParameterSet parameters;
  parameters.build(layer, at::kFloat);
  Ema ema(parameters, 0.5);
  const StateListing state = list_state(ema);
  ASSERT_EQ(state.tensors.size(), 2u);
  EXPECT_EQ(state.tensors[0].name, "ema.weight");
  EXPECT_EQ(state.tensors[1].name, "ema.bias");
  EXPECT_EQ(state.tensors[0].role, StateRole::ema);
}

TEST(Ema, DecayOutsideItsRangeIsRefused) {
  TinyLayer layer(at::kCPU);
  nn::ParameterSet parameters;
  parameters.build(layer, at::kFloat);
  for (const double decay : {0.0, 1.0, -0.5}) EXPECT_THROW(Ema(parameters, decay), Error) << decay;
}

}  // namespace
}  // namespace hrm::optim
