#pragma once
// Checks of geometric_relax and contrastive_statistics that hold on every device.

#include <cmath>
#include <optional>
#include <vector>

#include "hrm/ops/contrastive_statistics.h"
#include "hrm/ops/geometric_relax.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

struct MemorySize {
  int64_t rows, slots, coords, width, classes;
};

// A window in float64 on the CPU; values and readout are exact in float16.
struct MemoryCase {
  explicit MemoryCase(const MemorySize& size, uint64_t seed = 1) {
    const auto draw = [&](at::IntArrayRef sizes) { return normal(sizes, seed++, at::kDouble); };
    const auto rounded = [](const at::Tensor& t) { return t.to(at::kHalf).to(at::kDouble); };
    slots.keys = draw({size.slots, size.coords});
    slots.key_norms = slots.keys.square().sum(-1);
    slots.resilience = 1 + 0.1 * draw({size.slots}).abs();
    slots.values = rounded(0.3 * draw({size.slots, size.width}));
    const at::Tensor factor = at::eye(size.coords, at::kDouble) + 0.1 * draw({size.coords, size.coords});
    metric = 0.5 * factor.matmul(factor.t());
    drive = draw({size.rows, size.coords});
    offset = 0.3 * draw({size.rows, size.coords});
    o = 0.1 * draw({size.rows, size.width});
    nudge.readout = rounded(draw({size.classes, size.width}) / std::sqrt(static_cast<double>(size.width)));
    nudge.bias = 0.1 * draw({size.classes});
    nudge.targets = (1e3 * draw({size.rows}).abs()).to(at::kLong).remainder(size.classes);
    nudge.signs = draw({size.rows}).sign() * (1 + 4 * draw({size.rows}).abs());
    scales = draw({size.rows});
    rates = at::tensor({0.03, 4.0, 0.02, 1.0}, at::kDouble);
  }

  // In another dtype on a device; `half`: float16 values.
  MemoryCase to(at::Device device, at::ScalarType dtype, bool half) const {
    MemoryCase other = *this;
    for (at::Tensor* tensor : {&other.drive, &other.offset, &other.o, &other.metric, &other.rates, &other.scales,
                               &other.slots.keys, &other.slots.key_norms, &other.slots.resilience, &other.slots.values,
                               &other.nudge.readout, &other.nudge.bias, &other.nudge.signs}) {
      *tensor = tensor->to(device, dtype);
    }
    if (half) other.slots.values = other.slots.values.to(at::kHalf);
    other.nudge.targets = nudge.targets.to(device);
    if (slots.filled.defined()) other.slots.filled = slots.filled.to(device);
    return other;
  }

  GeometricState relaxed(int64_t steps, bool nudged, double momentum = 0) const {
    return geometric_relax(drive, offset, o, slots, metric, rates, nudged ? nudge : GeometricNudge{}, {}, steps,
                           constants, momentum);
  }
  ContrastiveStatistics statistics(const GeometricState& state) const {
    return contrastive_statistics(drive + state.offset, state.o, state.log_sum, scales, slots, constants);
  }

  GeometricSlots slots;
  GeometricNudge nudge;
  at::Tensor metric, drive, offset, o, scales, rates;
  GeometricConstants constants{.kappa = 8, .gamma = 0.125, .retrieval_beta = 2, .cost_eps = 0.1};
};

inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  return largest_difference(got.cpu(), want) / (want.abs().max().item<double>() + 1e-12);
}

inline void expect_close_state(const GeometricState& got, const GeometricState& want, double bound,
                               const std::string& what) {
  EXPECT_LT(relative_error(got.offset, want.offset), bound) << what;
  EXPECT_LT(relative_error(got.o, want.o), bound) << what;
  EXPECT_LT(relative_error(got.log_sum, want.log_sum), bound) << what;
  EXPECT_LT(relative_error(got.speed, want.speed), bound) << what;
}

// Sizes on both sides of every choice: of the padding, of the clusters, of the kernel's limits.
inline std::vector<MemorySize> memory_sizes() {
  return {{1, 1, 1, 1, 1},       {16, 64, 16, 16, 10},    {5, 19, 6, 7, 5},      {64, 128, 16, 32, 10},
          {17, 300, 20, 48, 33}, {33, 1000, 32, 64, 259}, {40, 130, 33, 64, 10}, {12, 64, 16, 80, 10}};
}

// Against float64, free and nudged.
inline void expect_good_relaxation(at::Device device, bool half) {
  for (const MemorySize& size : memory_sizes()) {
    const MemoryCase exact(size);
    const MemoryCase ours = exact.to(device, at::kFloat, half);
    for (const bool nudged : {false, true}) {
      for (const int64_t steps : {0, 1, 30}) {
        const std::string what = cat(size.rows, " rows, ", size.slots, " slots, ", size.coords, " coordinates, width ",
                                     size.width, nudged ? ", nudged, " : ", free, ", steps, " steps");
        expect_close_state(ours.relaxed(steps, nudged), exact.relaxed(steps, nudged), 2e-5, what);
      }
    }
  }
}

