#include "hrm/nn/gradient_ready.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include "hrm/base/error.h"
#include "hrm/nn/block.h"
#include "hrm/nn/init.h"
#include "support/expect_error.h"

namespace hrm::nn {
namespace {

constexpr int64_t kWidth = 8, kPositions = 4;
const BlockSizes kSizes{.width = kWidth, .positions = kPositions, .heads = 2};

struct ReadyNet : torch::nn::Module {
  ReadyNet() {
    table = register_parameter("table", at::randn({3, kWidth}));
    upper = register_module("upper", std::make_shared<ReasoningModule>(2, kSizes, RotaryTable{}, at::kCPU));
    lower = register_module("lower", std::make_shared<ReasoningModule>(3, kSizes, RotaryTable{}, at::kCPU));
    init_parameters(*this, 0);
    set.build(*this, at::kFloat);
  }
  GradientReady& ready() { return *set.gradient_ready(); }

  at::Tensor table;
  std::shared_ptr<ReasoningModule> upper, lower;
  ParameterSet set;
};

at::Tensor input() {
  return at::randn({2, kPositions, kWidth});
}

TEST(GradientReady, GroupsAreTheBlocksAsBackwardCompletesThem) {
  ReadyNet net;
  const auto& groups = net.ready().groups();
  EXPECT_EQ(groups, (std::vector<std::string>{"upper.layers.1", "upper.layers.0", "lower.layers.2", "lower.layers.1",
                                              "lower.layers.0"}));
  for (const Parameter& parameter : net.set.all()) {
    if (parameter.name == "table") {
      EXPECT_EQ(parameter.group, GradientReady::kNoGroup);
    } else {
      ASSERT_GE(parameter.group, 0) << parameter.name;
      EXPECT_EQ(parameter.name.find(groups[static_cast<size_t>(parameter.group)] + "."), 0u) << parameter.name;
    }
  }
}

// "layers.1" is no prefix of "layers.10".
TEST(GradientReady, GroupsOfManyLayers) {
  torch::nn::Module net;
  net.register_module("level", std::make_shared<ReasoningModule>(11, kSizes, RotaryTable{}, at::kCPU));
  ParameterSet set;
  set.build(net, at::kFloat);
  for (const Parameter& parameter : set.all()) {
    EXPECT_EQ(parameter.name.find(set.gradient_ready()->groups().at(static_cast<size_t>(parameter.group)) + "."), 0u);
  }
}

// Its gradient is not complete when that of the block is.
TEST(GradientReady, WeightSharedWithOthersIsOfNoGroup) {
  ReadyNet net;
  const at::Tensor shared = net.lower->layers()[1]->mlp().down_proj().weight();
  net.register_parameter("tied", shared);
  ParameterSet set;
  set.build(net, at::kFloat);
  int found = 0;
  for (const Parameter& parameter : set.all()) {
    const bool is_shared = parameter.master.is_same(shared);
    found += is_shared ? 1 : 0;
    EXPECT_EQ(parameter.group == GradientReady::kNoGroup, is_shared || parameter.name == "table") << parameter.name;
  }
  EXPECT_EQ(found, 1);
}

TEST(GradientReady, WithoutAListenerNothingIsRecorded) {
  ReadyNet net;
  const at::Tensor x = input().requires_grad_();
  EXPECT_TRUE(net.ready().mark(x, 0).is_same(x));
  net.ready().listen([](int) {});
  EXPECT_FALSE(net.ready().mark(x, 0).is_same(x));
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(net.ready().mark(x, 0).is_same(x));
  }
  net.ready().listen({});
  EXPECT_TRUE(net.ready().mark(x, 0).is_same(x));
}

struct CountWarnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    ++count;
    last = warning.msg();
  }
  int count = 0;
  std::string last;
};

TEST(GradientReady, TellsOfASecondUse) {
  ReadyNet net;
  std::vector<int> again;
  net.ready().listen([](int) {}, [&](int group) { again.push_back(group); });
  const at::Tensor x = input().requires_grad_();
  const at::Tensor once = net.upper->forward(x, x);
  EXPECT_TRUE(again.empty());
  net.upper->forward(once, x);
  net.upper->forward(once, x);
  EXPECT_EQ(again, (std::vector<int>{1, 0})) << "in the order of the forward pass, the second use alone";
  net.ready().listen([](int) {});
  net.upper->forward(once, x);
  net.upper->forward(once, x);
  EXPECT_EQ(again.size(), 2u);
}

