#pragma once
// Parameters of the kernels of 8-bit weights with a scale for each row. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

enum class Weight8Format : int { e4m3, int8 };

struct Weight8Quantize {
  const void* weight;  // (rows, inner)
  uint8_t* values;     // (rows, inner)
  float* scales;       // (rows)
  int64_t rows, inner;
  Weight8Format format;
  Element element;  // of weight
};

struct Weight8Dequantize {
  const uint8_t* values;  // (rows, inner)
  const float* scales;    // (rows)
  void* out;              // (rows, inner)
  int64_t rows, inner;
  Weight8Format format;
  Element element;  // of out
};

// out = x (scale * value)^T (+ residual), summed in float32 and rounded once. The order of a sum depends on inner and
// width alone. Contiguous rows; pointers aligned to 16 bytes; 16-bit elements. Needs compute capability 8.0. The kernel
// queued before must not write values or scales: they are read while that one still runs.
struct Weight8Linear {
  const void* x;          // (rows, inner)
  const uint8_t* values;  // (width, inner)
  const float* scales;    // (width)
  const void* residual;   // (rows, width) or null
  void* out;              // (rows, width)
  int64_t rows, inner, width;
  Weight8Format format;
  Element element;
};

constexpr int64_t kWeight8MostRows = 32;
constexpr bool fits(const Weight8Linear& p) {
  return p.rows >= 1 && p.rows <= kWeight8MostRows && p.inner > 0 && p.inner % 16 == 0 && p.inner <= INT32_MAX / 2 &&
         p.width > 0 && p.width <= INT32_MAX / 2 && p.element != Element::f32;
}

cudaError_t launch(const Weight8Quantize& p, cudaStream_t stream);
cudaError_t launch(const Weight8Dequantize& p, cudaStream_t stream);
cudaError_t launch(const Weight8Linear& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