inline void expect_good_statistics(at::Device device, bool half) {
  for (const MemorySize& size : memory_sizes()) {
    const MemoryCase exact(size);
    const MemoryCase ours = exact.to(device, at::kFloat, half);
    const GeometricState state = exact.relaxed(5, false);
    GeometricState rounded = state;
    for (at::Tensor* tensor : {&rounded.offset, &rounded.o, &rounded.log_sum}) *tensor = tensor->to(device, at::kFloat);
    const ContrastiveStatistics got = ours.statistics(rounded), want = exact.statistics(state);
    const std::string what = cat(size.rows, " rows, ", size.slots, " slots");
    EXPECT_LT(relative_error(got.values, want.values), 2e-5) << what;
    EXPECT_LT(relative_error(got.pulls, want.pulls), 2e-5) << what;
    EXPECT_LT(relative_error(got.pulled, want.pulled), 2e-5) << what;
    EXPECT_LT(relative_error(got.costs, want.costs), 2e-5) << what;
    EXPECT_LT(relative_error(got.row_pulls, want.row_pulls), 2e-5) << what;
  }
}

// What is behind the filled slots is not read, whatever it is.
inline void expect_empty_slots_unread(at::Device device, bool half) {
  for (const int64_t filled : {0, 1, 15, 16, 17, 129, 299, 300}) {
    MemoryCase exact({20, 300, 16, 32, 10});
    exact.slots.filled = at::scalar_tensor(filled, at::kLong);
    MemoryCase ours = exact.to(device, at::kFloat, half);
    for (at::Tensor* tensor : {&ours.slots.keys, &ours.slots.key_norms, &ours.slots.resilience, &ours.slots.values}) {
      tensor->narrow(0, filled, 300 - filled).fill_(NAN);
    }
    const std::string what = cat(filled, " of 300 filled");
    const GeometricState got = ours.relaxed(6, true), want = exact.relaxed(6, true);
    EXPECT_LT(relative_error(got.offset, want.offset), 2e-5) << what;
    EXPECT_LT(relative_error(got.o, want.o), 2e-5) << what;
    const ContrastiveStatistics sums = ours.statistics(got), exact_sums = exact.statistics(want);
    EXPECT_LT(largest_difference(sums.values.cpu(), exact_sums.values), 2e-4) << what;
    EXPECT_LT(largest_difference(sums.pulled.cpu(), exact_sums.pulled), 2e-4) << what;
    EXPECT_EQ(sums.values.narrow(0, filled, 300 - filled).abs().sum().item<double>(), 0) << what;
  }
}

// Batches that fill a tile of rows, and all others.
inline void expect_every_batch_size(at::Device device, bool half) {
  const MemoryCase exact({100, 50, 6, 12, 7});
  const GeometricState want = exact.relaxed(6, true);
  const auto first = [](const at::Tensor& tensor, int64_t rows) { return tensor.narrow(0, 0, rows).contiguous(); };
  for (int64_t rows = 1; rows <= 100; rows += rows < 64 ? 1 : 36) {
    MemoryCase part = exact;
    for (at::Tensor* tensor :
         {&part.drive, &part.offset, &part.o, &part.scales, &part.nudge.targets, &part.nudge.signs}) {
      *tensor = first(*tensor, rows);
    }
    const MemoryCase ours = part.to(device, at::kFloat, half);
    const std::string what = cat(rows, " rows");
    const GeometricState got = ours.relaxed(6, true);
    EXPECT_LT(relative_error(got.offset, first(want.offset, rows)), 2e-5) << what;
    EXPECT_LT(relative_error(got.o, first(want.o, rows)), 2e-5) << what;
    const GeometricState state{.offset = first(want.offset, rows),
                               .o = first(want.o, rows),
                               .h = {},
                               .log_sum = first(want.log_sum, rows),
                               .speed = {},
                               .residual = {}};
    GeometricState rounded = state;
    for (at::Tensor* tensor : {&rounded.offset, &rounded.o, &rounded.log_sum}) *tensor = tensor->to(device, at::kFloat);
    const ContrastiveStatistics sums = ours.statistics(rounded), exact_sums = part.statistics(state);
    EXPECT_LT(relative_error(sums.values, exact_sums.values), 2e-5) << what;
    EXPECT_LT(relative_error(sums.pulled, exact_sums.pulled), 2e-5) << what;
  }
}

}  // namespace hrm::ops::testing