// Neither the tensor nor its gradient is copied, and nothing warns.
TEST(GradientReady, MarkIsAnAlias) {
  ReadyNet net;
  CountWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  std::vector<int> reported;
  net.ready().listen([&](int group) { reported.push_back(group); });
  const at::Tensor leaf = input().requires_grad_();
  // A view that is not contiguous.
  const at::Tensor x = (leaf * 2).transpose(1, 2);
  const at::Tensor marked = net.ready().mark(x, 3);
  EXPECT_EQ(marked.const_data_ptr(), x.const_data_ptr());
  EXPECT_EQ(marked.strides(), x.strides());
  EXPECT_TRUE(marked.requires_grad());
  EXPECT_FALSE(marked.is_leaf());
  EXPECT_EQ(marked.grad_fn()->name(), "GradientMark");
  const void *before = nullptr, *after = nullptr;
  marked.register_hook([&](const at::Tensor& grad) { before = grad.const_data_ptr(); });
  x.register_hook([&](const at::Tensor& grad) { after = grad.const_data_ptr(); });
  (marked * marked).sum().backward();
  EXPECT_NE(before, nullptr);
  EXPECT_EQ(before, after);
  EXPECT_TRUE(at::equal(leaf.grad(), 8 * leaf.detach()));
  EXPECT_EQ(reported, std::vector<int>{3});
  EXPECT_EQ(warnings.count, 0) << warnings.last;
}

// A change in place of what a node behind the mark has kept is still noticed.
TEST(GradientReady, MarkSharesTheVersion) {
  ReadyNet net;
  net.ready().listen([](int) {});
  const at::Tensor x = input().requires_grad_() * 1;
  const at::Tensor y = net.ready().mark(x, 0).square();
  x.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST(GradientReady, ReportsAfterTheLastUse) {
  ReadyNet net;
  const at::Tensor x = input().requires_grad_();
  std::vector<int> reported;
  std::vector<at::Tensor> seen;
  net.ready().listen([&](int group) {
    reported.push_back(group);
    seen.push_back(net.set.flat_grad().clone());
  });
  // lower three times, upper once, as in a model of two levels.
  at::Tensor h = x;
  for (int i = 0; i < 3; ++i) h = net.lower->forward(h, x);
  net.upper->forward_first(h, x).sum().backward();
  EXPECT_EQ(reported, (std::vector<int>{0, 1, 2, 3, 4}));
  for (const Parameter& parameter : net.set.all()) {
    if (parameter.group < 0) continue;
    const at::Tensor at_report = at::as_strided(seen.at(static_cast<size_t>(parameter.group)), parameter.master.sizes(),
                                                parameter.master.strides(), parameter.master.grad().storage_offset());
    EXPECT_TRUE(at::equal(at_report, parameter.master.grad())) << parameter.name;
    EXPECT_GT(at_report.abs().max().item<float>(), 0) << parameter.name;
  }
}

// Its first use cannot be told of, so that nobody knows when the gradients are complete. The second block is told of.
TEST(GradientReady, InputWithoutGradient) {
  ReadyNet net;
  std::vector<int> reported;
  net.ready().listen([&](int group) { reported.push_back(group); });
  const at::Tensor x = input();
  net.upper->forward(net.upper->forward(x, x), x).sum().backward();
  EXPECT_EQ(reported, std::vector<int>{0});
}

// Uses whose backward pass never came do not count any more.
TEST(GradientReady, ListenForgetsEarlierUses) {
  ReadyNet net;
  const at::Tensor x = input().requires_grad_();
  std::vector<int> reported;
  const auto listener = [&](int group) { reported.push_back(group); };
  net.ready().listen(listener);
  net.upper->forward(x, x);
  net.upper->forward(x, x).sum().backward();
  EXPECT_TRUE(reported.empty()) << "two uses, one backward pass";
  net.ready().listen(listener);
  net.upper->forward(x, x).sum().backward();
  EXPECT_EQ(reported, (std::vector<int>{0, 1}));
}

TEST(GradientReady, ErrorsOfTheListenerLeaveBackward) {
  ReadyNet net;
  const at::Tensor x = input().requires_grad_();
  net.ready().listen([](int group) { fail(ExitCode::rank_failed, "group ", group, " cannot be sent"); });
  const at::Tensor y = net.upper->forward(x, x);
  test::expect_error(ExitCode::rank_failed, {"group 0 cannot be sent"}, [&] { y.sum().backward(); });
}

}  // namespace
}  // namespace hrm::nn
