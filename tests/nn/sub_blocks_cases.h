#pragma once
// The fused sub-blocks against the plain block, on any device.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hrm/nn/block.h"
#include "hrm/nn/init.h"
#include "hrm/ops/backend.h"

namespace hrm::nn::testing {

struct BlockResult {
  at::Tensor y, first;
  std::vector<at::Tensor> grads;  // of h, then of the masters; accumulated over two backward passes
};

inline double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor want = b.to(at::kCPU, at::kDouble);
  return (a.to(at::kCPU, at::kDouble) - want).norm().item<double>() / (want.norm().item<double>() + 1e-30);
}

// One block and its parameters, computed with `backend`.
inline BlockResult run_block(ops::Backend backend, const BlockSizes& sizes, at::Device device, at::ScalarType compute,
                             const at::Tensor& x, const at::Tensor& grad_y) {
  ops::set_backend(backend);
  const RotaryTable table =
      sizes.mlp_t ? RotaryTable{} : make_rotary_table(sizes.positions, sizes.width / sizes.heads, 10000, device);
  Block block(sizes, table, device);
  init_parameters(block, 7);
  ParameterSet parameters;
  parameters.build(block, compute);
  const at::Tensor leaf = x.to(device, compute).detach().requires_grad_();
  BlockResult result;
  for (int i = 0; i < 2; ++i) {
    const at::Tensor y = block.forward(leaf);
    y.backward(grad_y.to(device, compute));
    result.y = y.detach();
  }
  result.grads.push_back(leaf.grad());
  for (const Parameter& parameter : parameters.all()) result.grads.push_back(parameter.master.grad());
  const at::NoGradGuard no_grad;
  result.first = block.forward_first(leaf);
  const at::Tensor again = block.forward(leaf);
  if (compute == at::kFloat) {
    EXPECT_TRUE(at::allclose(again, result.y, 0, 1e-5)) << "with and without gradient";
  }
  EXPECT_LT(distance(again, result.y), compute == at::kFloat ? 1e-5 : 0.01)
      << "with and without gradient, " << x.sizes() << " in " << compute;
  ops::set_backend(ops::Backend::fused);
  return result;
}

}  // namespace hrm::nn::testing
