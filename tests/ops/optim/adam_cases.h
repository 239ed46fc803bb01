#pragma once
// Every rule beside a loop in float64 that is written from the equations alone.

#include <array>
#include <cmath>
#include <optional>

#include "hrm/ops/adam.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

constexpr std::array kRules = {AdamRule::atan2, AdamRule::adamw,          AdamRule::lion,
                               AdamRule::sgd,   AdamRule::muon_direction, AdamRule::muon_apply};
static_assert(kRules.size() == kAdamRules);

struct AdamState {
  AdamRule rule = AdamRule::atan2;
  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs, averages, copies;
  std::vector<double> weight_decay, lr_factor;
  at::Tensor step, lr, grad_scale, skip, update_ratio;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-3, average_decay = 0.9;

  void run() {
    adam_({rule, params, grads, exp_avgs, exp_avg_sqs, averages, copies, weight_decay, lr_factor, step, lr, grad_scale,
           skip, update_ratio, beta1, beta2, eps, average_decay});
  }
  AdamState clone() const {
    AdamState copy = *this;
    for (auto* list : {&copy.params, &copy.grads, &copy.exp_avgs, &copy.exp_avg_sqs, &copy.averages}) {
      for (at::Tensor& tensor : *list) tensor = tensor.clone();
    }
    for (size_t i = 0; i < copies.size(); ++i) {
      copy.copies[i] = copies[i].is_same(params[i]) ? copy.params[i] : copies[i].clone();
    }
    for (at::Tensor* tensor : {&copy.step, &copy.lr, &copy.grad_scale, &copy.skip, &copy.update_ratio}) {
      if (tensor->defined()) *tensor = tensor->clone();
    }
    return copy;
  }
  // All that a step writes.
  std::vector<at::Tensor> written() const {
    std::vector<at::Tensor> out = {step};
    for (const auto* list : {&params, &exp_avgs, &exp_avg_sqs, &averages, &copies}) {
      out.insert(out.end(), list->begin(), list->end());
    }
    if (update_ratio.defined()) out.push_back(update_ratio);
    return out;
  }
};

// Every other tensor has a copy in `low`; float32: nobody has one.
inline AdamState make_adam(const std::vector<std::vector<int64_t>>& shapes, at::Device device,
                           AdamRule rule = AdamRule::atan2, at::ScalarType low = at::kBFloat16) {
  AdamState state;
  state.rule = rule;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor param = normal(shapes[i], 10 + i, at::kFloat, device);
    state.params.push_back(param);
    state.grads.push_back(at::zeros_like(param));
    if (has_first_moment(rule)) state.exp_avgs.push_back(at::zeros_like(param));
    if (has_second_moment(rule)) state.exp_avg_sqs.push_back(at::zeros_like(param));
    state.averages.push_back(param.clone());
    state.copies.push_back(i % 2 == 0 && low != at::kFloat ? param.to(low) : param);
    state.weight_decay.push_back(0.1 * static_cast<double>(i % 3));
    state.lr_factor.push_back(i % 4 == 3 ? 0.375 : 1);
  }
  state.step = scalar(0, device);
  state.lr = scalar(1e-2, device);
  state.grad_scale = scalar(1, device);
  state.skip = scalar(0, device);
  state.update_ratio = at::zeros({}, at::device(device).dtype(at::kDouble));
  return state;
}

