#pragma once
// Checks of the optimizers' parts that hold on every device.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "hrm/base/error.h"
#include "hrm/optim/clip.h"
#include "hrm/optim/ema.h"
#include "hrm/optim/optimizer.h"
#include "hrm/optim/sparse_sign_sgd.h"

namespace hrm::optim::testing {

using config::OptimizerKind;

inline at::Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::Device device) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kFloat).to(device);
}

inline at::Tensor scalar(double value, at::Device device) {
  return at::full({}, value, at::device(device).dtype(at::kFloat));
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kCPU, at::kDouble) - b.to(at::kCPU, at::kDouble)).abs().max().item<double>();
}

struct Problem {
  std::vector<ParameterGroup> groups;
  at::Tensor lr, grad_scale, skip;
};

inline Problem make_problem(at::Device device) {
  Problem problem;
  const std::vector<std::vector<int64_t>> shapes = {{6, 4}, {5}, {}, {33, 3}};
  for (const double weight_decay : {0.1, 0.0}) {
    ParameterGroup group;
    group.weight_decay = weight_decay;
    for (size_t i = 0; i < shapes.size(); ++i) {
      group.names.push_back(cat("p", weight_decay, ".", i));
      group.params.push_back(normal(shapes[i], 10 + i, device).requires_grad_());
      group.grads.push_back(at::zeros(shapes[i], at::device(device)));
    }
    problem.groups.push_back(std::move(group));
  }
  problem.lr = scalar(1e-2, device);
  problem.grad_scale = scalar(1, device);
  problem.skip = scalar(0, device);
  return problem;
}

// As a model of matrices and others: those of two dimensions are Muon's.
inline void mark_matrices(Problem& problem) {
  std::vector<ParameterGroup> split;
  for (const ParameterGroup& group : problem.groups) {
    ParameterGroup matrices, others;
    for (ParameterGroup* part : {&matrices, &others}) {
      part->weight_decay = group.weight_decay;
      part->lr_factor = group.lr_factor;
      part->matrices = part == &matrices;
      for (size_t i = 0; i < group.params.size(); ++i) {
        if ((group.params[i].dim() >= 2) != part->matrices) continue;
        part->names.push_back(group.names[i]);
        part->params.push_back(group.params[i]);
        part->grads.push_back(group.grads[i]);
      }
      split.push_back(*part);
    }
  }
  problem.groups = split;
}

inline void set_grads(Problem& problem, uint64_t step) {
  for (ParameterGroup& group : problem.groups) {
    for (size_t i = 0; i < group.grads.size(); ++i) {
      group.grads[i].copy_(normal(group.grads[i].sizes(), 100 * step + i, at::kCPU));
    }
  }
}

// One step of one tensor in float64. The gradients of make_problem leave no sign of Lion's to rounding.
inline void exact_step(const OptimizerOptions& options, at::Tensor& p, at::Tensor& m, at::Tensor& v,
                       const at::Tensor& g, double lr, double weight_decay, uint64_t t) {
  const double b1 = options.beta1, b2 = options.beta2, mu = options.momentum;
  const at::Tensor decayed = p * (1 - lr * weight_decay);
  if (options.name == OptimizerKind::lion) {
    p = decayed - lr * at::sign(b1 * m + (1 - b1) * g);
    m = b2 * m + (1 - b2) * g;
    return;
  }
  if (options.name == OptimizerKind::sgd) {
    const at::Tensor d = g + weight_decay * p;
    m = mu * m + d;
    p = p - lr * (d + mu * m);
    return;
  }
  const double c1 = 1 - std::pow(b1, static_cast<double>(t)), c2 = 1 - std::pow(b2, static_cast<double>(t));
  m = b1 * m + (1 - b1) * g;
  v = b2 * v + (1 - b2) * g * g;
  p = options.name == OptimizerKind::adamw ? decayed - lr * (m / c1) / ((v / c2).sqrt() + options.eps)
                                           : decayed - lr / c1 * at::atan2(m, v.sqrt() / std::sqrt(c2));
}

constexpr OptimizerKind kElementwise[] = {OptimizerKind::adam_atan2, OptimizerKind::adamw, OptimizerKind::lion,
                                          OptimizerKind::sgd};

