#pragma once
// Product of 8-bit operands, residual and RMSNorm, for Hopper. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda::sm90 {

// h = residual + round(x * weight^T * x.inverse * weight.inverse), rounded; y = h / sqrt(mean(h^2) + eps), rounded; and
// y8 = y in e4m3 under y_slot, whose amax is raised. x and weight are e4m3, the others bf16 or f16. Rows of all tensors
// are contiguous and follow each other; pointers are aligned to 16 bytes. Slots: see ops/quantized/cuda/fp8.h.
struct LinearRmsNormFp8 {
  const void* x;       // (rows, inner)
  const void* weight;  // (width, inner)
  const float* x_slot;
  const float* weight_slot;
  const void* residual;  // (rows, width)
  void* y;               // (rows, width)
  void* y8;              // (rows, width), or null together with y_slot: do not write
  float* y_slot;
  int64_t rows;
  int64_t width;
  int64_t inner;
  float eps;
  Element element;
};

// Whether a launch takes these sizes on the current device: width 256 or 512, inner a multiple of 16.
bool fits(const LinearRmsNormFp8& params);
// Encodes its tensor maps on the host, starts one kernel on the stream and returns the launch's error.
cudaError_t launch(const LinearRmsNormFp8& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda::sm90
