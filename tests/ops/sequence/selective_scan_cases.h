#pragma once
// Checks of the Mamba2 recurrence that hold on every device. The oracle is the recurrence position by position in
// float64, differentiated by ATen.

#include "hrm/ops/selective_scan.h"
#include "ops/op_testing.h"
#include "ops/sequence/selective_scan_impl.h"

namespace hrm::ops::testing {

struct ScanShape {
  int64_t rows, positions, heads, channels, state, groups, chunk;
};

// x, dt, A, B, C, D, initial state.
using ScanInputs = std::vector<at::Tensor>;

inline ScanInputs scan_inputs(const ScanShape& s, at::ScalarType dtype, at::Device device = at::kCPU) {
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  return {normal({s.rows, s.positions, s.heads, s.channels}, 1, dtype, device),
          normal({s.rows, s.positions, s.heads}, 2, wide, device).abs() * 0.3,
          -(normal({s.heads}, 3, wide, device).abs() + 0.2),
          normal({s.rows, s.positions, s.groups, s.state}, 4, dtype, device),
          normal({s.rows, s.positions, s.groups, s.state}, 5, dtype, device),
          normal({s.heads}, 6, wide, device),
          normal({s.rows, s.heads, s.channels, s.state}, 7, wide, device)};
}

struct ScanResult {
  at::Tensor y, state;
  std::vector<at::Tensor> grads;
};

// `scan` on leaves of these values, and the gradients for fixed gradients of y and of the final state.
template <class Scan>
ScanResult run_scan(const Scan& scan, const ScanInputs& values, const at::Tensor& grad_y,
                    const at::Tensor& grad_state) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& value : values) leaves.push_back(value.detach().clone().requires_grad_());
  const auto [y, state] = scan(leaves);
  return {y.detach(), state.detach(), torch::autograd::grad({y, state}, leaves, {grad_y, grad_state})};
}

inline ScanInputs widened(const ScanInputs& values) {
  ScanInputs wide;
  for (const at::Tensor& value : values) wide.push_back(value.to(at::kDouble));
  return wide;
}

// Largest difference as a share of the largest value.
inline double relative(const at::Tensor& ours, const at::Tensor& exact) {
  return largest_difference(ours, exact) / std::max(exact.abs().max().item<double>(), 1e-30);
}

// Outputs, state and all gradients within `limit` of the oracle, as a share of the largest value of each.
inline void expect_good_scan(const ScanShape& s, at::ScalarType dtype, double limit, at::Device device = at::kCPU) {
  const ScanInputs values = scan_inputs(s, dtype, device);
  const at::Tensor grad_y = normal(values[0].sizes(), 8, dtype, device);
  const at::Tensor grad_state = normal(values[6].sizes(), 9, values[6].scalar_type(), device);
  const auto fused = [&](const ScanInputs& v) { return ssd_scan(v[0], v[1], v[2], v[3], v[4], v[5], s.chunk, v[6]); };
  const auto plain = [&](const ScanInputs& v) {
    return reference::ssd_scan_sequential(v[0], v[1], v[2], v[3], v[4], v[5], v[6]);
  };
  const ScanResult ours = run_scan(fused, values, grad_y, grad_state);
  const ScanResult exact = run_scan(plain, widened(values), grad_y.to(at::kDouble), grad_state.to(at::kDouble));
  const std::string what = cat(dtype, " T ", s.positions, " chunk ", s.chunk, " groups ", s.groups);
  EXPECT_EQ(ours.y.scalar_type(), dtype) << what;
  EXPECT_LE(relative(ours.y, exact.y), limit) << what << ", y";
  EXPECT_LE(relative(ours.state, exact.state), limit) << what << ", state";
  const char* names[] = {"x", "dt", "A", "B", "C", "D", "initial state"};
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(ours.grads[i].scalar_type(), values[i].scalar_type()) << what << names[i];
    EXPECT_LE(relative(ours.grads[i], exact.grads[i]), limit) << what << ", gradient of " << names[i];
  }
}

// One position, one chunk, whole chunks, a part at the end, chunks longer than the row.
inline std::vector<ScanShape> scan_shapes() {
  return {{2, 1, 4, 8, 6, 2, 8},  {2, 8, 4, 8, 6, 1, 8},  {1, 24, 4, 3, 5, 4, 8},
          {3, 21, 2, 4, 7, 1, 8}, {2, 5, 4, 8, 6, 2, 64}, {2, 17, 4, 8, 16, 2, 1}};
}

}  // namespace hrm::ops::testing