// Elementwise optimizers against their equations in float64.
inline void expect_exact_steps(OptimizerKind name, at::Device device) {
  OptimizerOptions options{name, 0.9, 0.95, 1e-3};  // an eps that is seen in the result
  options.momentum = 0.8;
  Problem problem = make_problem(device);
  problem.groups[1].lr_factor = 0.25;
  const auto optimizer = make_optimizer(options, problem.groups);
  std::vector<at::Tensor> p, m, v;
  for (const ParameterGroup& group : problem.groups) {
    for (const at::Tensor& param : group.params) {
      p.push_back(param.detach().to(at::kCPU, at::kDouble).clone());
      m.push_back(at::zeros_like(p.back()));
      v.push_back(at::zeros_like(p.back()));
    }
  }
  for (uint64_t t = 1; t <= 5; ++t) {
    set_grads(problem, t);
    problem.lr.fill_(1e-2 / static_cast<double>(t));
    problem.grad_scale.fill_(t == 3 ? 0.25 : 1.0);
    const double lr = problem.lr.item<float>();
    size_t k = 0;
    for (const ParameterGroup& group : problem.groups) {
      for (const at::Tensor& grad : group.grads) {
        const at::Tensor g = grad.to(at::kCPU, at::kDouble) * problem.grad_scale.item<double>();
        exact_step(options, p[k], m[k], v[k], g, lr * group.lr_factor, group.weight_decay, t);
        ++k;
      }
    }
    optimizer->step(problem.lr, problem.grad_scale, problem.skip);
  }
  size_t k = 0;
  for (const ParameterGroup& group : problem.groups) {
    for (const at::Tensor& param : group.params) {
      EXPECT_LE(largest_difference(param.detach(), p[k]), 2e-6) << name << " " << k;
      ++k;
    }
  }
  const std::vector<std::string> moments = moment_names(name);
  StateListing state = list_state(*optimizer);
  ASSERT_EQ(state.tensors.size(), 1 + moments.size() * p.size());
  EXPECT_EQ(state.tensors[0].name, "optim.step");
  EXPECT_EQ(state.tensors[0].tensor.item<float>(), 5);
  for (size_t kind = 0; kind < moments.size(); ++kind) {
    EXPECT_EQ(state.tensors[1 + kind].name, "optim.p0.1.0." + moments[kind]);
    EXPECT_LE(largest_difference(state.tensors[1 + kind].tensor, kind == 0 ? m[0] : v[0]), 1e-6) << name;
  }
}

// A left-out step changes neither parameters nor state.
inline void expect_skip(OptimizerKind name, at::Device device) {
  Problem problem = make_problem(device);
  if (name == OptimizerKind::muon) mark_matrices(problem);
  const auto optimizer = make_optimizer({name, 0.9, 0.95, 1e-8}, problem.groups);
  set_grads(problem, 1);
  const at::Tensor ratio = at::zeros({}, at::device(device).dtype(at::kDouble));
  optimizer->step(problem.lr, problem.grad_scale, problem.skip, ratio);
  EXPECT_GT(ratio.item<double>(), 0) << name;
  const auto everything = [&] {
    std::vector<at::Tensor> out;
    for (const TensorEntry& entry : list_state(*optimizer).tensors) out.push_back(entry.tensor.clone());
    for (const ParameterGroup& group : problem.groups) {
      for (const at::Tensor& param : group.params) out.push_back(param.detach().clone());
    }
    return out;
  };
  const auto before = everything();
  for (const double flag : {1.0, 2.0, static_cast<double>(NAN)}) {
    for (ParameterGroup& group : problem.groups) {
      for (at::Tensor& grad : group.grads) grad.fill_(NAN);
    }
    problem.grad_scale.fill_(NAN);
    problem.skip.fill_(flag);
    optimizer->step(problem.lr, problem.grad_scale, problem.skip, ratio);
    EXPECT_EQ(ratio.item<double>(), 0) << name;
    const auto after = everything();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(after[i], before[i])) << name << " " << i;
  }
  set_grads(problem, 2);
  problem.grad_scale.fill_(1);
  problem.skip.fill_(0);
  optimizer->step(problem.lr, problem.grad_scale, problem.skip);
  EXPECT_EQ(list_state(*optimizer).tensors[0].tensor.item<float>(), 2);
  EXPECT_FALSE(at::equal(everything()[1], before[1]));
}

