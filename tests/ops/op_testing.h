#pragma once
// What the tests of the ops share. The tolerance everywhere: an op may lose twice what plain ATen loses in the same
// dtype, both measured against float64 on the same inputs.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <string>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/ops/backend.h"

namespace hrm::ops::testing {

// Runs the plain ATen formulas while it lives.
class WithReference {
 public:
  WithReference() : before_(backend()) { set_backend(Backend::reference); }
  ~WithReference() { set_backend(before_); }

 private:
  Backend before_;
};

// Normal numbers that depend on the seed alone, drawn on the CPU.
inline at::Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype, at::Device device = at::kCPU) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kFloat).to(device, dtype);
}

inline at::Tensor scalar(double value, at::Device device = at::kCPU) {
  return at::full({}, value, at::device(device).dtype(at::kFloat));
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a.to(at::kCPU, at::kDouble) - b.to(at::kCPU, at::kDouble)).abs().max().item<double>();
}

inline double mean_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a.to(at::kCPU, at::kDouble) - b.to(at::kCPU, at::kDouble)).abs().mean().item<double>();
}

inline double unit_roundoff(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 0x1p-8;
  if (dtype == at::kHalf) return 0x1p-11;
  return dtype == at::kFloat ? 0x1p-24 : 0x1p-53;
}

// At most twice the error of plain ATen, in the largest and in the mean. Two sums of the same float32 terms in
// different orders differ by chance, and where terms cancel the result says nothing of their rounding: four float32
// roundings of `terms`, the largest sum of magnitudes that stands behind an element, are always allowed. So is one
// rounding of the largest value to the dtype, for where ATen happens to be exact.
inline void expect_as_good(const at::Tensor& ours, const at::Tensor& plain, const at::Tensor& exact,
                           const std::string& what, double terms = 0) {
  ASSERT_EQ(ours.sizes(), exact.sizes()) << what;
  ASSERT_EQ(ours.scalar_type(), plain.scalar_type()) << what;
  if (exact.numel() == 0) return;
  ASSERT_TRUE(at::isfinite(ours).all().item<bool>()) << what;
  const double floor = unit_roundoff(plain.scalar_type()) * exact.abs().max().item<double>() + 0x1p-22 * terms;
  EXPECT_LE(largest_difference(ours, exact), std::max(2 * largest_difference(plain, exact), floor)) << what;
  EXPECT_LE(mean_difference(ours, exact), std::max(2 * mean_difference(plain, exact), floor)) << what;
}

inline void expect_same_bits(const at::Tensor& a, const at::Tensor& b, const std::string& what = "") {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(at::equal(a, b)) << what << ", largest difference " << largest_difference(a, b);
}

// The message of the c10::Error that `call` throws; empty when it throws none.
template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

inline void expect_message(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is missing from: " << message;
  }
}

}  // namespace hrm::ops::testing