// As a caller that wants the update alone.
inline AdamState bare(AdamState state) {
  state.averages.clear();
  state.copies.clear();
  state.update_ratio = at::Tensor();
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

// Updates in float64 of one element: its value p and its moments. Rules without v keep the largest square of what went
// into m there, to measure errors by.
struct Element {
  double p, m, v;
};

inline Element exact_adam(const AdamState& state, Element e, double g, double lr, double wd, double t) {
  e.m = state.beta1 * e.m + (1 - state.beta1) * g;
  e.v = state.beta2 * e.v + (1 - state.beta2) * g * g;
  const double root = std::sqrt(e.v) / std::sqrt(1 - std::pow(state.beta2, t));
  const double direction = state.rule == AdamRule::atan2 ? std::atan2(e.m, root) : e.m / (root + state.eps);
  e.p = e.p * (1 - lr * wd) - lr / (1 - std::pow(state.beta1, t)) * direction;
  return e;
}

// `got`: what the op made of p; counts where rounding decides the sign.
inline Element exact_lion(const AdamState& state, Element e, double g, double lr, double wd, double got) {
  const double kept = state.beta1 * e.m, added = (1 - state.beta1) * g, blend = kept + added;
  const double sign = blend > 0 ? 1 : blend < 0 ? -1 : 0;
  const bool clear = std::abs(blend) > 1e-5 * (std::abs(kept) + std::abs(added)) || blend == 0;
  e.p = clear ? e.p * (1 - lr * wd) - lr * sign : got;
  e.m = state.beta2 * e.m + (1 - state.beta2) * g;
  e.v = std::max(e.v, g * g);
  return e;
}

inline Element exact_element(const AdamState& state, Element e, double g, double lr, double wd, double t, double got) {
  if (has_second_moment(state.rule)) return exact_adam(state, e, g, lr, wd, t);
  if (state.rule == AdamRule::lion) return exact_lion(state, e, g, lr, wd, got);
  const double momentum = state.beta1;
  if (state.rule == AdamRule::sgd) {
    const double d = g + wd * e.p;
    e.v = std::max(e.v, (std::abs(g) + wd * std::abs(e.p)) * (std::abs(g) + wd * std::abs(e.p)));
    e.m = momentum * e.m + d;
    e.p -= lr * (d + momentum * e.m);
  } else if (state.rule == AdamRule::muon_direction) {
    e.m = momentum * e.m + (1 - momentum) * g;
    e.v = std::max(e.v, g * g);
    e.p = (1 - momentum) * g + momentum * e.m;
  } else {
    e.p = e.p * (1 - lr * wd) - lr * g;
  }
  return e;
}

// One step of the i-th tensor, after the op has made its own.
inline void exact_step(const AdamState& state, size_t i, at::Tensor& p, const at::Tensor& g, at::Tensor& m,
                       at::Tensor& v, double t) {
  const double factor = state.lr_factor.empty() ? 1 : state.lr_factor[i];
  const double lr = state.lr.item<float>() * factor;
  const double scale = state.rule == AdamRule::muon_apply ? 1 : state.grad_scale.item<float>();
  const at::Tensor got = state.params[i].to(at::kCPU, at::kDouble).contiguous();
  auto* p_data = p.mutable_data_ptr<double>();
  auto* m_data = m.mutable_data_ptr<double>();
  auto* v_data = v.mutable_data_ptr<double>();
  const auto* g_data = g.const_data_ptr<double>();
  const auto* got_data = got.const_data_ptr<double>();
  for (int64_t k = 0; k < p.numel(); ++k) {
    const Element next = exact_element(state, {p_data[k], m_data[k], v_data[k]}, g_data[k] * scale, lr,
                                       state.weight_decay[i], t, got_data[k]);
    p_data[k] = next.p;
    m_data[k] = next.m;
    v_data[k] = next.v;
  }
}

// Several steps against float64. Each step rounds p a few times; the update itself is bounded by 10 lr.
inline void expect_exact_steps(AdamState state, int64_t steps, const std::string& what) {
  const auto to_exact = [](const std::vector<at::Tensor>& list) {
    std::vector<at::Tensor> out;
    for (const at::Tensor& tensor : list) out.push_back(tensor.to(at::kCPU, at::kDouble, false, true).contiguous());
    return out;
  };
  auto p = to_exact(state.params);
  std::vector<at::Tensor> m, v;  // the state begins with zeros
  for (const at::Tensor& tensor : p) {
    m.push_back(at::zeros_like(tensor));
    v.push_back(at::zeros_like(tensor));
  }
  auto average = to_exact(state.averages);
  std::vector<double> scale(p.size(), 1);  // 1 + the largest magnitude so far: where p shrinks, old rounding stays
  for (int64_t t = 1; t <= steps; ++t) {
    set_grads(state, t);
    state.lr.fill_(1e-2 / static_cast<double>(t));
    state.grad_scale.fill_(t % 2 == 0 ? 0.25 : 1.0);
    state.run();
    ASSERT_EQ(state.step.item<float>(), static_cast<float>(t)) << what;
    const auto g = to_exact(state.grads);
    double moved = 0, size = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const at::Tensor before = p[i].clone();
      exact_step(state, i, p[i], g[i], m[i], v[i], static_cast<double>(t));
      if (p[i].numel() > 0) scale[i] = std::max(scale[i], 1 + p[i].abs().max().item<double>());
      moved += (p[i] - before).square().sum().item<double>();
      size += before.square().sum().item<double>();
      if (!average.empty()) average[i] = average[i] * state.average_decay + p[i] * (1 - state.average_decay);
    }
    if (state.update_ratio.defined()) {
      const double ratio = std::sqrt(moved / size);
      EXPECT_NEAR(state.update_ratio.item<double>(), ratio, 1e-4 * ratio) << what << " step " << t;
    }
  }
  for (size_t i = 0; i < p.size(); ++i) {
    if (!state.copies.empty()) {
      expect_same_bits(state.copies[i], state.params[i].to(state.copies[i].scalar_type()), what + " copy");
    }
    if (p[i].numel() == 0) continue;
    const double most = 4e-7 * scale[i] * static_cast<double>(steps);
    EXPECT_LE(largest_difference(state.params[i], p[i]), most) << what << " " << i;
    if (!average.empty()) {
      EXPECT_LE(largest_difference(state.averages[i], average[i]), most) << what << " average " << i;
    }
    if (!has_first_moment(state.rule)) continue;
    // m may cancel, so its error is measured by the gradients that it averages.
    const at::Tensor error = (state.exp_avgs[i].to(at::kCPU, at::kDouble) - m[i]).abs();
    EXPECT_TRUE((error <= 4e-6 * v[i].sqrt()).all().item<bool>()) << what << " m " << i;
    if (!has_second_moment(state.rule)) continue;
    EXPECT_TRUE(at::allclose(state.exp_avg_sqs[i].to(at::kCPU, at::kDouble), v[i], 1e-5, 1e-30)) << what << " v " << i;
  }
}

