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

constexpr int kFp8MaxRaised = 128;

// The same for tensors of one dtype, tensor i with row i of the slots. The magnitudes are those of the elements rounded
// to `rounded`, which is either `element`, or anything for f32.
struct RaiseManyFp8Amax {
  const void* from[kFp8MaxRaised];
  int64_t size[kFp8MaxRaised];
  int32_t
      first_block[kFp8MaxRaised + 1];  // block b works on the tensor i with first_block[i] <= b < first_block[i + 1]
  float* slots;
  int32_t count, slot_pitch;
  Element element, rounded;

  // count is below kFp8MaxRaised. An empty tensor gets no block.
  void add(const void* tensor, int64_t elements);
};
static_assert(sizeof(RaiseManyFp8Amax) <= 4096);

constexpr int kFp8MaxWeights = 64;

// The elements of many matrices, rounded to `rounded` (as above), in e4m3 by the scale in row i of the slots, as they
// stand and, where there is room for it, transposed. Sizes are multiples of 16, and pointers are aligned to 16 bytes.
struct QuantizeFp8Weights {
  const void* from[kFp8MaxWeights];
  void* values[kFp8MaxWeights];
  void* transposed[kFp8MaxWeights];  // or null
  int32_t rows[kFp8MaxWeights], columns[kFp8MaxWeights];
  int32_t first_block[kFp8MaxWeights + 1];  // as above
  float* slots;                             // whose amax is raised, too
  int32_t count, slot_pitch;
  Element element, rounded;

  // count is below kFp8MaxWeights, and the matrix has an element.
  void add(const void* matrix, void* to, void* across, int64_t height, int64_t width);
};
static_assert(sizeof(QuantizeFp8Weights) <= 4096);

// Of `now`, whose amax is set: the scale of that, or that of `slot` where it gives none; the format of `slot`; amax =
// 0. Raises the amax of `slot`.
struct ScaleFp8Now {
  float* now;  // (8)
  float* slot;
  float margin;
};

// Start one kernel on the stream and return the error of the launch; with nothing to do, start none.
cudaError_t launch(const RaiseFp8Amax& params, cudaStream_t stream);
cudaError_t launch(const RaiseManyFp8Amax& params, cudaStream_t stream);
cudaError_t launch(const QuantizeFp8Weights& params, cudaStream_t stream);
cudaError_t launch(const ScaleFp8Now& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
