#pragma once
// Checks of rotors and metrics that hold on every device.

#include <vector>

#include "hrm/ops/geometry.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

// One plane after the other, on the CPU in float64: an oracle that shares no line with ours.
inline at::Tensor rotor_by_planes(const at::Tensor& theta, int64_t n) {
  const at::Tensor angles = theta.detach().to(at::kCPU, at::kDouble).contiguous();
  at::Tensor q = at::eye(n, at::kDouble);
  auto at_q = q.accessor<double, 2>();
  for (int64_t i = 0; i < angles.numel(); ++i) {
    const int64_t layer = i / (n / 2), pair = i % (n / 2), a = (2 * pair + layer) % n, b = (a + 1) % n;
    const double c = std::cos(angles.const_data_ptr<double>()[i]), s = std::sin(angles.const_data_ptr<double>()[i]);
    for (int64_t column = 0; column < n; ++column) {
      const double first = at_q[a][column], second = at_q[b][column];
      at_q[a][column] = c * first - s * second;
      at_q[b][column] = s * first + c * second;
    }
  }
  return q;
}

struct RotorSize {
  int64_t n, k;
};

// Odd and even n, layers that wrap around, a last layer with gaps, no angles, and n beyond the kernel's limit.
inline std::vector<RotorSize> rotor_sizes() {
  return {{1, 0}, {2, 1},  {2, 7},   {3, 4},    {5, 4},   {5, 13},    {8, 0},
          {8, 6}, {8, 13}, {16, 16}, {17, 200}, {64, 64}, {64, 2000}, {65, 70}};
}

inline void expect_good_rotor(at::Device device) {
  for (const RotorSize size : rotor_sizes()) {
    const std::string what = cat("n ", size.n, ", k ", size.k);
    const at::Tensor theta = normal({size.k}, 1, at::kFloat, device).requires_grad_();
    const at::Tensor exact = rotor_by_planes(theta, size.n);
    const at::Tensor q = rotor_matrix(theta, size.n);
    const double layers = static_cast<double>(2 * size.k) / static_cast<double>(std::max<int64_t>(size.n - 1, 1)) + 2;
    expect_as_good(q.detach().to(at::kCPU), exact.to(at::kFloat), exact, what, layers);
    if (size.k == 0) continue;
    // The gradient against ATen's own differentiation of the rolled formula in float64.
    const at::Tensor grad = normal({size.n, size.n}, 2, at::kFloat, device);
    q.backward(grad);
    const at::Tensor wide = theta.detach().to(at::kCPU, at::kDouble).requires_grad_();
    at::Tensor plain = at::eye(size.n, at::kDouble);
    for (int64_t i = 0; i < size.k; ++i) {
      const int64_t layer = i / (size.n / 2), a = (2 * (i % (size.n / 2)) + layer) % size.n, b = (a + 1) % size.n;
      const at::Tensor c = wide[i].cos(), s = wide[i].sin();
      std::vector<at::Tensor> rows = plain.unbind(0);
      const at::Tensor first = rows[static_cast<size_t>(a)], second = rows[static_cast<size_t>(b)];
      rows[static_cast<size_t>(a)] = c * first - s * second;
      rows[static_cast<size_t>(b)] = s * first + c * second;
      plain = at::stack(rows);
      if (size.k > 300) break;  // Long chains: the value above covers them.
    }
    if (size.k > 300) continue;
    plain.backward(grad.to(at::kCPU, at::kDouble));
    const at::Tensor want = wide.grad();
    const double terms = grad.norm().item<double>() * std::sqrt(static_cast<double>(size.n)) * layers;
    expect_as_good(theta.grad().to(at::kCPU), want.to(at::kFloat), want, what + ", gradient", terms);
  }
}

// Diagonal, dense and one metric for each row; resilience of a row or of all.
inline void expect_good_lior(at::Device device) {
  for (const int64_t n : {1, 3, 8, 16, 33, 100}) {
    for (const int64_t rows : {0, 1, 7, 300}) {
      const at::Tensor v = normal({rows, n}, 1, at::kFloat, device);
      const at::Tensor dense = normal({n, n}, 3, at::kFloat, device);
      const at::Tensor each = normal({rows, n, n}, 4, at::kFloat, device);
      const std::vector<at::Tensor> metrics{normal({n}, 2, at::kFloat, device).abs(), dense.matmul(dense.t()), each};
      for (const at::Tensor& metric : metrics) {
        for (const at::Tensor& r : {normal({rows}, 5, at::kFloat, device).abs(), scalar(1.7, device)}) {
          const std::string what = cat("v ", v.sizes(), ", metric ", metric.sizes(), ", R ", r.sizes());
          const LiorStep ours = lior_step(v, metric, r, 1e-3, 0.5);
          const auto wide = [](const at::Tensor& t) { return t.to(at::kCPU, at::kDouble); };
          const at::Tensor x = wide(v), g = wide(metric);
          const at::Tensor q = metric.dim() == 1 ? (x * x).matmul(g.unsqueeze(1)).squeeze(1)
                                                 : (x.unsqueeze(1).matmul(g).squeeze(1) * x).sum(1);
          const at::Tensor spd = (q.clamp_min(0) + 1e-3).sqrt();
          // The terms of a dense q cancel, and the root near zero enlarges what is left of their rounding.
          double terms = rows == 0 ? 0 : spd.max().item<double>();
          if (rows > 0 && metric.dim() > 1) {
            const at::Tensor sizes = x.abs().unsqueeze(1).matmul(g.abs()).squeeze(1) * x.abs();
            terms += 2 * sizes.sum(1).max().item<double>() / std::sqrt(1e-3);
          }
          expect_as_good(ours.speed.to(at::kCPU), spd.to(at::kFloat), spd, what, terms);
          const at::Tensor action = wide(r) * spd * 0.5;
          expect_as_good(ours.action.to(at::kCPU), action.to(at::kFloat), action, what + ", action", 4 * terms);
        }
      }
    }
  }
}

}  // namespace hrm::ops::testing
