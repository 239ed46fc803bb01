#pragma once
// The norm of all gradients, on every device.

#include <cmath>

#include "hrm/ops/grad_norm.h"
#include "ops/op_testing.h"

namespace hrm::ops::testing {

inline double item(const at::Tensor& tensor) {
  return tensor.item<double>();
}

// Against float64, at sizes around the kernel's blocks and vectors, aligned or not.
inline void expect_norms(at::Device device) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const int64_t size : {1, 3, 4, 257, 16384, 16385, 200003}) {
    for (const int64_t shift : {0, 1}) {
      const at::Tensor flat = normal({size + shift}, static_cast<uint64_t>(size), at::kFloat, device).slice(0, shift);
      const at::Tensor exact = flat.to(at::kCPU, at::kDouble);
      const double length = item(at::linalg_vector_norm(exact, 2));
      EXPECT_NEAR(item(float64_norm(flat)), length, 1e-13 * length) << size << " elements, shift " << shift;
      for (const double type : {1.0, 2.0, infinity}) {
        const double want = item(at::linalg_vector_norm(exact, type));
        const std::string what = cat(size, " elements, shift ", shift, ", type ", type);
        const auto [norm, coef, nonfinite] = grad_norm(flat, 0.5, type, {}, {}, {});
        EXPECT_NEAR(item(norm), want, 1e-7 * want) << what;
        EXPECT_NEAR(item(coef), std::min(1.0, 0.5 / (want + 1e-6)), 1e-6) << what;
        EXPECT_EQ(item(nonfinite), 0) << what;
        expect_same_bits(std::get<0>(grad_norm(flat, 0.5, type, {}, {}, {})), norm, what);
      }
    }
  }
}

// Values whose squares a float32 cannot hold.
inline void expect_wide_range(at::Device device) {
  const at::Tensor huge = at::full({1000}, 1e30, at::device(device).dtype(at::kFloat));
  const at::Tensor tiny = at::full({1000}, 1e-30, at::device(device).dtype(at::kFloat));
  const auto norm_of = [](const at::Tensor& flat) { return item(std::get<0>(grad_norm(flat, 0, 2, {}, {}, {}))); };
  EXPECT_NEAR(norm_of(huge) / (std::sqrt(1000.0) * 1e30), 1, 1e-6);
  EXPECT_NEAR(norm_of(tiny) / (std::sqrt(1000.0) * 1e-30), 1, 1e-6);
}

// skip and report; a skip that is set stays set.
inline void expect_outputs(at::Device device) {
  const at::Tensor good = at::tensor({3.0f, -4.0f}).to(device);
  at::Tensor bad = good.clone();
  bad[1] = NAN;
  at::Tensor skip = scalar(0, device), report = at::full({3}, -1, at::device(device).dtype(at::kDouble));
  const auto run = [&](const at::Tensor& flat, double max_norm) {
    return grad_norm(flat, max_norm, 2, {}, skip, report);
  };
  run(good, 1);
  EXPECT_EQ(item(skip), 0);
  EXPECT_EQ(item(report[0]), 5);
  EXPECT_NEAR(item(report[1]), 1, 1e-6);
  EXPECT_EQ(item(report[2]), 0);
  const auto [norm, coef, nonfinite] = run(bad, 1);
  EXPECT_TRUE(std::isnan(item(norm)) && std::isnan(item(coef)) && std::isnan(item(report[0])));
  EXPECT_EQ(item(nonfinite), 1);
  EXPECT_EQ(item(skip), 1);
  EXPECT_EQ(item(report[2]), 1);
  EXPECT_EQ(item(std::get<2>(run(good, 1))), 0);
  EXPECT_EQ(item(skip), 1) << "an earlier step's flag stays";
  EXPECT_EQ(item(std::get<1>(run(bad, 0))), 1) << "no clipping";
  EXPECT_EQ(item(std::get<2>(run(good * INFINITY, 1))), 1);
}

inline void expect_loss_scale(at::Device device) {
  const at::Tensor flat = at::tensor({3.0f, -4.0f}).to(device) * 1024;
  at::Tensor report = at::zeros({3}, at::device(device).dtype(at::kDouble));
  auto [norm, coef, nonfinite] = grad_norm(flat, 2.5, 2, scalar(1024, device), {}, report);
  EXPECT_EQ(item(norm), 5);
  EXPECT_NEAR(item(coef) * 1024, 0.5, 1e-6);
  EXPECT_NEAR(item(report[1]), 2.5, 1e-6);
  std::tie(norm, coef, nonfinite) = grad_norm(flat, 0, 2, scalar(1024, device), {}, {});
  EXPECT_EQ(item(coef), 1.0 / 1024);
}

}  // namespace hrm::ops::testing
