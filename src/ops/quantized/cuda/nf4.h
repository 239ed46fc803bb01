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

cudaError_t launch(const Nf4Quantize& p, cudaStream_t stream);
cudaError_t launch(const Nf4Dequantize& p, cudaStream_t stream);

}  // namespace hrm::ops::cuda
