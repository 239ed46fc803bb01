#pragma once
// A recurrent module in 8 bits against itself in the compute dtype, on any device.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "hrm/base/error.h"
#include "hrm/nn/block.h"
#include "hrm/nn/fp8.h"
#include "hrm/ops/backend.h"

namespace hrm::nn::testing {

// Two levels of two blocks each, as HRM has them.
struct Fp8Model : torch::nn::Module {
  Fp8Model(const BlockSizes& sizes, at::Device device, at::ScalarType compute) {
    const RotaryTable table =
        sizes.mlp_t ? RotaryTable{} : make_rotary_table(sizes.positions, sizes.width / sizes.heads, 10000, device);
    for (const char* name : {"H_level", "L_level"}) {
      levels.push_back(register_module(name, std::make_shared<ReasoningModule>(2, sizes, table, device)));
    }
    const at::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(7);
    for (const auto& item : named_parameters()) {
      const double scale = 1 / std::sqrt(static_cast<double>(item.value().size(1)));
      at::Tensor weight = item.value();
      weight.copy_(at::randn(weight.sizes(), generator, at::kFloat) * scale);
    }
    parameters.build(*this, compute);
  }
  std::vector<std::shared_ptr<ReasoningModule>> levels;
  ParameterSet parameters;
};

inline double relative_distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor want = b.to(at::kCPU, at::kDouble);
  return (a.to(at::kCPU, at::kDouble) - want).norm().item<double>() / (want.norm().item<double>() + 1e-30);
}

// The result of both levels in turn, twice.
inline at::Tensor recurse(const Fp8Model& model, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  at::Tensor z_H = x, z_L = x.flip({0});
  for (int i = 0; i < 2; ++i) {
    z_L = model.levels[1]->recur(z_L, z_H + x);
    z_H = model.levels[0]->recur(z_H, z_L);
  }
  return z_H;
}

inline at::Tensor fp8_input(int64_t batch, const BlockSizes& sizes, at::Device device, at::ScalarType compute) {
  auto generator = at::detail::createCPUGenerator(5);
  return at::randn({batch, sizes.positions, sizes.width}, generator, at::kFloat).to(device, compute);
}

inline void check_fp8_level(int64_t batch, const BlockSizes& sizes, at::Device device, at::ScalarType compute) {
  const std::string what = cat(compute, " width ", sizes.width, " positions ", sizes.positions, " mlp_t ", sizes.mlp_t);
  Fp8Model model(sizes, device, compute);
  const at::NoGradGuard no_grad;
  const at::Tensor x = fp8_input(batch, sizes, device, compute);
  // Recursions at random weights magnify whatever is rounded. e4m3 has 3 bits of mantissa, bfloat16 has 7.
  const auto result_in = [&](at::ScalarType type) {
    model.parameters.build(model, type);
    return recurse(model, x.to(type));
  };
  const double allowed = 16 * relative_distance(result_in(at::kBFloat16), result_in(at::kFloat));
  EXPECT_LT(allowed, 1) << what;
  const at::Tensor want = result_in(compute);
  const at::Tensor want_level = model.levels[0]->recur(x, x);
  Fp8Recursions fp8(model, /*history=*/4, /*margin=*/0);
  EXPECT_EQ(fp8.weights(), sizes.mlp_t ? 8 : 16);
  EXPECT_EQ(fp8.slots().size(0), sizes.mlp_t ? 16 : 32);
  EXPECT_TRUE(at::equal(recurse(model, x), want)) << what << ": not yet active";

  fp8.calibrate_weights();
  fp8.set_active(true);
  at::Tensor first, second;
  for (int step = 0; step < 2; ++step) {
    fp8.quantize_weights();
    const at::Tensor got = recurse(model, x);
    EXPECT_EQ(got.scalar_type(), compute);
    const double distance = relative_distance(got, want);
    EXPECT_LT(distance, allowed) << what << ", step " << step;
    EXPECT_LT(relative_distance(model.levels[0]->recur(x, x), want_level), 0.15) << what << ", step " << step;
    EXPECT_GT(distance, 0.001) << what << ", step " << step << ": this is not in 8 bits";
    EXPECT_TRUE(at::equal(recurse(model, x), got)) << what << ": the same again";
    EXPECT_TRUE((fp8.slots().select(1, 2) > 0).all().item<bool>()) << what << ": a slot that nobody writes\n"
                                                                   << fp8.slots().to(at::kCPU);
    fp8.update_scales();
    (step == 0 ? first : second) = got;
  }
  // With scales of its own each tensor uses the whole range.
  const at::Tensor slots = fp8.slots().to(at::kCPU);
  EXPECT_TRUE((slots.select(1, 0) != 1).all().item<bool>()) << what << "\n" << slots;
  fp8.set_active(false);
  EXPECT_TRUE(at::equal(recurse(model, x), want)) << what << ": no longer active";
}

}  // namespace hrm::nn::testing
