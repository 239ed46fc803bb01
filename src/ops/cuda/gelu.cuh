#pragma once
// GELU by the error function, x * Phi(x), and its derivative (Hendrycks and Gimpel, arXiv 1606.08415).

#include <cuda_runtime.h>

namespace hrm::ops::cuda {

// Phi(x), the normal distribution, and its density's exponential exp(-x^2 / 2). Abramowitz and Stegun 7.1.26, of which
// the error is below 1.5e-7: less than a rounding to 16 bits by far, and one exponential serves both.
__device__ inline float normal_cdf(float x, float& exponential) {
  constexpr float kLog2E = 1.44269504088896340736f;
  float t, denominator = fmaf(fabsf(x), 0.3275911f * 0.70710678118654752f, 1.0f);
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(exponential) : "f"(x * x * (-0.5f * kLog2E)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(denominator));
  float sum = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
  sum = fmaf(t, sum, 0.5f * 1.421413741f);
  sum = fmaf(t, sum, 0.5f * -0.284496736f);
  sum = fmaf(t, sum, 0.5f * 0.254829592f);
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
