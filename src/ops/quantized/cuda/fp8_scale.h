#pragma once
// The largest magnitude of a tensor, and the scale that follows from it; wide slots as in hrm/ops/fp8_linear.h. No
// torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

// Raises slot[2] to the largest |x|. Any size; read by 16 bytes where x is aligned to that.
struct RaiseFp8Amax {
  const void* from;  // (size) f32, bf16 or f16
  float* slot;
  int64_t size;
  Element element;
};

// Of `now`, whose amax is set: the scale of that, or that of `slot` where it gives none; the format of `slot`; amax =
// 0. Raises the amax of `slot`.
struct ScaleFp8Now {
  float* now;  // (8)
  float* slot;
  float margin;
};

// Start one kernel on the stream and return the error of the launch; with nothing to do, start none.
cudaError_t launch(const RaiseFp8Amax& params, cudaStream_t stream);
cudaError_t launch(const ScaleFp8Now& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
