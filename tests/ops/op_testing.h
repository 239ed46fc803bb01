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

// Normal numbers that depend on the seed alone, and whether they are many: those of a GPU's large tensors are drawn
// there, all others on the CPU.
inline at::Tensor normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype, at::Device device = at::kCPU) {
  constexpr int64_t kMany = int64_t{1} << 20;
  const bool there = !device.is_cpu() && c10::multiply_integers(sizes) >= kMany;
  at::Generator generator =
      there ? at::globalContext().defaultGenerator(device).clone() : at::detail::createCPUGenerator();
  generator.set_current_seed(seed);
  return at::randn(sizes, generator, at::device(there ? device : at::kCPU).dtype(at::kFloat)).to(device, dtype);
}

inline at::Tensor scalar(double value, at::Device device = at::kCPU) {
  return at::full({}, value, at::device(device).dtype(at::kFloat));
}

// |a - b| in float64, on the GPU if one of them is there. 8-bit numbers go through float32.
inline at::Tensor difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Device device = a.is_cpu() ? b.device() : a.device();
  const auto wide = [&](const at::Tensor& t) {
    return (t.element_size() == 1 ? t.to(at::kFloat) : t).to(device, at::kDouble);
  };
  return (wide(a) - wide(b)).abs_();
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : difference(a, b).max().item<double>();
}

inline double mean_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : difference(a, b).mean().item<double>();
}

// "element [3, 0, 17] is 1.5, not 1.25": of the one that stands at `flat` when all are counted through.
inline std::string describe_element(const at::Tensor& ours, const at::Tensor& want, int64_t flat) {
  std::vector<int64_t> index(static_cast<size_t>(ours.dim()));
  int64_t rest = flat;
  for (size_t i = index.size(); i > 0; --i) {
    index[i - 1] = rest % ours.size(static_cast<int64_t>(i) - 1);
    rest /= ours.size(static_cast<int64_t>(i) - 1);
  }
  const auto value = [&](const at::Tensor& t) { return t.reshape({-1})[flat].to(at::kDouble).item<double>(); };
  return cat("element ", at::IntArrayRef(index), " of ", ours.sizes(), " is ", value(ours), ", not ", value(want));
}

// How many differ, and the first and the worst of them; a not-a-number is the worst.
inline std::string describe_differences(const at::Tensor& ours, const at::Tensor& want) {
  const at::Tensor error = difference(ours, want).reshape({-1});
  const at::Tensor places = error.ne(0).nonzero();
  if (places.size(0) == 0) return "no difference in value";
  return cat(places.size(0), " of ", ours.numel(),
             " differ; first: ", describe_element(ours, want, places[0][0].item<int64_t>()),
             "; worst: ", describe_element(ours, want, error.argmax().item<int64_t>()));
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
  const at::Tensor error = difference(ours, exact).reshape({-1}), plain_error = difference(plain, exact).reshape({-1});
  // One read for all.
  const at::Tensor numbers =
      at::stack({error.max(), error.mean(), plain_error.max(), plain_error.mean(),
                 exact.abs().max().to(error.options()), at::isfinite(ours).all().to(error.options())})
          .to(at::kCPU);
  const auto* number = numbers.const_data_ptr<double>();
  const double floor = unit_roundoff(plain.scalar_type()) * number[4] + 0x1p-22 * terms;
  const auto worst = [&] { return describe_element(ours, exact, error.argmax().item<int64_t>()); };
  ASSERT_EQ(number[5], 1) << what << ": not all are finite; " << worst();
  EXPECT_LE(number[0], std::max(2 * number[2], floor))
      << what << ": largest error; plain ATen's is " << number[2] << ", always allowed is " << floor << "; " << worst();
  EXPECT_LE(number[1], std::max(2 * number[3], floor))
      << what << ": mean error; plain ATen's is " << number[3] << ", always allowed is " << floor << "; " << worst();
}

inline void expect_same_bits(const at::Tensor& a, const at::Tensor& b, const std::string& what = "") {
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  EXPECT_TRUE(at::equal(a, b)) << what << ": " << describe_differences(a, b);
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
