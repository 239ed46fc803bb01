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

// Of the weight alone; what the others have comes by the callback, which an exception leaves out.
TEST(Ema, OfParts) {
  TinyLayer layer(at::kCPU);
  nn::ParameterSet parameters;
  parameters.build(layer, at::kBFloat16);
  const at::Tensor part = layer.weight.detach().view(-1).narrow(0, 2, 5), shadow = at::zeros({5});
  Ema ema({part}, {shadow}, 0.5);
  EXPECT_TRUE(at::equal(shadow, part)) << "begins as the masters are";
  EXPECT_TRUE(list_state(ema).tensors.empty());
  shadow.fill_(3);
  const at::Tensor raw = layer.weight.detach().clone();
  std::vector<float> seen;
  const auto share = [&] { seen.push_back(part[0].item<float>()); };
  {
    const EmaSwap swap(ema, parameters, share);
    EXPECT_TRUE(part.eq(3).all().item<bool>());
    EXPECT_TRUE(at::equal(layer.compute, layer.weight.detach().to(at::kBFloat16)));
    EXPECT_TRUE(at::equal(shadow, raw.view(-1).narrow(0, 2, 5)));
  }
  EXPECT_TRUE(at::equal(layer.weight.detach(), raw));
  EXPECT_EQ(seen, (std::vector<float>{3, raw.view(-1)[2].item<float>()}));
  EXPECT_THROW(
      {
        const EmaSwap swap(ema, parameters, share);
        fail(ExitCode::data, "while evaluating");
      },
      Error);
  EXPECT_EQ(seen.size(), 3u);
  // An exchange back that fails is told once.
  int calls = 0;
  EXPECT_THROW(
      {
        EmaSwap swap(ema, parameters, [&] { require(++calls == 1, ExitCode::rank_failed, "gone"); });
        swap.undo();
      },
      Error);
  EXPECT_EQ(calls, 2);
  EXPECT_THROW(Ema({part}, {}, 0.5), Error);
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
