#pragma once
// Parameters of the NF4 kernels. No torch headers.

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// As in hrm/ops/nf4.h, which needs torch; the launcher compares them.
constexpr int kNf4Elements = 64;     // of one magnitude
constexpr int kNf4Magnitudes = 256;  // of one scale

// Codes and float32 magnitudes of blocks of 64.
struct Nf4Quantize {
  const void* weight;  // (count)
  uint8_t* codes;      // ((count + 1) / 2)
  float* absmax;       // (blocks)
  int64_t count;
  Element element;
};

// out = level * magnitude. The magnitudes are float32, or codes with scales and an offset.
struct Nf4Dequantize {
  const uint8_t* codes;         // ((count + 1) / 2)
  const float* absmax;          // (blocks), or null:
  const uint8_t* absmax_codes;  // (blocks)
  const float* scales;          // (blocks / 256, rounded up)
  const float* offset;          // (1)
  void* out;                    // (count)
  int64_t count;
  Element element;
};

// out = x (level * magnitude)^T (+ residual), the numbers of the weight rounded to x's type, summed in float32 and
// rounded once. The order of a sum depends on inner and width alone. Contiguous rows; pointers aligned to 16 bytes;
// 16-bit elements. Needs compute capability 8.0. The kernel queued before must not write the weight: it is read while
// that one still runs.
struct Nf4Linear {
  const void* x;         // (rows, inner)
  const uint8_t* codes;  // (width * inner / 2); magnitudes as above
  const float* absmax;
  const uint8_t* absmax_codes;
  const float* scales;
  const float* offset;
  const void* residual;  // (rows, width) or null
  void* out;             // (rows, width)
  int64_t rows, inner, width;
  Element element;
};

constexpr int64_t kNf4MostRows = 32;
constexpr bool fits(const Nf4Linear& p) {
  return p.rows >= 1 && p.rows <= kNf4MostRows && p.inner > 0 && p.inner % kNf4Elements == 0 &&
         p.inner <= INT32_MAX / 2 && p.width > 0 && p.width <= INT32_MAX / 2 && p.element != Element::f32;
}

cudaError_t launch(const Nf4Quantize& p, cudaStream_t stream);
cudaError_t launch(const Nf4Dequantize& p, cudaStream_t stream);
cudaError_t launch(const Nf4Linear& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
