#pragma once
// GELU by the error function, x * Phi(x), and its derivative (Hendrycks and Gimpel, arXiv 1606.08415).

#include <cuda_runtime.h>

namespace hrm::ops::cuda {

// Phi(x), the normal distribution, and its density's exponential exp(-x^2 / 2). Abramowitz and Stegun 7.1.25, whose
// error of 1.3e-5 here is a hundredth of a rounding to 16 bits, and of which one exponential serves both.
__device__ inline float normal_cdf(float x, float& exponential) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const float denominator = fmaf(fabsf(x), 0.47047f * 0.70710678118654752f, 1.0f);
  float t;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(exponential) : "f"(x * x * (-0.5f * kLog2E)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(denominator));
  float sum = fmaf(t, 0.5f * 0.7478556f, 0.5f * -0.0958798f);
  sum = fmaf(t, sum, 0.5f * 0.3480242f);
  const float tail = sum * t * exponential;  // of the side that x lies on
  return x < 0 ? tail : 1.0f - tail;
}

__device__ inline void gelu(float x, float& value, float& slope) {
  constexpr float kDensity = 0.39894228040143267794f;  // 1 / sqrt(2 pi)
  float exponential;
  const float cdf = normal_cdf(x, exponential);
  value = x * cdf;
  slope = fmaf(x * kDensity, exponential, cdf);
}

}  // namespace hrm::ops::cuda
