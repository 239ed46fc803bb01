#pragma once
// What the files of dropout share.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hrm::ops {

void check_dropout(const char* op, const at::Tensor& x, const at::Tensor& step, double p);
void check_dropout_add(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& step, double p);

// Of 2^32 words of a draw, those below this one drop an element.
inline uint32_t dropout_threshold(double p) {
  return static_cast<uint32_t>(p * 0x1.0p32);
}
inline float dropout_scale(double p) {
  return static_cast<float>(1 / (1 - p));
}

namespace reference {

// 0 or the scale, of x's sizes, float32 on the CPU.
at::Tensor dropout_factors(at::IntArrayRef sizes, int64_t step, double p, int64_t seed);
at::Tensor dropout(const at::Tensor& x, const at::Tensor& step, double p, int64_t seed);
void dropout_add_(const at::Tensor& sum, const at::Tensor& x, const at::Tensor& step, double p, int64_t seed);

}  // namespace reference
}  // namespace hrm::ops
