#pragma once
// AdamATan2 beside a loop in float64 that is written from the equations alone.

#include <cmath>

#include "hrm/ops/adam_atan2.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct AdamState {
  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
  std::vector<double> weight_decay;
  at::Tensor step, lr, grad_scale, skip;
  double beta1 = 0.9, beta2 = 0.95;

  void run() {
    adam_atan2_(params, grads, exp_avgs, exp_avg_sqs, step, lr, beta1, beta2, weight_decay, grad_scale, skip);
  }
  AdamState clone() const {
    AdamState copy = *this;
    for (auto* list : {&copy.params, &copy.grads, &copy.exp_avgs, &copy.exp_avg_sqs}) {
      for (at::Tensor& tensor : *list) tensor = tensor.clone();
    }
    for (at::Tensor* tensor : {&copy.step, &copy.lr, &copy.grad_scale, &copy.skip}) *tensor = tensor->clone();
    return copy;
  }
};

inline AdamState make_adam(const std::vector<std::vector<int64_t>>& shapes, at::Device device) {
  AdamState state;
  for (size_t i = 0; i < shapes.size(); ++i) {
    state.params.push_back(normal(shapes[i], 10 + i, at::kFloat, device));
    state.grads.push_back(at::zeros(shapes[i], at::device(device)));
    state.exp_avgs.push_back(at::zeros(shapes[i], at::device(device)));
    state.exp_avg_sqs.push_back(at::zeros(shapes[i], at::device(device)));
    state.weight_decay.push_back(0.1 * static_cast<double>(i % 3));
  }
  state.step = scalar(0, device);
  state.lr = scalar(1e-2, device);
  state.grad_scale = scalar(1, device);
  state.skip = scalar(0, device);
  return state;
}

// A gradient with ordinary, tiny, huge and zero elements.
inline void set_grads(AdamState& state, int64_t step) {
  for (size_t i = 0; i < state.grads.size(); ++i) {
    at::Tensor grad = normal(state.grads[i].sizes(), 1000 * static_cast<uint64_t>(step) + i, at::kFloat).flatten();
    grad.slice(0, 1, std::nullopt, 7).mul_(1e-12);
    grad.slice(0, 2, std::nullopt, 7).mul_(1e8);
    grad.slice(0, 3, std::nullopt, 7).zero_();
    state.grads[i].copy_(grad.view(state.grads[i].sizes()));
  }
}

// One step of one tensor in float64.
inline void exact_step(at::Tensor& p, const at::Tensor& g, at::Tensor& m, at::Tensor& v, double t, double lr, double wd,
                       double scale, double beta1, double beta2) {
  auto* p_data = p.mutable_data_ptr<double>();
  auto* m_data = m.mutable_data_ptr<double>();
  auto* v_data = v.mutable_data_ptr<double>();
  const auto* g_data = g.const_data_ptr<double>();
  for (int64_t i = 0; i < p.numel(); ++i) {
    const double grad = g_data[i] * scale;
    m_data[i] = beta1 * m_data[i] + (1 - beta1) * grad;
    v_data[i] = beta2 * v_data[i] + (1 - beta2) * grad * grad;
    const double root = std::sqrt(v_data[i]) / std::sqrt(1 - std::pow(beta2, t));
    p_data[i] = p_data[i] * (1 - lr * wd) - lr / (1 - std::pow(beta1, t)) * std::atan2(m_data[i], root);
  }
}

// Several steps against float64. Each step rounds p a few times; the update itself is bounded by 10 lr.
inline void expect_exact_steps(AdamState state, int64_t steps, const std::string& what) {
  const auto to_exact = [](const std::vector<at::Tensor>& list) {
    std::vector<at::Tensor> out;
    for (const at::Tensor& tensor : list) out.push_back(tensor.to(at::kCPU, at::kDouble, false, true).contiguous());
    return out;
  };
  auto p = to_exact(state.params), m = to_exact(state.exp_avgs), v = to_exact(state.exp_avg_sqs);
  for (int64_t t = 1; t <= steps; ++t) {
    set_grads(state, t);
    state.lr.fill_(1e-2 / static_cast<double>(t));
    state.grad_scale.fill_(t % 2 == 0 ? 0.25 : 1.0);
    state.run();
    ASSERT_EQ(state.step.item<float>(), static_cast<float>(t)) << what;
    const auto g = to_exact(state.grads);
    for (size_t i = 0; i < p.size(); ++i) {
      exact_step(p[i], g[i], m[i], v[i], static_cast<double>(t), state.lr.item<float>(), state.weight_decay[i],
                 state.grad_scale.item<float>(), state.beta1, state.beta2);
    }
  }
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i].numel() == 0) continue;
    const double scale = 1 + p[i].abs().max().item<double>();
    EXPECT_LE(largest_difference(state.params[i], p[i]), 4e-7 * scale * static_cast<double>(steps)) << what << " " << i;
    // m may cancel, so its error is measured by the gradients that it averages.
    const at::Tensor error = (state.exp_avgs[i].to(at::kCPU, at::kDouble) - m[i]).abs();
    EXPECT_TRUE((error <= 4e-6 * v[i].sqrt()).all().item<bool>()) << what << " m " << i;
    EXPECT_TRUE(at::allclose(state.exp_avg_sqs[i].to(at::kCPU, at::kDouble), v[i], 1e-5, 1e-30)) << what << " v " << i;
  }
}

// A left-out step changes nothing, whatever the gradients hold.
inline void expect_skip(at::Device device) {
  AdamState state = make_adam({{3, 5}, {17}}, device);
  set_grads(state, 1);
  state.run();
  for (const double flag : {1.0, -3.0, static_cast<double>(NAN)}) {
    const AdamState before = state.clone();
    state.grads[0].fill_(NAN);
    state.grads[1].fill_(INFINITY);
    state.grad_scale.fill_(NAN);
    state.skip.fill_(flag);
    state.run();
    for (size_t i = 0; i < state.params.size(); ++i) {
      expect_same_bits(state.params[i], before.params[i], "params");
      expect_same_bits(state.exp_avgs[i], before.exp_avgs[i], "exp_avgs");
      expect_same_bits(state.exp_avg_sqs[i], before.exp_avg_sqs[i], "exp_avg_sqs");
    }
    EXPECT_EQ(state.step.item<float>(), 1);
  }
  state.skip.fill_(0);
  state.grad_scale.fill_(1);
  set_grads(state, 2);
  const at::Tensor before = state.params[0].clone();
  state.run();
  EXPECT_EQ(state.step.item<float>(), 2);
  EXPECT_GT(largest_difference(state.params[0], before), 0);
}

// More tensors than a launch takes, and sizes around the kernel's block and vector sizes.
inline std::vector<std::vector<int64_t>> adam_shapes() {
  std::vector<std::vector<int64_t>> shapes = {{}, {0}, {1}, {3}, {4}, {5, 7}, {16384}, {16385}, {3, 16384}, {50001}};
  for (int64_t i = 0; i < 140; ++i) shapes.push_back({1 + i % 9, 3});
  return shapes;
}

}  // namespace hrm::ops::testing
