#pragma once
// Checks of Muon that hold on every device.

#include "hrm/optim/muon.h"
#include "optim/ema_cases.h"
#include "optim/optim_cases.h"

namespace hrm::optim::testing {

using config::MuonPrecision;
using config::MuonScale;

// The iteration as it is published, in float64: tall matrices are transposed.
inline at::Tensor exact_newton_schulz(const at::Tensor& matrices) {
  at::Tensor x = matrices.to(at::kCPU, at::kDouble);
  const bool tall = x.size(-2) > x.size(-1);
  if (tall) x = x.transpose(-2, -1);
  x = x / (at::linalg_vector_norm(x, 2, {-2, -1}, /*keepdim=*/true) + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = at::matmul(x, x.transpose(-2, -1));
    x = 3.4445 * x + at::matmul(-4.7750 * a + 2.0315 * at::matmul(a, a), x);
  }
  return tall ? x.transpose(-2, -1) : x;
}

inline void expect_newton_schulz(at::Device device) {
  const std::vector<std::vector<int64_t>> shapes = {{2, 24, 16}, {3, 16, 24}, {1, 8, 8},  {1, 1, 5},
                                                    {2, 5, 1},   {1, 1, 1},   {2, 97, 33}};
  for (const auto& shape : shapes) {
    const at::Tensor u = normal(shape, 7, device);
    const at::Tensor kept = u.clone(), exact = exact_newton_schulz(u);
    EXPECT_LE(largest_difference(newton_schulz(u, at::kFloat), exact), 2e-5) << u.sizes();
    EXPECT_TRUE(at::equal(u, kept)) << "the matrices are only read";
    // Eight bits of mantissa, through fifteen products; singular values stay in their band.
    const at::Tensor low = newton_schulz(u, at::kBFloat16);
    EXPECT_EQ(low.scalar_type(), at::kFloat);
    EXPECT_LE(largest_difference(low, exact), 0.06) << u.sizes();
    EXPECT_GT(largest_difference(low, exact), 0) << "the iteration was to be in bfloat16";
  }
  const at::Tensor mixed = at::cat({normal({1, 6, 4}, 8, device), at::zeros({1, 6, 4}, at::device(device))});
  const at::Tensor result = newton_schulz(mixed, at::kFloat);
  EXPECT_EQ(result[1].abs().max().item<double>(), 0) << "a zero matrix stays zero";
  EXPECT_TRUE(at::equal(newton_schulz(mixed[0], at::kFloat), newton_schulz(mixed.narrow(0, 0, 1), at::kFloat)[0]));
  // Sizes do not count, directions do: singular values end near 1.
  const at::Tensor square = normal({40, 30}, 9, device);
  EXPECT_LE(largest_difference(newton_schulz(square * 1000, at::kFloat), newton_schulz(square, at::kFloat)), 1e-4);
  const at::Tensor values = at::linalg_svdvals(newton_schulz(square, at::kFloat).to(at::kCPU, at::kDouble));
  EXPECT_LT(values.max().item<double>(), 1.3);
  EXPECT_GT(values.median().item<double>(), 0.6);
}

// Matrices of several shapes, some of them equal, one of three dimensions; more than one group; others beside them.
inline Problem muon_problem(at::Device device) {
  Problem problem = make_problem(device);
  const auto add = [&](ParameterGroup& group, const std::string& name, at::IntArrayRef sizes) {
    group.names.push_back(name);
    group.params.push_back(normal(sizes, 40 + group.names.size(), device).requires_grad_());
    group.grads.push_back(at::zeros(sizes, at::device(device)));
  };
  add(problem.groups[0], "again", {6, 4});
  add(problem.groups[0], "convolution", {6, 2, 2});
  add(problem.groups[1], "wide", {5, 12});
  mark_matrices(problem);
  problem.groups[2].lr_factor = 0.5;
  problem.groups[3].lr_factor = 0.5;
  return problem;
}

// Muon and the AdamW beside it against their equations in float64, with a ratio over all parameters.
inline void expect_muon_steps(at::Device device, MuonScale scale, int64_t stack = kMuonStackElements) {
  OptimizerOptions options{OptimizerKind::muon, 0.9, 0.95, 1e-3};
  options.momentum = 0.9;
  options.muon_scale = scale;
  options.muon_precision = MuonPrecision::fp32;
  options.adamw_lr_ratio = 0.3;
  options.muon_stack = stack;
  OptimizerOptions adamw = options;
  adamw.name = OptimizerKind::adamw;
  Problem problem = muon_problem(device);
  const auto optimizer = make_optimizer(options, problem.groups);
  std::vector<at::Tensor> p, m, v;
  for (const ParameterGroup& group : problem.groups) {
    for (const at::Tensor& param : group.params) {
      p.push_back(param.detach().to(at::kCPU, at::kDouble).clone());
      m.push_back(at::zeros_like(p.back()));
      v.push_back(at::zeros_like(p.back()));
    }
  }
  const at::Tensor ratio = at::zeros({}, at::device(device).dtype(at::kDouble));
  for (uint64_t t = 1; t <= 4; ++t) {
    set_grads(problem, t);
    problem.lr.fill_(1e-2 / static_cast<double>(t));
    problem.grad_scale.fill_(t == 3 ? 0.25 : 1.0);
    const double lr = problem.lr.item<float>();
    double moved = 0, size = 0;
    size_t k = 0;
    for (const ParameterGroup& group : problem.groups) {
      for (const at::Tensor& grad : group.grads) {
        const at::Tensor g = grad.to(at::kCPU, at::kDouble) * problem.grad_scale.item<double>();
        const at::Tensor before = p[k].clone();
        if (group.matrices) {
          m[k] = 0.9 * m[k] + 0.1 * g;
          const int64_t rows = g.size(0), columns = g.numel() / rows;
          const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
          const double s =
              scale == MuonScale::original ? std::sqrt(std::max(1.0, r / c)) : 0.2 * std::sqrt(std::max(r, c));
          const at::Tensor u = (0.1 * g + 0.9 * m[k]).view({rows, columns});
          const double rate = lr * group.lr_factor;
          p[k] = p[k] * (1 - rate * group.weight_decay) - rate * s * exact_newton_schulz(u).view(g.sizes());
        } else {
          exact_step(adamw, p[k], m[k], v[k], g, lr * 0.3 * group.lr_factor, group.weight_decay, t);
        }
        moved += (p[k] - before).square().sum().item<double>();
        size += before.square().sum().item<double>();
        ++k;
      }
    }
    optimizer->step(problem.lr, problem.grad_scale, problem.skip, ratio);
    EXPECT_NEAR(ratio.item<double>(), std::sqrt(moved / size), 1e-4 * std::sqrt(moved / size))
        << scale << " step " << t;
  }
  size_t k = 0;
  for (const ParameterGroup& group : problem.groups) {
    for (size_t i = 0; i < group.params.size(); ++i, ++k) {
      EXPECT_LE(largest_difference(group.params[i].detach(), p[k]), 3e-6) << scale << " " << group.names[i];
    }
  }
  std::map<std::string, at::Tensor> state;
  for (const TensorEntry& entry : list_state(*optimizer).tensors) state[entry.name] = entry.tensor;
  ASSERT_EQ(state.size(), 1u + 7 + 2 * 4) << "one momentum of each matrix, two moments of the others";
  EXPECT_EQ(state.at("optim.step").item<float>(), 4);
  EXPECT_LE(largest_difference(state.at("optim.p0.1.0.momentum"), m[0]), 1e-6);
}

// Averages and compute copies follow in Muon's own pass; squares in place of the ratio; a set of matrices alone.
inline void expect_muon_follows(at::Device device) {
  TinyLayer layer(device);
  nn::ParameterSet parameters;
  parameters.build(layer, at::kBFloat16);
  Ema ema(parameters, 0.9);
  const ParameterGroup all = group_of(parameters, 0, &ema);
  ParameterGroup matrices;
  const at::Tensor second = at::zeros({2, 5}, at::device(device));  // a stack of its own, which does not move
  matrices.names = {all.names[0], "second"};
  matrices.params = {all.params[0], second};
  matrices.grads = {all.grads[0], at::zeros_like(second)};
  matrices.averages = {all.averages[0], at::zeros_like(second)};
  matrices.copies = {all.copies[0], second};
  matrices.matrices = true;
  const auto optimizer = make_optimizer({.name = OptimizerKind::muon, .average_decay = 0.9}, {matrices});
  const at::Tensor squares = at::zeros({2}, at::device(device).dtype(at::kDouble));
  at::Tensor average = ema.shadows()[0].to(at::kCPU, at::kDouble);
  for (uint64_t t = 1; t <= 3; ++t) {
    layer.weight.mutable_grad().copy_(normal({4, 3}, t, at::kCPU));
    const at::Tensor before = layer.weight.detach().to(at::kCPU, at::kDouble);
    optimizer->step(scalar(0.1, device), scalar(1, device), scalar(0, device), squares);
    const at::Tensor after = layer.weight.detach().to(at::kCPU, at::kDouble);
    average = 0.9 * average + 0.1 * after;
    EXPECT_NEAR(squares[0].item<double>(), (after - before).square().sum().item<double>(), 1e-6);
    EXPECT_NEAR(squares[1].item<double>(), before.square().sum().item<double>(), 1e-5);
    EXPECT_TRUE(at::equal(layer.compute, layer.weight.detach().to(at::kBFloat16)));
  }
  EXPECT_LE(largest_difference(ema.shadows()[0], average), 1e-6);
  const auto state = list_state(*optimizer).tensors;
  EXPECT_EQ(second.abs().max().item<double>(), 0);
  ASSERT_EQ(state.size(), 3u);
  EXPECT_EQ(state[0].name, "optim.step");
  EXPECT_EQ(state[0].tensor.item<float>(), 3) << "each step counts once, whatever it is made of";
}

// Experts below each other in one parameter are updated as matrices of their own.
inline void expect_muon_takes_stacks_apart(at::Device device) {
  const int64_t experts = 3, rows = 6, columns = 4;
  const at::Tensor start = normal({experts * rows, columns}, 1, device), grad = normal(start.sizes(), 2, device);
  ParameterGroup whole;
  whole.names = {"experts"};
  whole.params = {start.clone()};
  whole.grads = {grad};
  whole.weight_decay = 0.1;
  whole.matrices = experts;
  ParameterGroup parts = whole, one = whole;
  parts.names.clear();
  parts.params.clear();
  parts.grads.clear();
  parts.matrices = one.matrices = 1;
  one.params = {start.clone()};
  for (int64_t e = 0; e < experts; ++e) {
    parts.names.push_back(cat("expert", e));
    parts.params.push_back(start.narrow(0, e * rows, rows).clone());
    parts.grads.push_back(grad.narrow(0, e * rows, rows).clone());
  }
  for (ParameterGroup* group : {&whole, &parts, &one}) {
    const auto optimizer =
        make_optimizer({.name = OptimizerKind::muon, .muon_precision = MuonPrecision::fp32}, {*group});
    for (int step = 0; step < 2; ++step) optimizer->step(scalar(0.1, device), scalar(1, device), scalar(0, device), {});
  }
  EXPECT_TRUE(at::equal(whole.params[0], at::cat(parts.params)));
  EXPECT_FALSE(at::equal(whole.params[0], one.params[0]));
}

}  // namespace hrm::optim::testing
