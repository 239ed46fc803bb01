#pragma once
// Quantisation of a matrix to 8 bits as it stands and transposed, in one pass; slots as in fp8.h. No torch headers.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/element.h"

namespace hrm::ops::cuda {

struct QuantizeFp8Pair {
  const void* from;  // (rows, columns) f32, bf16 or f16
  void* values;      // (rows, columns), or null
  void* transposed;  // (columns, rows), or null
  float* slot;
  int64_t rows, columns;
  Element element;
  bool e5m2;
};

constexpr int kFp8MaxPairs = 64;

// Tensors of one dtype, tensor i with row i of the slots; all e4m3, as they stand and transposed. Sizes are multiples
// of 16, and pointers are aligned to 16 bytes.
struct QuantizeManyFp8Pairs {
  const void* from[kFp8MaxPairs];
  void* values[kFp8MaxPairs];
  void* transposed[kFp8MaxPairs];
  int32_t rows[kFp8MaxPairs], columns[kFp8MaxPairs];
  int32_t first_block[kFp8MaxPairs + 1];  // as in QuantizeManyFp8
  float* slots;
  int32_t count, slot_pitch;
  Element element;

  // count is below kFp8MaxPairs, and the tensor has an element.
  void add(const void* matrix, void* to, void* across, int64_t height, int64_t width);
};
static_assert(sizeof(QuantizeManyFp8Pairs) <= 4096);

cudaError_t launch(const QuantizeManyFp8Pairs& params, cudaStream_t stream);

// Starts one kernel on the stream and returns the error of the launch; with nothing to do, starts none.
cudaError_t launch(const QuantizeFp8Pair& params, cudaStream_t stream);

}  // namespace hrm::ops::cuda