// The sparse update against a loop over ids. Gradients are multiples of 1/8, so that sums are exact in any order and
// some are exactly zero.
inline void expect_sparse_sign(int64_t entries, int64_t rows, at::ScalarType id_type, at::Device device,
                               int64_t width = 6) {
  const double lr = 0.125, weight_decay = 0.5;
  at::Tensor weights = normal({entries, width}, 1, device);
  auto generator = at::detail::createCPUGenerator(2);
  const at::Tensor ids = at::randint(entries, {rows}, generator, at::kLong);
  const at::Tensor grads = (normal({rows, width}, 3, at::kCPU) * 8).round() / 8;
  const at::Tensor before = weights.cpu().clone();
  at::Tensor expected = before.clone();
  const auto* id = ids.const_data_ptr<int64_t>();
  const std::set<int64_t> touched(id, id + rows);
  for (const int64_t u : touched) {
    const at::Tensor sum = grads.index({ids.eq(u)}).sum(0);
    expected[u] = before[u] * (1 - lr * weight_decay) - lr * at::sign(sum);
  }
  const at::Tensor device_ids = ids.to(device, id_type), device_grads = grads.to(device);
  const at::Tensor start = weights.clone();
  sparse_sign_sgd_(weights, device_ids, device_grads, scalar(lr, device), weight_decay, scalar(0, device));
  const at::Tensor result = weights.cpu();
  EXPECT_LE(largest_difference(result, expected), 1e-6) << entries << " entries, " << rows << " rows";
  for (int64_t u = 0; u < entries; ++u) {
    if (touched.count(u) > 0) continue;
    EXPECT_TRUE(at::equal(result[u], before[u])) << "untouched row " << u;
  }
  at::Tensor again = start.clone();
  sparse_sign_sgd_(again, device_ids, device_grads, scalar(lr, device), weight_decay, scalar(0, device));
  EXPECT_TRUE(at::equal(again, weights)) << "the same bits each time";
  again.copy_(start);
  sparse_sign_sgd_(again, device_ids, device_grads * NAN, scalar(lr, device), weight_decay, scalar(1, device));
  EXPECT_TRUE(at::equal(again, start)) << "a left-out step";
}

inline void expect_sparse_signs(at::Device device) {
  expect_sparse_sign(1, 64, at::kInt, device);
  expect_sparse_sign(2, 1, at::kInt, device);
  expect_sparse_sign(5, 64, at::kInt, device);
  expect_sparse_sign(1000, 64, at::kLong, device);
  expect_sparse_sign(100, 700, at::kLong, device);
  // Wide rows, and more of them than one round of the kernel takes.
  expect_sparse_sign(1, 768, at::kInt, device, 512);
  expect_sparse_sign(1, 3, at::kLong, device, 13);
  expect_sparse_sign(3, 1500, at::kInt, device, 130);
  expect_sparse_sign(7, 1000, at::kLong, device, 512);
  expect_sparse_sign(16, 3, at::kInt, device, 512);
  expect_sparse_sign(17, 600, at::kLong, device, 512);
  expect_sparse_sign(900, 770, at::kInt, device, 132);
  expect_sparse_sign(4000, 2000, at::kInt, device, 65);
}

inline void expect_norm(const std::vector<at::Tensor>& grads, double max_norm, double type, double expected,
                        double coef, double nonfinite) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& grad : grads) flat.push_back(grad.reshape({-1}));
  const GradNorm norm = global_norm(at::cat(flat), max_norm, type);
  ASSERT_EQ(norm.norm.dim() + norm.coef.dim() + norm.nonfinite.dim(), 0);
  ASSERT_EQ(norm.coef.scalar_type(), at::kFloat);
  ASSERT_EQ(norm.nonfinite.scalar_type(), at::kFloat);
  ASSERT_EQ(norm.norm.device(), grads[0].device());
  const double value = norm.norm.item<double>();
  if (std::isfinite(expected)) {
    EXPECT_NEAR(value, expected, 1e-6 * expected);
    EXPECT_NEAR(norm.coef.item<double>(), coef, 1e-6 * coef);
  } else if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(value) && std::isnan(norm.coef.item<double>()) == (max_norm > 0));
  } else {
    EXPECT_EQ(value, expected);
    EXPECT_EQ(norm.coef.item<double>(), coef);
  }
  EXPECT_EQ(norm.nonfinite.item<double>(), nonfinite);
}

inline void expect_norms(at::Device device) {
  const at::Tensor a = at::tensor({3.0f, 0.0f}).to(device), b = at::tensor({-4.0f}).to(device);
  expect_norm({a, b}, 0, 2, 5, 1, 0);
  expect_norm({a, b}, 10, 2, 5, 1, 0);
  expect_norm({a, b}, 1, 2, 5, 1 / 5.000001, 0);
  expect_norm({a, b}, 1, 1, 7, 1 / 7.000001, 0);
  expect_norm({a, b}, 1, INFINITY, 4, 1 / 4.000001, 0);
  expect_norm({a * 0, b * 0}, 1, 2, 0, 1, 0);
  expect_norm({a, b * INFINITY}, 1, 2, INFINITY, 0, 1);
  expect_norm({a, b * INFINITY}, 0, 2, INFINITY, 1, 1);
  expect_norm({a * NAN, b}, 1, 2, NAN, NAN, 1);
}

}  // namespace hrm::optim::testing