// A left-out step changes nothing, whatever the gradients hold.
inline void expect_skip(at::Device device, AdamRule rule) {
  AdamState state = make_adam({{3, 5}, {17}}, device, rule);
  set_grads(state, 1);
  state.run();
  EXPECT_GT(state.update_ratio.item<double>(), 0);
  for (const double flag : {1.0, -3.0, static_cast<double>(NAN)}) {
    state.update_ratio.zero_();
    const std::vector<at::Tensor> before = state.clone().written();
    state.update_ratio.fill_(7);
    state.grads[0].fill_(NAN);
    state.grads[1].fill_(INFINITY);
    state.grad_scale.fill_(NAN);
    state.skip.fill_(flag);
    state.run();
    const std::vector<at::Tensor> after = state.written();
    for (size_t i = 0; i < before.size(); ++i) expect_same_bits(after[i], before[i], cat("tensor ", i));
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

// Two values instead of the ratio: what it is made of, and nothing else changes.
inline void expect_squares(at::Device device) {
  for (const bool plain : {false, true}) {
    AdamState ratio = make_adam({{3, 5}, {17}, {50001}}, device), squares = ratio.clone();
    squares.update_ratio = at::full({2}, 7, ratio.update_ratio.options());
    for (AdamState* state : {&ratio, &squares}) {
      set_grads(*state, 1);
      std::optional<WithReference> with_reference;
      if (plain) with_reference.emplace();
      state->run();
    }
    for (size_t i = 0; i < ratio.params.size(); ++i) expect_same_bits(squares.params[i], ratio.params[i]);
    const double moved = squares.update_ratio[0].item<double>(), size = squares.update_ratio[1].item<double>();
    EXPECT_GT(size, 50000 * 0.5);
    EXPECT_NEAR(std::sqrt(moved / size), ratio.update_ratio.item<double>(), 1e-12);
    squares.skip.fill_(1);
    squares.run();
    EXPECT_EQ(squares.update_ratio.abs().sum().item<double>(), 0);
  }
}

// More tensors than a launch takes, and sizes around the kernel's block and vector sizes.
inline std::vector<std::vector<int64_t>> adam_shapes() {
  std::vector<std::vector<int64_t>> shapes = {{},     {0},    {1},     {3},     {4},        {5, 7}, {2048},
                                              {4096}, {4097}, {16384}, {16385}, {3, 16384}, {50001}};
  for (int64_t i = 0; i < 140; ++i) shapes.push_back({1 + i % 9, 3});
  return shapes;
}

}  // namespace hrm::ops::testing
