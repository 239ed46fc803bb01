#pragma once
// Checks of the moving average that hold on every device.

#include <torch/nn/module.h>

#include "optim/optim_cases.h"

namespace hrm::optim::testing {

// A module whose weight asks for a compute copy.
struct TinyLayer : torch::nn::Module, nn::HasComputeWeight {
  explicit TinyLayer(at::Device device) {
    weight = register_parameter("weight", normal({4, 3}, 1, device));
    bias = register_parameter("bias", normal({4}, 2, device));
  }
  at::Tensor master_weight() const override { return weight; }
  void set_compute_weight(const at::Tensor& tensor) override { compute = tensor; }
  at::Tensor weight, bias, compute;
};

inline void expect_average(at::Device device) {
  TinyLayer layer(device);
  nn::ParameterSet parameters;
  parameters.build(layer, at::kBFloat16);
  Ema ema(parameters, 0.9);
  const auto optimizer =
      make_optimizer({.name = OptimizerKind::adamw, .average_decay = 0.9}, {group_of(parameters, 0, &ema)});
  at::Tensor expected = layer.weight.detach().to(at::kCPU, at::kDouble);
  const at::Tensor lr = scalar(0.1, device), go = scalar(0, device), stop = scalar(1, device);
  for (uint64_t step = 1; step <= 3; ++step) {
    layer.weight.mutable_grad().copy_(normal({4, 3}, 10 + step, at::kCPU));
    const at::Tensor before = layer.weight.detach().clone();
    optimizer->step(lr, scalar(1, device), go);
    ASSERT_GT(largest_difference(layer.weight.detach(), before), 0);
    expected = 0.9 * expected + 0.1 * layer.weight.detach().to(at::kCPU, at::kDouble);
    EXPECT_TRUE(at::equal(layer.compute, layer.weight.detach().to(at::kBFloat16)));
  }
  ASSERT_EQ(ema.names(), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_LE(largest_difference(ema.shadows()[0], expected), 1e-6);
  EXPECT_TRUE(at::allclose(ema.shadows()[1], layer.bias.detach())) << "what stands still is its own average";
  const at::Tensor kept = ema.shadows()[0].clone();
  optimizer->step(lr, scalar(1, device), stop);
  EXPECT_TRUE(at::equal(ema.shadows()[0], kept)) << "a left-out step";

  const at::Tensor raw = layer.weight.detach().clone(), raw_copy = layer.compute.clone();
  const void* address = layer.weight.const_data_ptr();
  {
    const EmaSwap swap(ema, parameters);
    EXPECT_TRUE(at::equal(layer.weight.detach(), kept));
    EXPECT_TRUE(at::equal(layer.compute, kept.to(at::kBFloat16)));
    EXPECT_EQ(layer.weight.const_data_ptr(), address);
  }
  EXPECT_TRUE(at::equal(layer.weight.detach(), raw));
  EXPECT_TRUE(at::equal(layer.compute, raw_copy));
  EXPECT_TRUE(at::equal(ema.shadows()[0], kept));

  ema.reset();
  EXPECT_TRUE(at::equal(ema.shadows()[0], raw));
  optimizer->step(lr, scalar(1, device), go);
  EXPECT_FALSE(at::equal(ema.shadows()[0], raw)) << "the optimizer still knows the averages";
}

}  // namespace hrm::optim::testing
